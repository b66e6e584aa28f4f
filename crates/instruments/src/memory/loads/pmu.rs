//! The event that samples loads on this machine, from `/sys/bus/event_source/devices`: `mem-loads` of PEBS on Intel
//! (`cpu`, on hybrid machines `cpu_core`), IBS on AMD (`ibs_op`), SPE on ARM (`arm_spe_0`, one for each kind of CPU).
//!
//! Input: the host. Output: the numbers of the event, or why there is none.

use nearpath_host::Root;
use nearpath_model::CpuSet;

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

/// The events of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Events {
    /// Of loads, and of stores where those are apart; the kernel writes their samples.
    Sampled(Vec<Event>),
    /// The PMU writes its samples itself.
    Spe(Vec<SpeEvent>),
}

/// An event of SPE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeEvent {
    /// Loads and stores, with physical addresses.
    pub event: Event,
    /// The CPUs that have it (`cpumask`).
    pub cpus: CpuSet,
    /// The fewest operations between two samples (`caps/min_interval`).
    pub shortest: u64,
}

impl Events {
    /// The name of the PMU, the first if there are several.
    pub fn pmu(&self) -> &str {
        match self {
            Self::Sampled(events) => events.first().map_or("", |event| &event.pmu),
            Self::Spe(events) => events.first().map_or("", |event| &event.event.pmu),
        }
    }
}

/// The events of this machine.
///
/// # Errors
/// There is none; the reason.
pub fn events(root: &Root) -> Result<Events, String> {
    let pmus = root.list(PMUS).map_err(|error| format!("no PMU: {error}"))?;
    let has = |name: &str| pmus.iter().any(|pmu| pmu.name == name);
    for name in ["cpu", "cpu_core"].into_iter().filter(|name| has(name)) {
        if let Some(loads) = named(root, name, "mem-loads")? {
            let leader = named(root, name, "mem-loads-aux")?.map(|leader| leader.config);
            let stores = named(root, name, "mem-stores")?;
            let events = [Event { leader, ..loads }].into_iter().chain(stores);
            return Ok(Events::Sampled(events.collect()));
        }
    }
    if has("ibs_op") {
        let kind = kind(root, "ibs_op")?;
        let event = Event { pmu: "ibs_op".to_owned(), kind, ..Event::default() };
        return Ok(Events::Sampled(vec![event]));
    }
    let spe = pmus.iter().filter(|pmu| pmu.name.starts_with("arm_spe"));
    let spe = spe.map(|pmu| of_spe(root, &pmu.name)).collect::<Result<Vec<_>, _>>()?;
    if !spe.is_empty() {
        return Ok(Events::Spe(spe));
    }
    let is_cpu = |name: &str| name.starts_with("cpu") || name.starts_with("armv");
    match pmus.iter().any(|pmu| is_cpu(&pmu.name)) {
        true => Err("no PMU event for loads (mem-loads, ibs_op or arm_spe)".to_owned()),
        false => Err("no PMU".to_owned()),
    }
}

/// The terms of SPE (drivers/perf/arm_spe_pmu.c): loads and stores alone, with times and physical addresses.
const OF_SPE: &str = "ts_enable=1,pa_enable=1,load_filter=1,store_filter=1,jitter=1";

fn of_spe(root: &Root, pmu: &str) -> Result<SpeEvent, String> {
    let config = config(root, pmu, OF_SPE)?;
    let event = Event { pmu: pmu.to_owned(), kind: kind(root, pmu)?, config, ..Event::default() };
    let mask = root.text(&format!("{PMUS}/{pmu}/cpumask")).map_err(|error| error.to_string())?;
    let cpus = CpuSet::from_list(mask.trim()).map_err(|error| format!("{pmu}: {error}"))?;
    let shortest = root.text(&format!("{PMUS}/{pmu}/caps/min_interval")).ok();
    let shortest = shortest.and_then(|text| text.trim().parse().ok()).unwrap_or(1);
    Ok(SpeEvent { event, cpus, shortest })
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
    let config = config(root, pmu, &terms).map_err(|error| format!("{path}: {error}"))?;
    Ok(Some(Event {
        pmu: pmu.to_owned(),
        kind: kind(root, pmu)?,
        config,
        precise: true,
        leader: None,
    }))
}

/// The configuration of terms such as `event=0xcd,ldlat=3`, by the PMU's formats.
fn config(root: &Root, pmu: &str, terms: &str) -> Result<[u64; 3], String> {
    let mut config = [0; 3];
    for term in terms.trim().get(..LONGEST.min(terms.trim().len())).unwrap_or_default().split(',') {
        let (name, value) = term.split_once('=').unwrap_or((term, "1"));
        let value = match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => value.parse(),
        };
        let value = value.map_err(|_| format!("{term:?} has no number"))?;
        let format = format!("{PMUS}/{pmu}/format/{name}");
        let bits = root.text(&format).map_err(|error| error.to_string())?;
        place(&mut config, bits.trim(), value).ok_or_else(|| format!("{format}: {bits:?}"))?;
    }
    Ok(config)
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

    fn all_events_of(files: &[(&str, &str)]) -> Result<Events, String> {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), files);
        events(&Root::tree(dir.path()).unwrap())
    }

    fn events_of(files: &[(&str, &str)]) -> Result<Vec<Event>, String> {
        match all_events_of(files)? {
            Events::Sampled(events) => Ok(events),
            other => panic!("{other:?}"),
        }
    }

    /// As of drivers/perf/arm_spe_pmu.c.
    const SPE: [(&str, &str); 9] = [
        ("arm_spe_0/type", "8\n"),
        ("arm_spe_0/cpumask", "0-3,8\n"),
        ("arm_spe_0/caps/min_interval", "1024\n"),
        ("arm_spe_0/format/ts_enable", "config:0\n"),
        ("arm_spe_0/format/pa_enable", "config:1\n"),
        ("arm_spe_0/format/jitter", "config:16\n"),
        ("arm_spe_0/format/load_filter", "config:33\n"),
        ("arm_spe_0/format/store_filter", "config:34\n"),
        ("armv8_pmuv3_0/type", "9\n"),
    ];

    #[test]
    fn spe_has_its_cpus_and_its_filters() {
        let Events::Spe(found) = all_events_of(&SPE).unwrap() else { panic!() };
        let [spe] = &*found else { panic!("{found:?}") };
        assert_eq!(spe.event.config, [6 << 32 | 1 << 16 | 3, 0, 0]);
        assert_eq!((spe.event.kind, spe.shortest, spe.cpus.to_string()), (8, 1024, "0-3,8".into()));
        for left_out in ["arm_spe_0/format/pa_enable", "arm_spe_0/cpumask", "arm_spe_0/type"] {
            let mut files = SPE.to_vec();
            files.retain(|(file, _)| *file != left_out);
            let error = all_events_of(&files).unwrap_err();
            assert!(error.contains(left_out), "{error}");
        }
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
