//! Plans for applications on DPDK: which worker polls which queues on which CPU, and the options, commands and files
//! that make it so.

use crate::{CpuId, CpuSet, NodeId, PciFunction, Plan};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of [`DpdkPlan`].
pub const DPDK_PLAN_SCHEMA: u32 = 1;

/// An application on DPDK.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DpdkApplication {
    /// DPDK's own test application.
    Testpmd,
    /// Open vSwitch with its userspace datapath.
    Ovs,
    /// The load balancer DPVS (<https://github.com/iqiyi/dpvs>).
    Dpvs,
}

/// A PCI function, as far as DPDK's placement depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DpdkNic {
    /// Its address, `0000:5e:00.0`.
    pub address: String,
    /// Its driver; `None` if it has none, or if that cannot be read.
    pub driver: Option<String>,
    /// Its NUMA node; `None` if the firmware does not say (`numa_node` is -1) or it cannot be read.
    pub node: Option<NodeId>,
    /// Interrupt vectors of its MSI-X capability: no queue beyond them can have its own.
    pub vectors: Option<u32>,
}

impl From<&PciFunction> for DpdkNic {
    /// Where the MSI-X table is unknown, as without root, the vectors are those in use.
    fn from(function: &PciFunction) -> Self {
        let in_use = u32::try_from(function.irqs.len()).ok().filter(|count| *count > 0);
        Self {
            address: function.address.clone(),
            driver: function.driver.clone(),
            node: function.numa_node,
            vectors: function.msix_vectors.or(in_use),
        }
    }
}

/// A plan for an application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DpdkPlan {
    /// The version of this document.
    pub schema: u32,
    /// What it is for.
    pub application: DpdkApplication,
    /// The NICs, in the order of DPDK's ports: by address.
    pub nics: Vec<DpdkNic>,
    /// Queues of each NIC, in each direction.
    pub queues: u32,
    /// The workers by lcore id.
    pub workers: Vec<DpdkWorker>,
    /// EAL's options, in order.
    pub eal: Vec<DpdkOption>,
    /// Options of the application, after `--`.
    pub arguments: Vec<DpdkOption>,
    /// `netif_defs` and `worker_defs` of dpvs.conf; `None` for other applications.
    pub configuration: Option<String>,
    /// Commands, in order.
    pub commands: Vec<DpdkCommand>,
    /// With a running Open vSwitch: its settings, which 'nearpath tune apply' changes and undoes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Plan>,
    /// Parameters of the kernel command line, from the next boot.
    pub kernel_command_line: Vec<DpdkOption>,
    /// Hugepages by node.
    pub hugepages: Vec<DpdkHugepages>,
    /// A systemd unit that starts the application; `None` if its package has one.
    pub unit: Option<String>,
    /// What could not be as requested, and what is not known.
    pub notes: Vec<String>,
}

/// A worker: an lcore and its CPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DpdkWorker {
    /// Its lcore id.
    pub lcore: u32,
    /// Its CPU.
    pub cpu: CpuId,
    /// The CPU's node.
    pub node: Option<NodeId>,
    /// The other CPUs of its core.
    pub siblings: CpuSet,
    /// Its role.
    pub role: crate::DpvsRole,
    /// Its receive and transmit queues, by the index of the NIC.
    pub queues: BTreeMap<u32, Vec<u32>>,
    /// The lcore that receives for it, or for which it receives.
    pub partner: Option<u32>,
    /// The reason for the CPU.
    pub why: String,
}

/// An option with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DpdkOption {
    /// The option and its value, as words of a command line.
    pub words: Vec<String>,
    /// Why.
    pub why: String,
}

/// A command with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DpdkCommand {
    /// The command, for a shell.
    pub command: String,
    /// The command that undoes it, if it can be undone.
    pub undo: Option<String>,
    /// Why.
    pub why: String,
}

/// Hugepages of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DpdkHugepages {
    /// The node.
    pub node: NodeId,
    /// The size of a page in bytes.
    pub size_bytes: u64,
    /// How many.
    pub count: u64,
    /// How the number comes about.
    pub why: String,
}
