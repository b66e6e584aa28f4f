//! What `show … --json` prints: one document for each subject, and one of all.

use crate::queues::{QueueRow, queue_rows};
use nearpath_model::{
    ArchIrq, CpuId, CpuManager, CpuSet, CpuTime, Daemons, HOST_SCHEMA, Host, Hugepages, Irq,
    Kernel, Llc, LlcId, Nic, NodeId, PciFunction, SoftirqCounts, SoftnetCpu, Topology, Unknown,
};
use serde::Serialize;
use std::collections::BTreeMap;

/// `show cpus --json`.
#[derive(Debug, Serialize)]
pub struct CpusDocument<'a> {
    /// [`HOST_SCHEMA`].
    pub schema: u32,
    /// All present CPUs, ascending.
    pub cpus: Vec<CpuJson<'a>>,
    /// NUMA nodes, ascending.
    pub nodes: Vec<NodeJson<'a>>,
}

/// `show nodes --json`.
#[derive(Debug, Serialize)]
pub struct NodesDocument<'a> {
    /// [`HOST_SCHEMA`].
    pub schema: u32,
    /// NUMA nodes, ascending.
    pub nodes: Vec<NodeJson<'a>>,
    /// What could not be read of the host, and why.
    pub unknown: &'a [Unknown],
}

/// `show nics --json`.
#[derive(Debug, Serialize)]
pub struct NicsDocument<'a> {
    /// [`HOST_SCHEMA`].
    pub schema: u32,
    /// Interfaces of the namespace that was read.
    pub nics: &'a [Nic],
    /// What could not be read of the host, and why.
    pub unknown: &'a [Unknown],
}

/// `show devices --json`.
#[derive(Debug, Serialize)]
pub struct DevicesDocument<'a> {
    /// [`HOST_SCHEMA`].
    pub schema: u32,
    /// Network functions of the PCI bus, ascending by address.
    pub devices: &'a [PciFunction],
    /// What could not be read of the host, and why.
    pub unknown: &'a [Unknown],
}

/// `show queues --json`.
#[derive(Debug, Serialize)]
pub struct QueuesDocument<'a> {
    /// [`HOST_SCHEMA`].
    pub schema: u32,
    /// Queues by NIC, receive queues first.
    pub queues: Vec<QueueRow>,
    /// What could not be read of the host, and why.
    pub unknown: &'a [Unknown],
}

/// `show irqs --json`.
#[derive(Debug, Serialize)]
pub struct IrqsDocument<'a> {
    /// [`HOST_SCHEMA`].
    pub schema: u32,
    /// Interrupts, ascending by number.
    pub irqs: &'a [Irq],
    /// The architecture's own interrupts (`LOC`, `RES`, `CAL`).
    pub arch_irqs: &'a [ArchIrq],
    /// What could not be read of the host, and why.
    pub unknown: &'a [Unknown],
}

/// `show softnet --json`.
#[derive(Debug, Serialize)]
pub struct SoftnetDocument<'a> {
    /// [`HOST_SCHEMA`].
    pub schema: u32,
    /// `/proc/net/softnet_stat`.
    pub softnet: &'a [SoftnetCpu],
    /// `/proc/softirqs`.
    pub softirqs: &'a [SoftirqCounts],
    /// What could not be read of the host, and why.
    pub unknown: &'a [Unknown],
}

/// `show all --json`: all facts in one document; `cpus` and `nodes` are those of `show cpus`.
#[derive(Debug, Serialize)]
pub struct AllDocument<'a> {
    /// [`HOST_SCHEMA`].
    pub schema: u32,
    /// What kernel runs, and on what.
    pub kernel: &'a Kernel,
    /// CPUs that this boot could ever have.
    pub possible: &'a CpuSet,
    /// CPUs that are plugged in.
    pub present: &'a CpuSet,
    /// CPUs that run.
    pub online: &'a CpuSet,
    /// All present CPUs, ascending.
    pub cpus: Vec<CpuJson<'a>>,
    /// Last-level caches, ascending.
    pub llcs: &'a [Llc],
    /// NUMA nodes, ascending.
    pub nodes: Vec<NodeJson<'a>>,
    /// Interfaces of the namespace that was read.
    pub nics: &'a [Nic],
    /// Network functions of the PCI bus, ascending by address.
    pub devices: &'a [PciFunction],
    /// Queues by NIC, receive queues first.
    pub queues: Vec<QueueRow>,
    /// Interrupts, ascending by number.
    pub irqs: &'a [Irq],
    /// The architecture's own interrupts (`LOC`, `RES`, `CAL`).
    pub arch_irqs: &'a [ArchIrq],
    /// `/proc/softirqs`.
    pub softirqs: &'a [SoftirqCounts],
    /// `/proc/net/softnet_stat`.
    pub softnet: &'a [SoftnetCpu],
    /// `/proc/stat`.
    pub cpu_time: &'a [CpuTime],
    /// Sysctls by dotted name.
    pub sysctls: &'a BTreeMap<String, String>,
    /// Programs that change the same settings as nearpath.
    pub daemons: &'a Daemons,
    /// What the kubelet's CPU manager has assigned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<&'a CpuManager>,
    /// What could not be read of the host, and why.
    pub unknown: &'a [Unknown],
}

/// A CPU.
#[derive(Debug, Serialize)]
pub struct CpuJson<'a> {
    cpu: CpuId,
    online: bool,
    core: Option<u32>,
    package: Option<u32>,
    die: Option<u32>,
    cluster: Option<u32>,
    llc: Option<LlcId>,
    node: Option<NodeId>,
    siblings: Option<&'a CpuSet>,
    kind: Option<&'a str>,
    capacity: Option<u32>,
}

/// A NUMA node.
#[derive(Debug, Serialize)]
pub struct NodeJson<'a> {
    node: NodeId,
    cpus: &'a CpuSet,
    memory_bytes: Option<u64>,
    free_bytes: Option<u64>,
    distances: &'a BTreeMap<NodeId, u32>,
    hugepages: &'a BTreeMap<u64, Hugepages>,
    numastat: &'a BTreeMap<String, u64>,
}

/// The CPUs of a host as JSON.
pub fn cpus(host: &Host) -> CpusDocument<'_> {
    let topology = &host.topology;
    CpusDocument { schema: HOST_SCHEMA, cpus: cpu_list(topology), nodes: node_list(topology) }
}

/// The nodes of a host as JSON.
pub fn nodes(host: &Host) -> NodesDocument<'_> {
    let nodes = node_list(&host.topology);
    NodesDocument { schema: HOST_SCHEMA, nodes, unknown: &host.unknown }
}

/// The interfaces of a host as JSON.
pub fn nics(host: &Host) -> NicsDocument<'_> {
    NicsDocument { schema: HOST_SCHEMA, nics: &host.nics, unknown: &host.unknown }
}

/// The network functions of a host as JSON.
pub fn devices(host: &Host) -> DevicesDocument<'_> {
    DevicesDocument { schema: HOST_SCHEMA, devices: &host.devices, unknown: &host.unknown }
}

/// The queues of a host as JSON.
pub fn queues(host: &Host) -> QueuesDocument<'_> {
    QueuesDocument { schema: HOST_SCHEMA, queues: queue_rows(host), unknown: &host.unknown }
}

/// The interrupts of a host as JSON.
pub fn irqs(host: &Host) -> IrqsDocument<'_> {
    IrqsDocument {
        schema: HOST_SCHEMA,
        irqs: &host.irqs,
        arch_irqs: &host.arch_irqs,
        unknown: &host.unknown,
    }
}

/// The softirq counters of a host as JSON.
pub fn softnet(host: &Host) -> SoftnetDocument<'_> {
    SoftnetDocument {
        schema: HOST_SCHEMA,
        softnet: &host.softnet,
        softirqs: &host.softirqs,
        unknown: &host.unknown,
    }
}

/// All facts of a host as JSON.
pub fn all(host: &Host) -> AllDocument<'_> {
    let topology = &host.topology;
    AllDocument {
        schema: HOST_SCHEMA,
        kernel: &host.kernel,
        possible: &topology.possible,
        present: &topology.present,
        online: &topology.online,
        cpus: cpu_list(topology),
        llcs: &topology.llcs,
        nodes: node_list(topology),
        nics: &host.nics,
        devices: &host.devices,
        queues: queue_rows(host),
        irqs: &host.irqs,
        arch_irqs: &host.arch_irqs,
        softirqs: &host.softirqs,
        softnet: &host.softnet,
        cpu_time: &host.cpu_time,
        sysctls: &host.sysctls,
        daemons: &host.daemons,
        kubelet: host.kubelet.as_ref(),
        unknown: &host.unknown,
    }
}

fn cpu_list(topology: &Topology) -> Vec<CpuJson<'_>> {
    let cpus = topology.cpus.iter().map(|cpu| CpuJson {
        cpu: cpu.cpu,
        online: cpu.online,
        core: cpu.core,
        package: cpu.package,
        die: cpu.die,
        cluster: cpu.cluster,
        llc: cpu.llc,
        node: cpu.node,
        siblings: Some(&cpu.siblings).filter(|siblings| !siblings.is_empty()),
        kind: cpu.kind.as_deref(),
        capacity: cpu.capacity,
    });
    cpus.collect()
}

fn node_list(topology: &Topology) -> Vec<NodeJson<'_>> {
    let nodes = topology.nodes.iter().map(|node| NodeJson {
        node: node.node,
        cpus: &node.cpus,
        memory_bytes: node.memory_bytes,
        free_bytes: node.free_bytes,
        distances: &node.distances,
        hugepages: &node.hugepages,
        numastat: &node.numastat,
    });
    nodes.collect()
}
