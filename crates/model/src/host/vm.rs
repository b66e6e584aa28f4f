//! Virtual machines of KVM, as the host sees them: their threads, the vhost workers, devices and memory.

use crate::clock::GuestTsc;
use crate::memory::UsedDevice;
use crate::{CpuId, CpuSet, NodeId, Unknown};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of [`Vms`].
pub const VMS_SCHEMA: u32 = 1;

/// The virtual machines of a host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Vms {
    /// The version of this document.
    pub schema: u32,
    /// By process id.
    pub vms: Vec<Vm>,
    /// Facts that could not be read.
    pub unknown: Vec<Unknown>,
}

/// A virtual machine: a process with a descriptor of KVM.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Vm {
    /// Its process id.
    pub pid: u32,
    /// The name of its process: `qemu-system-x86`.
    pub comm: String,
    /// Its name on the command line of QEMU (`-name guest=NAME`), which libvirt sets, too.
    pub name: Option<String>,
    /// Virtual machines of the process: more than one descriptor `kvm-vm` in a process that runs several.
    pub machines: u32,
    /// Its vCPUs, by number.
    pub vcpus: Vec<Vcpu>,
    /// Its vhost workers: threads of the process from Linux 6.4 on, else of the kernel.
    pub vhost_workers: Vec<VmThread>,
    /// All other threads of the process (emulator and I/O threads).
    pub emulator: Vec<VmThread>,
    /// Its network devices on taps, by name.
    pub taps: Vec<VmTap>,
    /// Descriptors of vhost-net: one for each pair of queues.
    pub vhost_net: u32,
    /// Descriptors of other kinds of vhost by kind (`vsock`, `scsi`).
    pub vhost_others: BTreeMap<String, u32>,
    /// Event descriptors: kicks, interrupts and others.
    pub eventfds: u32,
    /// Processes that serve devices of it (vhost-user), by process id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<VmBackend>,
    /// Devices passed through (VFIO).
    pub devices: Vec<UsedDevice>,
    /// Memory of the process in bytes by node; `None` if it could not be read.
    pub memory: Option<BTreeMap<NodeId, u64>>,
    /// The part of it in hugetlb pages.
    pub huge_memory: Option<BTreeMap<NodeId, u64>>,
    /// How its time stamp counter is made from the host's; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tsc: Option<GuestTsc>,
}

impl Vm {
    /// The name, or without one that of the process, with its id.
    pub fn label(&self) -> String {
        format!("{} {}", self.name.as_deref().unwrap_or(&self.comm), self.pid)
    }

    /// Whether `wanted` is its process id or its name.
    pub fn is(&self, wanted: &str) -> bool {
        self.name.as_deref() == Some(wanted) || wanted.parse() == Ok(self.pid)
    }

    /// The node that has most of its memory, with its share in percent; `None` if unknown, or without memory.
    pub fn main_node(&self) -> Option<(NodeId, f64)> {
        let memory = self.memory.as_ref()?;
        let total: u64 = memory.values().fold(0, |sum, bytes| sum.saturating_add(*bytes));
        let (node, bytes) = memory.iter().max_by_key(|(_, bytes)| **bytes)?;
        #[allow(clippy::cast_precision_loss)]
        (total > 0).then(|| (*node, *bytes as f64 * 100.0 / total as f64))
    }
}

/// A process that serves a device of a virtual machine (vhost-user): it has events of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmBackend {
    /// Its process id.
    pub pid: u32,
    /// Its name: `ovs-vswitchd`.
    pub comm: String,
    /// The kernel's numbers of the events that both have (`eventfd-id` in `/proc/PID/fdinfo`): usually a kick and an
    /// interrupt for each queue.
    pub eventfds: Vec<u32>,
}

/// Parameters of the modules `kvm` and `vhost_net`, for all virtual machines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvmParameters {
    /// `halt_poll_ns`: how long a vCPU that halts polls at most before its thread sleeps, in ns; 0: not at all. `None` if
    /// it cannot be read.
    pub halt_poll_ns: Option<u64>,
    /// `experimental_zcopytx`: whether vhost sends large packets from the guest's memory without a copy. `None` if it
    /// cannot be read, as without vhost_net.
    pub zero_copy_tx: Option<bool>,
}

/// A vCPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vcpu {
    /// Its number, that of its descriptor (`kvm-vcpu:3`).
    pub number: u32,
    /// Its thread; `None` if unknown.
    pub thread: Option<VmThread>,
}

/// A thread of a virtual machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmThread {
    /// Its id.
    pub tid: u32,
    /// Its process, for a vhost worker that is a process of the kernel its own.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// When it started, in clock ticks since boot: with the ids, what identifies it.
    #[serde(default)]
    pub start_ticks: Option<u64>,
    /// The CPUs where it may run.
    pub cpus: Option<CpuSet>,
    /// The nodes of these CPUs, as far as they are online.
    #[serde(default)]
    pub nodes: Vec<NodeId>,
    /// The CPU that it is on, or ran on last.
    pub last_cpu: Option<CpuId>,
    /// Time on a CPU in ns, since its start (`schedstat`).
    pub run_ns: Option<u64>,
    /// Time that it was runnable but not running, in ns (`schedstat`).
    pub wait_ns: Option<u64>,
}

/// What a tap is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TapKind {
    /// A tap, `/dev/net/tun`.
    Tap,
    /// A macvtap or ipvtap, `/dev/tapN`.
    Macvtap,
}

/// A tap that a virtual machine has open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmTap {
    /// Its interface, in the network namespace where it is.
    pub name: String,
    /// Its kind.
    pub kind: TapKind,
    /// Its queues: descriptors.
    pub queues: u32,
}
