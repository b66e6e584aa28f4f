//! Reads the kernel's own facts: release, name, command line, the CPUs isolated at boot, and the hypervisor.
//! Input: `/proc` and `/sys`. Output: [`Kernel`].

mod cmdline;
mod virtualisation;

use crate::{Notes, ReadError, Root};
use nearpath_model::{CpuSet, Kernel};

/// The CPUs of isolated partitions (`cpuset_files` of kernel/cgroup/cpuset.c, since Linux 6.7).
const PARTITIONS: &str = "/sys/fs/cgroup/cpuset.cpus.isolated";

const CPUS: &str = "/sys/devices/system/cpu";

/// Reads the kernel's facts. `possible` are the CPUs that `all` and `N` mean on the command line.
pub(crate) fn read(root: &Root, possible: &CpuSet, notes: &mut Notes) -> Kernel {
    let mut text = |fact, path: &str| notes.take("host", fact, root.text(path));
    let release = text("release", "/proc/sys/kernel/osrelease");
    let hostname = text("hostname", "/proc/sys/kernel/hostname");
    let cmdline = text("cmdline", "/proc/cmdline");
    let boot = cmdline.as_deref().map(|line| Boot { line, possible });
    let isolated = in_force(root, "isolated").or_else(|error| match &boot {
        Some(boot) if error.absent => boot.isolated().map_err(|e| e.to_string()),
        _ => Err(error.to_string()),
    });
    let nohz_full = in_force(root, "nohz_full").or_else(|error| match &boot {
        // Without the file the kernel has no CONFIG_NO_HZ_FULL, or the file was not saved.
        Some(boot) if error.absent && !boot.requests_nohz_full() => Ok(CpuSet::new()),
        _ => Err(error.to_string()),
    });
    let partitions = match root.text(PARTITIONS) {
        Ok(list) => CpuSet::from_list(list.trim()).map(Some).map_err(|error| error.to_string()),
        Err(error) if error.absent => Ok(None),
        Err(error) => Err(error.to_string()),
    };
    let rcu_nocbs = match &boot {
        Some(boot) => boot.rcu_nocbs().map_err(|e| e.to_string()),
        None => Err("/proc/cmdline is unknown".to_owned()),
    };
    let mut set = |fact, set: Result<CpuSet, String>| {
        set.map_err(|reason| notes.add("host", fact, &reason)).ok()
    };
    let (isolated, nohz_full) = (set("isolated", isolated), set("nohz_full", nohz_full));
    let rcu_nocbs = set("rcu_nocbs", rcu_nocbs);
    let partitions = partitions.map_err(|reason| notes.add("host", "isolated_by_cgroups", &reason));
    let isolated_by_cgroups = partitions.ok().flatten();
    let virtualisation = virtualisation::read(root)
        .map_err(|reason| notes.add("host", "virtualisation", &reason))
        .ok();
    Kernel {
        release,
        hostname,
        cmdline,
        virtualisation,
        isolated,
        isolated_by_cgroups,
        nohz_full,
        rcu_nocbs,
    }
}

/// A set as printed by the kernel. `(null)` is what `%*pbl` prints for a mask that was never allocated
/// (drivers/base/cpu.c `print_cpus_nohz_full`), that is, an empty set.
fn in_force(root: &Root, file: &str) -> Result<CpuSet, ReadError> {
    let path = format!("{CPUS}/{file}");
    match root.text(&path)?.as_str() {
        "(null)" => Ok(CpuSet::new()),
        text => CpuSet::from_list(text).map_err(|e| ReadError {
            what: path,
            reason: e.to_string(),
            absent: false,
        }),
    }
}

/// Parameters of the command line.
struct Boot<'a> {
    line: &'a str,
    possible: &'a CpuSet,
}

impl Boot<'_> {
    /// The CPUs removed from the scheduler's domains, by all `isolcpus=` together.
    fn isolated(&self) -> Result<CpuSet, nearpath_model::ParseCpuSetError> {
        let mut isolated = CpuSet::new();
        for value in cmdline::values(self.line, "isolcpus") {
            let isolcpus = cmdline::isolcpus(&value);
            if isolcpus.domain {
                isolated = isolated.union(&cmdline::cpus(isolcpus.cpus, self.possible)?);
            }
        }
        Ok(isolated)
    }

    fn requests_nohz_full(&self) -> bool {
        !cmdline::values(self.line, "nohz_full").is_empty()
            || cmdline::values(self.line, "isolcpus").iter().any(|v| cmdline::isolcpus(v).nohz)
    }

    /// The last `rcu_nocbs=` applies; without a list it only enables offloading (kernel/rcu/tree_nocb.h
    /// `rcu_nocb_setup`).
    fn rcu_nocbs(&self) -> Result<CpuSet, nearpath_model::ParseCpuSetError> {
        let values = cmdline::values(self.line, "rcu_nocbs");
        values.last().map_or(Ok(CpuSet::new()), |cpus| cmdline::cpus(cpus, self.possible))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::Unknown;
    use nearpath_testing::trees::{Layout, Machine};

    fn read_kernel(machine: &Machine) -> (Kernel, Vec<Unknown>) {
        let tree = machine.write();
        let host = crate::read(&Root::tree(tree.path()).unwrap(), &crate::Wanted::default());
        let host = host.unwrap();
        (host.kernel, host.unknown)
    }

    fn machine() -> Machine {
        Machine::regular(Layout { cores: 8, ..Layout::default() })
    }

    fn cpus(list: &str) -> Option<CpuSet> {
        Some(CpuSet::from_list(list).unwrap())
    }

    #[test]
    fn facts_of_the_kernel() {
        let (kernel, _) = read_kernel(&machine());
        assert_eq!(kernel.release.as_deref(), Some("6.1.0-test"));
        assert_eq!(kernel.hostname.as_deref(), Some("testhost"));
        assert!(kernel.cmdline.unwrap().ends_with(" quiet"));
        assert_eq!(kernel.isolated, cpus(""));
        assert_eq!(kernel.nohz_full, cpus(""));
        assert_eq!(kernel.rcu_nocbs, cpus(""));
    }

    #[test]
    fn isolated_cpus_are_those_in_effect() {
        let (kernel, _) = read_kernel(
            &machine()
                .file("/proc/cmdline", "isolcpus=1 nohz_full=1 rcu_nocbs=0 rcu_nocbs=4-N\n")
                .file(&format!("{CPUS}/isolated"), "2-3\n")
                .file(&format!("{CPUS}/nohz_full"), "  (null)\n"),
        );
        assert_eq!(kernel.isolated, cpus("2-3"));
        assert_eq!(kernel.nohz_full, cpus(""));
        assert_eq!(kernel.rcu_nocbs, cpus("4-7"));
    }

    #[test]
    fn isolated_partitions_are_in_a_list_of_their_own() {
        let (kernel, _) = read_kernel(
            &machine().file(&format!("{CPUS}/isolated"), "2-3\n").file(PARTITIONS, "5-6\n"),
        );
        assert_eq!((&kernel.isolated, &kernel.isolated_by_cgroups), (&cpus("2-3"), &cpus("5-6")));
        assert_eq!(kernel.all_isolated(), cpus("2-3,5-6"));
        let (kernel, unknown) = read_kernel(&machine());
        assert_eq!(kernel.isolated_by_cgroups, None);
        assert!(!unknown.iter().any(|u| u.fact == "isolated_by_cgroups"), "{unknown:?}");
        let (kernel, unknown) = read_kernel(&machine().file(PARTITIONS, "some\n"));
        assert_eq!(kernel.isolated_by_cgroups, None);
        assert!(unknown.iter().any(|u| u.fact == "isolated_by_cgroups"), "{unknown:?}");
    }

    #[test]
    fn without_the_files_the_command_line_is_used() {
        let line = "isolcpus=managed_irq,domain,1-3 isolcpus=managed_irq,5 nohz_full=1-3\n";
        let (kernel, unknown) = read_kernel(
            &machine().file("/proc/cmdline", line).without(&format!("{CPUS}/isolated")),
        );
        assert_eq!(kernel.isolated, cpus("1-3"));
        // Requested, but there is no sign that the kernel did it.
        assert_eq!(kernel.nohz_full, None);
        assert!(unknown.iter().any(|u| u.fact == "nohz_full" && u.reason.contains("nohz_full")));
    }

    #[test]
    fn unreadable_facts_are_unknown_with_reasons() {
        let machine = machine().without("/proc").without("/sys/devices/system/cpu/isolated");
        let (kernel, unknown) = read_kernel(&machine);
        assert_eq!(kernel, Kernel::default());
        for fact in ["release", "hostname", "cmdline", "isolated", "nohz_full", "rcu_nocbs"] {
            assert!(unknown.iter().any(|u| u.fact == fact), "{fact}: {unknown:?}");
        }
    }
}
