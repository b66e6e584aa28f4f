//! Workers: the threads of DPDK and Open vSwitch that poll, with what their processes report.
//!
//! Input: `/run/dpdk/*/dpdk_telemetry.v2`, `/run/openvswitch/ovs-vswitchd.*.ctl`, and the threads of `/proc` by their
//! names, for processes without a socket (`--in-memory`). Output: [`Workers`]. What a process reports is taken as its
//! word: where a thread may run and the node of a PCI function are the kernel's.

pub mod ovs;
pub mod ovsdb;
mod rpc;
pub mod telemetry;

use crate::processes::{comm, pids};
use crate::{Notes, ReadError, Root, is_pci_address, network_function, thread_cpus, topology};
use nearpath_model::eal::main_lcore_of_options;
use nearpath_model::{
    CpuSet, NodeId, PollingPort, PollingProcess, PollingRole, PollingWorker, Topology,
    WORKERS_SCHEMA, Workers,
};
use ovs::OvsFacts;
use std::collections::BTreeMap;
use telemetry::TelemetryFacts;

/// Maximum number of sockets that are asked.
const MAX_SOCKETS: usize = 64;
/// Maximum number of threads of a process whose names are read.
const MAX_THREADS: usize = 4096;

/// A thread that polls, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Polls {
    /// `rte-worker-3` (DPDK 22.11), `dpdk-worker3` (23.11), `lcore-worker-3` (21.11), `lcore-slave-3`.
    Lcore(u32),
    /// `pmd-c03/id:8`.
    Pmd(u32),
    /// A thread that every DPDK process has: `eal-intr-thread`, `dpdk-intr`, `rte_mp_handle`, `dpdk-mp-msg`.
    Eal,
}

/// Reads the workers of a host.
pub fn read(root: &Root) -> Workers {
    let mut notes = Notes::default();
    let topology = topology::read(root, &mut Notes::default());
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
    let switches = switches(root, &mut notes);
    let mut processes = Vec::new();
    for pid in notes.take("host", "processes", pids(root)).unwrap_or_default() {
        let threads = threads(root, pid);
        let (dpdk, switch) = (telemetry.get(&pid), switches.get(&pid));
        if threads.is_empty() && dpdk.is_none() && switch.is_none_or(|s| s.pmds.is_empty()) {
            continue;
        }
        processes.push(process(root, &topology, pid, &threads, dpdk, switch));
    }
    Workers { schema: WORKERS_SCHEMA, processes, unknown: notes.unknown().to_vec() }
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

/// An Open vSwitch: its configuration, and what its threads poll.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Switch {
    /// Its configuration.
    pub database: ovsdb::OvsDatabase,
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
    let database = root.answer("ovs/database", || ovsdb::ask(ovsdb::SOCKET))?;
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

fn process(
    root: &Root,
    topology: &Topology,
    pid: u32,
    threads: &[(u32, Polls)],
    dpdk: Option<&TelemetryFacts>,
    switch: Option<&OvsFacts>,
) -> PollingProcess {
    let mut workers: BTreeMap<u32, PollingWorker> = BTreeMap::new();
    let mut add = |lcore: u32, tid: Option<u32>, reported: Option<CpuSet>, role: PollingRole| {
        let kernel = tid.and_then(|tid| thread_cpus(root, pid, tid));
        let cpus = kernel.or(reported);
        workers.insert(lcore, worker(topology, lcore, tid, cpus, role));
    };
    for facts in dpdk.iter().flat_map(|facts| &facts.lcores) {
        let is_main = !threads.iter().any(|(_, polls)| *polls == Polls::Lcore(facts.id));
        let role = if is_main { PollingRole::Main } else { PollingRole::Worker };
        add(facts.id, is_main.then_some(pid), Some(facts.cpus.clone()), role);
    }
    // Before DPDK 23.03 telemetry has no lcores; the main one is the process's first thread.
    let main = dpdk.filter(|facts| facts.lcores.is_empty());
    if let Some(id) = main.and_then(|facts| main_lcore_of_options(&facts.params)) {
        add(id, Some(pid), None, PollingRole::Main);
    }
    for pmd in switch.iter().flat_map(|switch| &switch.pmds) {
        let cpu = [nearpath_model::CpuId(pmd.core)].into_iter().collect();
        add(pmd.core, None, Some(cpu), PollingRole::Pmd);
    }
    for (tid, polls) in threads {
        match polls {
            Polls::Lcore(id) => add(*id, Some(*tid), None, PollingRole::Worker),
            Polls::Pmd(core) => add(*core, Some(*tid), None, PollingRole::Pmd),
            Polls::Eal => (),
        }
    }
    for pmd in switch.iter().flat_map(|switch| &switch.pmds) {
        if let Some(worker) = workers.get_mut(&pmd.core) {
            worker.queues.clone_from(&pmd.queues);
            worker.busy_percent = pmd.busy_percent;
        }
    }
    for facts in dpdk.iter().flat_map(|facts| &facts.lcores) {
        if let (Some(worker), Some((busy, total))) = (workers.get_mut(&facts.id), facts.cycles) {
            #[allow(clippy::cast_precision_loss)]
            let share = (total > 0).then(|| busy.min(total) as f64 * 100.0 / total as f64);
            worker.busy_percent = share;
        }
    }
    let version = dpdk.and_then(|facts| facts.version.clone());
    PollingProcess {
        pid,
        name: comm(root, pid).unwrap_or_default(),
        version: switch.and_then(|switch| switch.version.clone()).or(version),
        eal: dpdk.map(|facts| facts.params.clone()).unwrap_or_default(),
        heaps: dpdk.map(|facts| facts.heaps.clone()).unwrap_or_default(),
        ports: dpdk.map(|facts| ports(root, facts)).unwrap_or_default(),
        workers: workers.into_values().collect(),
    }
}

/// The ports of a process; the node is the kernel's, as DPDK reports node 0 for one that is unknown.
fn ports(root: &Root, facts: &TelemetryFacts) -> Vec<PollingPort> {
    let port = |port: &telemetry::TelemetryPort| {
        let is_pci = is_pci_address(&port.name);
        let node = is_pci.then(|| network_function(root, &port.name).ok()?.numa_node).flatten();
        let [rx_packets, imissed, rx_nombuf] = port.counters;
        PollingPort {
            port: Some(port.id),
            name: port.name.clone(),
            node,
            rx_queues: port.rx_queues,
            tx_queues: port.tx_queues,
            rx_packets,
            imissed,
            rx_nombuf,
        }
    };
    facts.ports.iter().map(port).collect()
}

fn worker(
    topology: &Topology,
    lcore: u32,
    tid: Option<u32>,
    cpus: Option<CpuSet>,
    role: PollingRole,
) -> PollingWorker {
    let of = |set: &CpuSet| {
        let known = topology.cpus.iter().filter(|cpu| set.contains(cpu.cpu));
        known.cloned().collect::<Vec<_>>()
    };
    let own = cpus.as_ref().map(of).unwrap_or_default();
    let siblings: CpuSet = own.iter().flat_map(|cpu| cpu.siblings.iter()).collect();
    let siblings = cpus.as_ref().map(|cpus| siblings.difference(cpus)).unwrap_or_default();
    let nodes: Vec<Option<NodeId>> = own.iter().map(|cpu| cpu.node).collect();
    let node = nodes.first().copied().flatten().filter(|_| nodes.windows(2).all(|w| w[0] == w[1]));
    let (queues, busy_percent) = (BTreeMap::new(), None);
    PollingWorker { lcore, tid, cpus, siblings, node, role, queues, busy_percent }
}

/// The threads of a process that poll, or that only DPDK has.
fn threads(root: &Root, pid: u32) -> Vec<(u32, Polls)> {
    let tasks = root.list(&format!("/proc/{pid}/task")).unwrap_or_default();
    let tids =
        tasks.into_iter().take(MAX_THREADS).filter_map(|entry| entry.name.parse::<u32>().ok());
    tids.filter_map(|tid| {
        let name = root.text(&format!("/proc/{pid}/task/{tid}/comm")).ok()?;
        Some((tid, polls(&name)?))
    })
    .collect()
}

fn polls(name: &str) -> Option<Polls> {
    let lcore = ["rte-worker-", "lcore-worker-", "lcore-slave-", "dpdk-worker"];
    let id = lcore.iter().find_map(|prefix| name.strip_prefix(prefix)?.parse().ok());
    let core = || name.strip_prefix("pmd-c")?.split('/').next()?.parse().ok();
    let eal = ["eal-intr-thread", "dpdk-intr", "rte_mp_handle", "dpdk-mp-msg"];
    id.map(Polls::Lcore)
        .or_else(|| core().map(Polls::Pmd))
        .or_else(|| eal.contains(&name).then_some(Polls::Eal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_known_by_their_names() {
        for (name, expected) in [
            ("rte-worker-1", Some(Polls::Lcore(1))),
            ("dpdk-worker12", Some(Polls::Lcore(12))),
            ("lcore-worker-3", Some(Polls::Lcore(3))),
            ("lcore-slave-3", Some(Polls::Lcore(3))),
            ("pmd-c03/id:8", Some(Polls::Pmd(3))),
            ("dpdk-intr", Some(Polls::Eal)),
            ("kworker/0:1", None),
            ("rte-worker-", None),
        ] {
            assert_eq!(polls(name), expected, "{name}");
        }
    }

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
}
