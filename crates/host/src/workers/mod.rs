//! Workers: the threads of DPDK, Open vSwitch and DPVS that poll, with what their processes report.
//!
//! Input: `/run/dpdk/*/dpdk_telemetry.v2`, `/run/openvswitch/ovs-vswitchd.*.ctl` and `db.sock`, `dpip`, and the threads of
//! `/proc` by their names, or for processes without a socket (`--in-memory`) by their devices and hugepages. Output:
//! [`Workers`]. What a process reports is taken as its word: where a thread may run, how long it waited, and the node of a
//! PCI function are the kernel's.

pub mod dpip;
pub mod ovs;
pub mod ovsdb;
mod process;
mod rpc;
pub mod telemetry;
mod threads;

use crate::processes::{comm, pids};
use crate::{Notes, ReadError, Root, cgroup_of, topology};
use dpip::DpvsWorker;
use nearpath_model::{CpuSet, NodeId, WORKERS_SCHEMA, Workers};
use ovs::OvsFacts;
use ovsdb::OvsDatabase;
use process::{Reported, process};
use std::collections::BTreeMap;
use telemetry::TelemetryFacts;

/// Maximum number of sockets that are asked.
const MAX_SOCKETS: usize = 64;
/// CPUs of isolated partitions, since Linux 6.7.
const ISOLATED: &str = "/sys/fs/cgroup/cpuset.cpus.isolated";

/// Reads the workers of a host.
pub fn read(root: &Root) -> Workers {
    let mut notes = Notes::default();
    let topology = topology::read(root, &mut Notes::default());
    let telemetry = ask_dpdk(root, &mut notes);
    let switches = ask_switches(root, &mut notes);
    let mut processes = Vec::new();
    for pid in notes.take("host", "processes", pids(root)).unwrap_or_default() {
        let threads = threads::of(root, pid);
        let (dpdk, switch) = (telemetry.get(&pid), switches.get(&pid));
        let is_known = !threads.is_empty()
            || dpdk.is_some()
            || switch.is_some_and(|(switch, _)| !switch.pmds.is_empty());
        let threads = if is_known { threads } else { threads::without_names(root, pid) };
        if !is_known && threads.is_empty() {
            continue;
        }
        let name = comm(root, pid).unwrap_or_default();
        let dpvs = if name == "dpvs" { ask_dpvs(root, &mut notes) } else { Vec::new() };
        let reported = Reported { name, dpdk, switch, dpvs };
        processes.push(process(root, &mut notes, &topology, pid, &threads, &reported));
    }
    let isolated_by_cgroups = if processes.is_empty() {
        None
    } else {
        let pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
        notes.take("host", "isolated partitions", isolated_by_cgroups(root, &pids))
    };
    let kni_module = root.list("/sys/module").ok();
    Workers {
        schema: WORKERS_SCHEMA,
        processes,
        isolated_by_cgroups,
        kni_module: kni_module
            .map(|modules| modules.iter().any(|entry| matches!(&*entry.name, "rte_kni" | "kni"))),
        unknown: notes.unknown().to_vec(),
        ..Workers::default()
    }
}

/// What DPDK's processes report, by process id.
fn ask_dpdk(root: &Root, notes: &mut Notes) -> BTreeMap<u32, TelemetryFacts> {
    let mut telemetry: BTreeMap<u32, TelemetryFacts> = BTreeMap::new();
    for entry in root.list("/run/dpdk").unwrap_or_default().into_iter().take(MAX_SOCKETS) {
        let path = format!("/run/dpdk/{}/dpdk_telemetry.v2", entry.name);
        let subject = format!("dpdk {}", entry.name);
        let asked = root.answer(&format!("dpdk/{}", entry.name), || telemetry::ask(&path));
        // A process that has ended leaves its directory, and its socket if it was killed.
        if asked.as_ref().is_err_and(|error| error.absent) {
            continue;
        }
        if let Some(facts) = notes.take(&subject, "telemetry", asked) {
            for (request, reason) in &facts.failed {
                notes.add(&subject, request, reason);
            }
            telemetry.insert(facts.pid, facts);
        }
    }
    telemetry
}

/// What each ovs-vswitchd reports, by process id.
fn switches(root: &Root, notes: &mut Notes) -> BTreeMap<u32, OvsFacts> {
    let mut switches = BTreeMap::new();
    for entry in root.list("/run/openvswitch").unwrap_or_default() {
        let pid = entry.name.strip_prefix("ovs-vswitchd.").and_then(|n| n.strip_suffix(".ctl"));
        let Some(pid) = pid.and_then(|pid| pid.parse().ok()) else { continue };
        if switches.len() >= MAX_SOCKETS {
            break;
        }
        let path = format!("/run/openvswitch/{}", entry.name);
        let asked = root.answer(&format!("ovs/{pid}"), || ovs::ask(&path));
        if let Some(facts) = notes.take(&format!("ovs {pid}"), "pmd threads", asked) {
            switches.insert(pid, facts);
        }
    }
    switches
}

/// The configuration of Open vSwitch.
fn ask_database(root: &Root) -> Result<OvsDatabase, ReadError> {
    root.answer("ovs/database", || ovsdb::ask(ovsdb::SOCKET))
}

/// The same for each switch with PMD threads; others say nothing of workers.
fn ask_switches(root: &Root, notes: &mut Notes) -> BTreeMap<u32, (OvsFacts, Option<OvsDatabase>)> {
    let found = switches(root, notes);
    let with = |(pid, facts): (u32, OvsFacts)| {
        let asked = (!facts.pmds.is_empty()).then(|| ask_database(root));
        let subject = format!("ovs {pid}");
        let database = asked.and_then(|asked| notes.take(&subject, "settings", asked));
        (pid, (facts, database))
    };
    found.into_iter().map(with).collect()
}

/// An Open vSwitch: its configuration, and what its threads poll.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Switch {
    /// Its configuration.
    pub database: OvsDatabase,
    /// Nodes of its interfaces, where they are known.
    pub nodes: BTreeMap<String, NodeId>,
    /// Its PMD threads; `None` if ovs-vswitchd does not report them, with the reason in `unknown`.
    pub pmds: Option<Vec<ovs::OvsPmd>>,
    /// Facts that could not be read.
    pub unknown: Vec<nearpath_model::Unknown>,
}

/// Reads the host's Open vSwitch.
///
/// # Errors
/// Its database does not answer.
pub fn read_switch(root: &Root) -> Result<Switch, ReadError> {
    let database = ask_database(root)?;
    let mut notes = Notes::default();
    let switches = switches(root, &mut notes);
    let pmds = match switches.len() {
        0 => None,
        _ => Some(switches.into_values().flat_map(|facts| facts.pmds).collect()),
    };
    let node = |(name, its): (&String, &ovsdb::OvsInterface)| Some((name.clone(), its.node(root)?));
    let nodes = database.interfaces.iter().filter_map(node).collect();
    Ok(Switch { database, nodes, pmds, unknown: notes.unknown().to_vec() })
}

fn ask_dpvs(root: &Root, notes: &mut Notes) -> Vec<DpvsWorker> {
    notes.take("dpvs", "workers", dpip::read(root)).unwrap_or_default()
}

/// CPUs of isolated partitions: the kernel's list, or before 6.7 the partitions of the processes' own cgroups.
fn isolated_by_cgroups(root: &Root, pids: &[u32]) -> Result<CpuSet, ReadError> {
    match root.text(ISOLATED) {
        Ok(list) => {
            return CpuSet::from_list(list.trim())
                .map_err(|error| ReadError::new(ISOLATED, &error.to_string()));
        }
        Err(error) if !error.absent => return Err(error),
        Err(_) => {}
    }
    let mut isolated = CpuSet::new();
    for cgroup in pids.iter().filter_map(|pid| cgroup_of(root, *pid)) {
        let mut path = cgroup.as_str();
        while !path.is_empty() && path != "/" {
            let folder = format!("/sys/fs/cgroup{path}");
            let partition = root.text(&format!("{folder}/cpuset.cpus.partition"));
            if partition.is_ok_and(|state| state.trim() == "isolated") {
                let cpus = root.text(&format!("{folder}/cpuset.cpus.effective"))?;
                let cpus = CpuSet::from_list(cpus.trim());
                isolated = isolated.union(&cpus.unwrap_or_default());
            }
            path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
    }
    Ok(isolated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_process_without_a_socket_is_found_by_its_threads() {
        let dir = tempfile::tempdir().unwrap();
        for (tid, name, cpus) in
            [(70, "dpdk-app", "0-3"), (71, "eal-intr-thread", "0-3"), (72, "rte-worker-2", "2")]
        {
            let task = dir.path().join(format!("proc/70/task/{tid}"));
            std::fs::create_dir_all(&task).unwrap();
            std::fs::write(task.join("comm"), format!("{name}\n")).unwrap();
            std::fs::write(task.join("status"), format!("Cpus_allowed_list:\t{cpus}\n")).unwrap();
        }
        std::fs::write(dir.path().join("proc/70/comm"), "dpdk-app\n").unwrap();
        std::fs::create_dir_all(dir.path().join("sys")).unwrap();
        let workers = read(&Root::tree(dir.path()).unwrap());
        let [process] = workers.processes.as_slice() else { panic!("{workers:?}") };
        assert_eq!((process.pid, process.name.as_str()), (70, "dpdk-app"));
        let [worker] = process.workers.as_slice() else { panic!("{process:?}") };
        assert_eq!((worker.lcore, worker.tid), (2, Some(72)));
        assert_eq!(worker.cpus, Some(CpuSet::from_list("2").unwrap()));
    }

    fn task(tree: &Path, tid: u32, name: &str, cpus: &str) {
        let folder = tree.join(format!("proc/70/task/{tid}"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("comm"), format!("{name}\n")).unwrap();
        std::fs::write(folder.join("status"), format!("Cpus_allowed_list:\t{cpus}\n")).unwrap();
    }

    fn tree(open: &[(&str, &str)], huge: &str) -> Workers {
        let dir = tempfile::tempdir().unwrap();
        task(dir.path(), 70, "fastpath", "0-3");
        task(dir.path(), 71, "poller", "2");
        task(dir.path(), 72, "poller", "3");
        let folder = dir.path().join("proc/70");
        std::fs::create_dir_all(folder.join("fd")).unwrap();
        std::fs::create_dir_all(dir.path().join("sys/module/rte_kni")).unwrap();
        std::fs::write(folder.join("comm"), "fastpath\n").unwrap();
        std::fs::write(folder.join("status"), format!("HugetlbPages:\t{huge} kB\n")).unwrap();
        let maps = "7f2 default file=/x huge dirty=2 N1=2 kernelpagesize_kB=2048\n";
        std::fs::write(folder.join("numa_maps"), maps).unwrap();
        std::fs::write(folder.join("statm"), "9 1 1 1 0 1 0\n").unwrap();
        for (fd, target) in open {
            std::os::unix::fs::symlink(target, folder.join("fd").join(fd)).unwrap();
        }
        read(&Root::tree(dir.path()).unwrap())
    }

    #[test]
    fn a_process_with_names_of_its_own_is_found_by_its_device_and_hugepages() {
        let found = tree(&[("3", "/dev/uio0"), ("4", "/dev/kni")], "4096");
        let [process] = found.processes.as_slice() else { panic!("{found:?}") };
        let workers: Vec<_> = process.workers.iter().map(|w| (w.lcore, w.tid)).collect();
        assert_eq!(workers, [(2, Some(71)), (3, Some(72))]);
        assert_eq!(process.hugepages, Some([(nearpath_model::NodeId(1), 4 << 20)].into()));
        assert_eq!((process.uses_kni, found.kni_module), (Some(true), Some(true)));
        // A guest's devices are polled by nobody here; without hugepages or devices it is another program.
        let guest = [("3", "/dev/vfio/7"), ("4", "anon_inode:kvm-vm")];
        assert!(tree(&guest, "4096").processes.is_empty());
        assert!(tree(&[("3", "/dev/uio0")], "0").processes.is_empty());
        assert!(tree(&[("3", "/dev/null")], "4096").processes.is_empty());
    }

    #[test]
    fn isolated_partitions_are_the_kernels_list_or_those_of_the_processes() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("sys/fs/cgroup/dp.slice/a");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::create_dir_all(dir.path().join("proc/70")).unwrap();
        std::fs::write(dir.path().join("proc/70/cgroup"), "0::/dp.slice/a\n").unwrap();
        let of = |path: &str, text: &str| {
            std::fs::write(dir.path().join("sys/fs/cgroup").join(path), text).unwrap();
            isolated_by_cgroups(&Root::tree(dir.path()).unwrap(), &[70])
        };
        assert_eq!(of("dp.slice/a/cpuset.cpus.effective", "4-5\n").unwrap(), CpuSet::new());
        let partition = |state: &str| of("dp.slice/cpuset.cpus.partition", state);
        of("dp.slice/cpuset.cpus.effective", "4-7\n").unwrap();
        assert_eq!(partition("isolated invalid (x)\n").unwrap(), CpuSet::new());
        assert_eq!(partition("isolated\n").unwrap().to_string(), "4-7");
        assert_eq!(of("cpuset.cpus.isolated", "8-9\n").unwrap().to_string(), "8-9");
        assert!(of("cpuset.cpus.isolated", "all\n").is_err());
    }
}
