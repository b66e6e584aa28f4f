//! One process that polls: its workers, ports and memory, from what it reports and what the kernel knows of it.

use super::dpip::DpvsWorker;
use super::ovs::OvsFacts;
use super::ovsdb::{OvsDatabase, OvsInterface};
use super::telemetry::{TelemetryFacts, TelemetryPort};
use super::threads::{self, Polls};
use crate::{Notes, Root, is_pci_address, memory, network_function, placement, thread_cpus};
use nearpath_model::eal::main_lcore_of_options;
use nearpath_model::{
    CpuId, CpuSet, NodeId, PollingPort, PollingProcess, PollingRole, PollingWorker, Topology,
};
use std::collections::BTreeMap;

/// Maximum number of devices of a process.
const MAX_DEVICES: usize = 64;

/// What a process reports of itself.
pub(super) struct Reported<'a> {
    /// Its name.
    pub name: String,
    /// By telemetry.
    pub dpdk: Option<&'a TelemetryFacts>,
    /// By Open vSwitch's sockets.
    pub switch: Option<&'a (OvsFacts, Option<OvsDatabase>)>,
    /// By DPVS's tool.
    pub dpvs: Vec<DpvsWorker>,
}

/// Puts a process together. `threads` are those that poll.
pub(super) fn process(
    root: &Root,
    notes: &mut Notes,
    topology: &Topology,
    pid: u32,
    threads: &[(u32, Polls)],
    reported: &Reported<'_>,
) -> PollingProcess {
    let Reported { name, dpdk, switch, dpvs } = reported;
    let mut workers = workers(root, topology, pid, threads, reported);
    for worker in workers.values_mut() {
        if let Some(tid) = worker.tid {
            threads::count(root, pid, tid, &mut worker.counts);
        }
    }
    let settings = switch.and_then(|(_, settings)| settings.as_ref());
    let version = dpdk.and_then(|facts| facts.version.clone());
    let mut ports = dpdk.map(|facts| dpdk_ports(root, facts)).unwrap_or_default();
    ports.extend(settings.into_iter().flat_map(|settings| {
        let polled = |name: &str| workers.values().any(|w| w.queues.contains_key(name));
        settings.interfaces.iter().filter(move |(name, _)| polled(name)).map(|(name, of)| {
            let queues = workers.values().filter_map(|worker| worker.queues.get(name));
            let queues = queues.map(Vec::len).sum::<usize>();
            switch_port(root, name, of, u32::try_from(queues).ok())
        })
    }));
    let memory = memory::read(root, notes, &[pid]).pop();
    let devices = memory.as_ref().and_then(|memory| memory.devices.clone()).unwrap_or_default();
    let devices = devices.iter().flat_map(|device| placement::used_devices(root, device));
    let devices = devices.filter(|device| device.name.is_some()).take(MAX_DEVICES);
    PollingProcess {
        pid,
        name: name.clone(),
        version: switch.and_then(|(switch, _)| switch.version.clone()).or(version),
        eal: dpdk.map(|facts| facts.params.clone()).unwrap_or_default(),
        heaps: dpdk.map(|facts| facts.heaps.clone()).unwrap_or_default(),
        pools: dpdk.map(|facts| facts.pools.clone()).unwrap_or_default(),
        hugepages: memory.map(|memory| memory.huge_bytes),
        devices: devices.collect(),
        uses_kni: Some(threads::descriptors(root, pid))
            .filter(|files| !files.is_empty())
            .map(|files| files.iter().any(|file| file == "/dev/kni")),
        other_config: settings.map(|settings| settings.other_config.clone()).unwrap_or_default(),
        ports,
        workers: {
            assign_roles(&mut workers, dpvs);
            workers.into_values().collect()
        },
    }
}

fn workers(
    root: &Root,
    topology: &Topology,
    pid: u32,
    threads: &[(u32, Polls)],
    reported: &Reported<'_>,
) -> BTreeMap<u32, PollingWorker> {
    let Reported { dpdk, switch, .. } = reported;
    let mut workers: BTreeMap<u32, PollingWorker> = BTreeMap::new();
    let mut add = |lcore: u32, tid: Option<u32>, reported: Option<CpuSet>, role: PollingRole| {
        let kernel = tid.and_then(|tid| thread_cpus(root, pid, tid));
        workers.insert(lcore, worker(topology, lcore, tid, kernel.or(reported), role));
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
    let pmds = || switch.iter().flat_map(|(switch, _)| &switch.pmds);
    for pmd in pmds() {
        let cpu = [CpuId(pmd.core)].into_iter().collect();
        add(pmd.core, None, Some(cpu), PollingRole::Pmd);
    }
    for (tid, polls) in threads {
        match polls {
            Polls::Lcore(id) if *tid == pid => add(*id, Some(*tid), None, PollingRole::Main),
            Polls::Lcore(id) => add(*id, Some(*tid), None, PollingRole::Worker),
            Polls::Pmd(core) => add(*core, Some(*tid), None, PollingRole::Pmd),
            Polls::Eal => (),
        }
    }
    for pmd in pmds() {
        if let Some(worker) = workers.get_mut(&pmd.core) {
            worker.queues.clone_from(&pmd.queues);
            worker.busy_percent = pmd.busy_percent;
            worker.reported_node = pmd.node;
            worker.is_isolated = Some(pmd.isolated);
            worker.counts = pmd.counts.clone();
        }
    }
    for facts in dpdk.iter().flat_map(|facts| &facts.lcores) {
        let Some(worker) = workers.get_mut(&facts.id) else { continue };
        worker.reported_node = facts.node;
        if let Some((busy, total)) = facts.cycles {
            #[allow(clippy::cast_precision_loss)]
            let share = (total > 0).then(|| busy.min(total) as f64 * 100.0 / total as f64);
            worker.busy_percent = share;
            (worker.counts.busy_cycles, worker.counts.total_cycles) = (Some(busy), Some(total));
        }
    }
    workers
}

/// Adds what DPVS's tool shows.
fn assign_roles(workers: &mut BTreeMap<u32, PollingWorker>, dpvs: &[DpvsWorker]) {
    for of in dpvs {
        let Some(worker) = workers.get_mut(&of.lcore) else { continue };
        worker.role = of.role;
        worker.reported_node = of.node;
        let counts = &mut worker.counts;
        (counts.polls, counts.empty_polls) = (of.counts.polls, of.counts.empty_polls);
        (counts.full_bursts, counts.packets) = (of.counts.full_bursts, of.counts.packets);
        let (polls, empty) = (counts.polls.unwrap_or(0), counts.empty_polls.unwrap_or(0));
        #[allow(clippy::cast_precision_loss)]
        let busy = (polls > 0).then(|| polls.saturating_sub(empty) as f64 * 100.0 / polls as f64);
        worker.busy_percent = busy.or(worker.busy_percent);
        for word in of.queues.split_whitespace() {
            let queue = word.strip_prefix("rx").and_then(|rest| rest.split_once(':'));
            if let Some((port, ids)) = queue {
                let ids = ids.split(',').filter_map(|id| id.parse().ok()).collect();
                worker.queues.insert(port.chars().take(64).collect(), ids);
            }
        }
    }
}

/// The node of a PCI function by the kernel, as DPDK reports node 0 for one that is unknown; `None` of other names.
fn pci_node(root: &Root, name: &str) -> Option<NodeId> {
    is_pci_address(name).then(|| network_function(root, name).ok()?.numa_node).flatten()
}

fn dpdk_ports(root: &Root, facts: &TelemetryFacts) -> Vec<PollingPort> {
    let port = |port: &TelemetryPort| {
        let [rx_packets, imissed, rx_nombuf] = port.counters;
        PollingPort {
            port: Some(port.id),
            name: port.name.clone(),
            node: pci_node(root, &port.name),
            rx_queues: port.rx_queues,
            tx_queues: port.tx_queues,
            rx_packets,
            queue_packets: port.queue_packets.clone(),
            imissed,
            rx_nombuf,
            ..PollingPort::default()
        }
    };
    facts.ports.iter().map(port).collect()
}

/// A port of Open vSwitch.
fn switch_port(root: &Root, name: &str, of: &OvsInterface, queues: Option<u32>) -> PollingPort {
    /// Queues of a port whose counters are read: `RTE_MAX_QUEUES_PER_PORT`.
    const MAX_QUEUES: u32 = 1024;
    let count = |name: &str| of.statistics.get(name).copied();
    let by_queue = (0..MAX_QUEUES).map_while(|queue| count(&format!("rx_q{queue}_packets")));
    PollingPort {
        name: name.to_owned(),
        node: of.node(root),
        rx_queues: queues,
        rxq_affinity: of.other_config.get("pmd-rxq-affinity").cloned(),
        rx_packets: count("rx_packets"),
        queue_packets: by_queue.collect(),
        imissed: count("rx_missed_errors"),
        ..PollingPort::default()
    }
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
    PollingWorker { lcore, tid, cpus, siblings, node, role, ..PollingWorker::default() }
}
