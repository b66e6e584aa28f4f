//! The event that samples loads on this machine, from `/sys/bus/event_source/devices`: `mem-loads` of PEBS on Intel
//! (`cpu`, on hybrid machines `cpu_core`), IBS on AMD (`ibs_op`). SPE on ARM (`arm_spe_0`) is found and not used: its
//! packets are a format of their own, in an area of their own.
//!
//! Input: the host. Output: the numbers of the event, or why there is none.

use nearpath_host::Root;

const PMUS: &str = "/sys/bus/event_source/devices";
/// Longest text of an event or a format that is read.
const LONGEST: usize = 4096;

/// An event for perf_event_open(2).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// The PMU.
    pub pmu: String,
    /// Its number (`type`).
    pub kind: u32,
    /// `config`, `config1`, `config2`.
    pub config: [u64; 3],
    /// Whether each sample has to be exact (`precise_ip`), as PEBS's are; IBS's always are.
    pub precise: bool,
    /// An event that has to lead its group (`mem-loads-aux`, Sapphire Rapids and newer).
    pub leader: Option<[u64; 3]>,
}

/// The events of this machine: of loads, and of stores where those are apart.
///
/// # Errors
/// There is none; the reason.
pub fn events(root: &Root) -> Result<Vec<Event>, String> {
    let pmus = root.list(PMUS).map_err(|error| format!("no PMU: {error}"))?;
    let has = |name: &str| pmus.iter().any(|pmu| pmu.name == name);
    for name in ["cpu", "cpu_core"].into_iter().filter(|name| has(name)) {
        if let Some(loads) = named(root, name, "mem-loads")? {
            let leader = named(root, name, "mem-loads-aux")?.map(|leader| leader.config);
            let stores = named(root, name, "mem-stores")?;
            return Ok([Event { leader, ..loads }].into_iter().chain(stores).collect());
        }
    }
    if has("ibs_op") {
        let kind = kind(root, "ibs_op")?;
        return Ok(vec![Event { pmu: "ibs_op".to_owned(), kind, ..Event::default() }]);
    }
    if let Some(spe) = pmus.iter().find(|pmu| pmu.name.starts_with("arm_spe")) {
        return Err(format!(
            "{} has samples in a format that nearpath does not read: perf mem record does",
            spe.name
        ));
    }
    let is_cpu = |name: &str| name.starts_with("cpu") || name.starts_with("armv");
    match pmus.iter().any(|pmu| is_cpu(&pmu.name)) {
        true => Err("no PMU event for loads (mem-loads, ibs_op or arm_spe)".to_owned()),
        false => Err("no PMU".to_owned()),
    }
}

fn kind(root: &Root, pmu: &str) -> Result<u32, String> {
    let path = format!("{PMUS}/{pmu}/type");
    let text = root.text(&path).map_err(|error| error.to_string())?;
    text.trim().parse().map_err(|_| format!("{path}: not a number"))
}

/// An event that the PMU names; `None` if it has none of this name.
fn named(root: &Root, pmu: &str, event: &str) -> Result<Option<Event>, String> {
    let path = format!("{PMUS}/{pmu}/events/{event}");
    let terms = match root.text(&path) {
        Ok(text) if text.trim().is_empty() => return Ok(None),
        Ok(text) => text,
        Err(error) if error.absent => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut config = [0; 3];
    for term in terms.trim().get(..LONGEST.min(terms.trim().len())).unwrap_or_default().split(',') {
        let (name, value) = term.split_once('=').unwrap_or((term, "1"));
        let value = match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => value.parse(),
        };
        let value = value.map_err(|_| format!("{path}: {term:?} has no number"))?;
        let format = format!("{PMUS}/{pmu}/format/{name}");
        let bits = root.text(&format).map_err(|error| error.to_string())?;
        place(&mut config, bits.trim(), value).ok_or_else(|| format!("{format}: {bits:?}"))?;
    }
    Ok(Some(Event {
        pmu: pmu.to_owned(),
        kind: kind(root, pmu)?,
        config,
        precise: true,
        leader: None,
    }))
}

/// Puts a value into the bits of a format: `config:0-7`, `config1:0-15,21`, `config:17` (the low bits of the value first).
fn place(config: &mut [u64; 3], format: &str, mut value: u64) -> Option<()> {
    let (which, ranges) = format.split_once(':')?;
    let which = ["config", "config1", "config2"].iter().position(|name| *name == which)?;
    let word = config.get_mut(which)?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if last >= 64 || first > last {
            return None;
        }
        let width = last - first + 1;
        let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
        *word |= (value & mask) << first;
        value = value.checked_shr(width).unwrap_or(0);
    }
    (value == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn write(tree: &Path, files: &[(&str, &str)]) {
        for (file, text) in files {
            let file = tree.join(PMUS.trim_start_matches('/')).join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
    }

    fn events_of(files: &[(&str, &str)]) -> Result<Vec<Event>, String> {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), files);
        events(&Root::tree(dir.path()).unwrap())
    }

    /// As on Skylake-SP (`perf list`, sysfs of the driver `cpu`).
    const INTEL: [(&str, &str); 7] = [
        ("cpu/type", "4\n"),
        ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
        ("cpu/events/mem-stores", "event=0xd0,umask=0x82\n"),
        ("cpu/format/event", "config:0-7\n"),
        ("cpu/format/umask", "config:8-15\n"),
        ("cpu/format/ldlat", "config1:0-15\n"),
        ("software/type", "1\n"),
    ];

    #[test]
    fn events_have_the_numbers_of_sysfs() {
        let found = events_of(&INTEL).unwrap();
        let of =
            |config| Event { pmu: "cpu".to_owned(), kind: 4, config, precise: true, leader: None };
        assert_eq!(found, [of([0x1cd, 3, 0]), of([0x82d0, 0, 0])]);
        // Sapphire Rapids: umask in two parts, and an event that leads.
        let mut files = INTEL.to_vec();
        files.extend([
            ("cpu/events/mem-loads-aux", "event=0x03,umask=0x182\n"),
            ("cpu/format/umask", "config:8-15,40-47\n"),
        ]);
        let found = events_of(&files).unwrap();
        assert_eq!(found[0].leader, Some([0x8203 | 1 << 40, 0, 0]));
        let found =
            events_of(&[("ibs_op/type", "11\n"), ("ibs_fetch/type", "10\n"), ("cpu/type", "4\n")])
                .unwrap();
        assert_eq!((found.len(), found[0].kind, found[0].precise), (1, 11, false));
    }

    #[test]
    fn without_one_there_is_a_reason() {
        for (files, reason) in [
            (&[("msr/type", "6\n"), ("software/type", "1\n")][..], "no PMU"),
            (&[("cpu/type", "4\n")], "no PMU event for loads"),
            (&[("arm_spe_0/type", "8\n")], "arm_spe_0 has samples in a format"),
            // Of a virtual machine: an empty file.
            (&[("cpu/type", "4\n"), ("cpu/events/mem-loads", "")], "no PMU event for loads"),
            (&[("cpu/type", "4\n"), ("cpu/events/mem-loads", "event=0xcd\n")], "format/event"),
            (&[("cpu/type", "x\n"), ("ibs_op/type", "x\n")], "not a number"),
        ] {
            let error = events_of(files).unwrap_err();
            assert!(error.starts_with(reason) || error.contains(reason), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("sys")).unwrap();
        let error = events(&Root::tree(dir.path()).unwrap()).unwrap_err();
        assert!(error.starts_with("no PMU"), "{error}");
    }

    #[test]
    fn values_fit_their_bits() {
        let placed = |format: &str, value| {
            let mut config = [0; 3];
            place(&mut config, format, value).map(|()| config)
        };
        assert_eq!(placed("config:0-63", u64::MAX), Some([u64::MAX, 0, 0]));
        assert_eq!(placed("config2:4,6", 3), Some([0, 0, 0x50]));
        for (format, value) in [
            ("config:0-7", 256),
            ("config:8-7", 1),
            ("config:64", 1),
            ("config", 1),
            ("x:0", 1),
            ("config:a", 1),
        ] {
            assert_eq!(placed(format, value), None, "{format}");
        }
    }
}
