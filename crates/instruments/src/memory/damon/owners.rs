//! Who runs DAMON, with which intervals: its sysfs (Documentation/admin-guide/mm/damon/usage.rst) and the kernel's own
//! modules (Documentation/admin-guide/mm/damon/reclaim.rst, lru_sort.rst, stat.rst).

use nearpath_host::Root;

const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
const MODULES: &str = "/sys/module";
/// Modules that run a kdamond; they monitor physical memory.
const OF_MODULES: [&str; 3] = ["damon_reclaim", "damon_lru_sort", "damon_stat"];
/// More targets of a context are not read.
const TARGETS: usize = 256;

/// A running kdamond, as its owner describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// `kdamonds/0`, or the module.
    pub name: String,
    /// The thread, if the owner says it.
    pub kdamond: Option<u32>,
    /// `paddr`, `vaddr`, `fvaddr`.
    pub operations: Option<String>,
    /// Interval of checks, and of counting them, in microseconds.
    pub sample_us: Option<u64>,
    pub aggregation_us: Option<u64>,
    /// Bytes of a unit of its addresses (`addr_unit`, since 6.18).
    pub unit: u64,
    /// Processes by the number of their target.
    pub pids: Vec<Option<u32>>,
}

impl Owner {
    /// Checks of a region in an aggregation interval (`damon_max_nr_accesses()` of mm/damon/core.c).
    pub fn checks(&self) -> Option<u64> {
        self.aggregation_us?.checked_div(self.sample_us?).map(|checks| checks.max(1))
    }
}

/// The owners of running kdamonds.
///
/// # Errors
/// Why there are none.
pub fn owners(root: &Root) -> Result<Vec<Owner>, String> {
    let modules = OF_MODULES.iter().filter_map(|module| of_module(root, module));
    let mut owners: Vec<Owner> = modules.collect();
    let listed = match root.list(KDAMONDS) {
        Ok(listed) => listed,
        Err(_) if !owners.is_empty() => return Ok(owners),
        Err(error) if error.absent => {
            return Err("this kernel has no DAMON (CONFIG_DAMON_SYSFS)".to_owned());
        }
        Err(error) => return Err(error.to_string()),
    };
    let numbers = listed.iter().filter(|entry| entry.name.parse::<u32>().is_ok());
    owners.extend(numbers.filter_map(|entry| of_sysfs(root, &entry.name)));
    if owners.is_empty() {
        return Err(
            "DAMON is not running, and a measurement does not start it: 'damo start' does \
                    (docs/memory.md, Accesses)"
                .to_owned(),
        );
    }
    Ok(owners)
}

fn number<T: std::str::FromStr>(root: &Root, path: &str) -> Option<T> {
    root.text(path).ok()?.trim().parse().ok()
}

/// A kdamond of sysfs that is on. Only one context of each is supported by the kernel.
fn of_sysfs(root: &Root, kdamond: &str) -> Option<Owner> {
    let folder = format!("{KDAMONDS}/{kdamond}");
    if root.text(&format!("{folder}/state")).ok()?.trim() != "on" {
        return None;
    }
    let context = format!("{folder}/contexts/0");
    let intervals = format!("{context}/monitoring_attrs/intervals");
    let targets: usize = number(root, &format!("{context}/targets/nr_targets")).unwrap_or(0);
    let pid = |target: usize| {
        let pid: Option<i64> = number(root, &format!("{context}/targets/{target}/pid_target"));
        pid.and_then(|pid| u32::try_from(pid).ok()).filter(|&pid| pid > 0)
    };
    let operations = root.text(&format!("{context}/operations")).ok();
    Some(Owner {
        name: format!("kdamonds/{kdamond}"),
        kdamond: number(root, &format!("{folder}/pid")),
        operations: operations.map(|operations| operations.trim().to_owned()),
        sample_us: number(root, &format!("{intervals}/sample_us")),
        aggregation_us: number(root, &format!("{intervals}/aggr_us")),
        unit: number(root, &format!("{context}/addr_unit")).filter(|&unit| unit > 0).unwrap_or(1),
        pids: (0..targets.min(TARGETS)).map(pid).collect(),
    })
}

/// A module that is enabled.
fn of_module(root: &Root, module: &str) -> Option<Owner> {
    let folder = format!("{MODULES}/{module}/parameters");
    if root.text(&format!("{folder}/enabled")).ok()?.trim() != "Y" {
        return None;
    }
    let kdamond: Option<i64> = number(root, &format!("{folder}/kdamond_pid"));
    Some(Owner {
        name: module.to_owned(),
        kdamond: kdamond.and_then(|pid| u32::try_from(pid).ok()),
        operations: Some("paddr".to_owned()),
        sample_us: number(root, &format!("{folder}/sample_interval")),
        aggregation_us: number(root, &format!("{folder}/aggr_interval")),
        unit: 1,
        pids: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_those_that_run() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let read = || owners(&Root::tree(dir.path()).unwrap());
        write("/sys/kernel/x", "");
        assert!(read().unwrap_err().contains("has no DAMON"));
        write(&format!("{KDAMONDS}/nr_kdamonds"), "2\n");
        assert!(read().unwrap_err().contains("is not running"));

        for (file, text) in [
            ("0/state", "off\n"),
            ("1/state", "on\n"),
            ("1/pid", "77\n"),
            ("1/contexts/0/operations", "vaddr\n"),
            ("1/contexts/0/addr_unit", "0\n"),
            ("1/contexts/0/monitoring_attrs/intervals/sample_us", "5000\n"),
            ("1/contexts/0/monitoring_attrs/intervals/aggr_us", "100000\n"),
            ("1/contexts/0/targets/nr_targets", "18446744073709551615\n"),
            ("1/contexts/0/targets/0/pid_target", "812\n"),
            ("1/contexts/0/targets/1/pid_target", "-1\n"),
        ] {
            write(&format!("{KDAMONDS}/{file}"), text);
        }
        write("/sys/module/damon_reclaim/parameters/enabled", "N\n");
        write("/sys/module/damon_stat/parameters/enabled", "Y\n");
        let found = read().unwrap();
        let [stat, sysfs] = &*found else { panic!("{found:?}") };
        assert_eq!((&*stat.name, stat.kdamond, stat.checks()), ("damon_stat", None, None));
        assert_eq!((&*sysfs.name, sysfs.kdamond), ("kdamonds/1", Some(77)));
        assert_eq!((sysfs.checks(), sysfs.unit, sysfs.pids.len()), (Some(20), 1, TARGETS));
        assert_eq!((sysfs.pids[0], sysfs.pids[1]), (Some(812), None));
        write(&format!("{KDAMONDS}/1/contexts/0/monitoring_attrs/intervals/sample_us"), "0\n");
        assert_eq!(read().unwrap()[1].checks(), None);
    }
}
