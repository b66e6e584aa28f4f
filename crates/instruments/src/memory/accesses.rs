//! What would show accesses to memory, not only where it is: the PMU's samples of loads, and DAMON. Output: why they
//! are not available.

use nearpath_host::Root;
use nearpath_model::memory::NotAvailable;

const PMUS: &str = "/sys/bus/event_source/devices";
/// Sysfs of DAMON (Documentation/admin-guide/mm/damon/usage.rst), and the file that says whether it is running.
const DAMON: &str = "/sys/kernel/mm/damon/admin/kdamonds";

/// Why remote loads and accesses by region are not measured.
pub fn not_available(root: &Root) -> Vec<NotAvailable> {
    vec![
        NotAvailable { what: "remote loads, false sharing".to_owned(), reason: remote_loads(root) },
        NotAvailable { what: "accesses by region (DAMON)".to_owned(), reason: damon(root) },
    ]
}

/// PEBS load latency on Intel (`cpu`, `cpu_core` on hybrid machines), IBS on AMD, SPE on ARM.
fn remote_loads(root: &Root) -> String {
    let pmus = match root.list(PMUS) {
        Ok(pmus) => pmus,
        Err(error) => return format!("no PMU: {error}"),
    };
    let samples_loads = |name: &str| {
        let has_event =
            || root.read(&format!("{PMUS}/{name}/events/mem-loads")).is_ok_and(|e| !e.is_empty());
        match name {
            "cpu" | "cpu_core" => has_event(),
            _ => name == "ibs_op" || name.starts_with("arm_spe"),
        }
    };
    match pmus.iter().find(|pmu| samples_loads(&pmu.name)) {
        Some(pmu) => format!(
            "not sampled by nearpath; this machine's PMU {} can: perf mem record, perf c2c record",
            pmu.name
        ),
        None if pmus
            .iter()
            .any(|pmu| pmu.name.starts_with("cpu") || pmu.name.starts_with("armv")) =>
        {
            "no PMU event for loads (mem-loads, ibs_op or arm_spe)".to_owned()
        }
        None => "no PMU".to_owned(),
    }
}

fn damon(root: &Root) -> String {
    match root.list(DAMON) {
        Ok(_) => {
            "DAMON must be started by writes to /sys/kernel/mm/damon, which a measurement does not \
                  make; damo record does"
                .to_owned()
        }
        Err(error) if error.absent => "this kernel has no DAMON (CONFIG_DAMON_SYSFS)".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn reasons_depend_on_the_pmu() {
        let dir = tempfile::tempdir().unwrap();
        let reason = |files: &[&str]| {
            let pmus = dir.path().join(PMUS.trim_start_matches('/'));
            let _ = fs::remove_dir_all(&pmus);
            fs::create_dir_all(&pmus).unwrap();
            for file in files {
                let file = pmus.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, "event=0xcd,umask=0x1,ldlat=3\n").unwrap();
            }
            remote_loads(&Root::tree(dir.path()).unwrap())
        };
        assert_eq!(reason(&["msr/type", "software/type"]), "no PMU");
        assert!(reason(&["cpu/type"]).starts_with("no PMU event"));
        assert!(reason(&["cpu/events/mem-loads"]).contains("PMU cpu can"));
        assert!(reason(&["ibs_op/type", "cpu/type"]).contains("PMU ibs_op can"));
        assert!(reason(&["arm_spe_0/type"]).contains("PMU arm_spe_0 can"));
    }
}
