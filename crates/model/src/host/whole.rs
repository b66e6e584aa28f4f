//! The whole host.

use crate::{
    ArchIrq, CpuSet, CpuTime, Irq, IrqNumber, Nic, NicIrq, ProcessMemory, Socket, SocketOwner,
    SoftirqCounts, SoftnetCpu, Topology,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the JSON form of [`Host`]; it changes when a field changes its meaning or goes away.
pub const HOST_SCHEMA: u32 = 1;

/// The facts of one machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// [`HOST_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// What kernel runs, and on what.
    pub kernel: Kernel,
    /// CPUs, cores, caches and nodes.
    pub topology: Topology,
    /// The network interfaces of the namespace that was read.
    pub nics: Vec<Nic>,
    /// Interrupts with their affinities and counts, ascending by number.
    pub irqs: Vec<Irq>,
    /// The architecture's own interrupts (`LOC`, `RES`, `CAL`), in the kernel's order.
    pub arch_irqs: Vec<ArchIrq>,
    /// `/proc/softirqs`, by name of the vector (`NET_RX`).
    pub softirqs: Vec<SoftirqCounts>,
    /// `/proc/net/softnet_stat`, one for each CPU that it lists.
    pub softnet: Vec<SoftnetCpu>,
    /// `/proc/stat`, one for each CPU that it lists.
    pub cpu_time: Vec<CpuTime>,
    /// Counters of the whole host by name: `Udp.RcvbufErrors`, `TcpExt.RcvPruned`,
    /// `vm.compact_stall`. Those that this kernel does not have are absent.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// Sysctls by dotted name (`net.core.rps_sock_flow_entries`), as the kernel writes them.
    /// One that this kernel does not have is absent here and stands in `unknown`.
    pub sysctls: BTreeMap<String, String>,
    /// Programs that change the same settings as nearpath.
    pub daemons: Daemons,
    /// Listening TCP and bound UDP sockets.
    pub sockets: Vec<Socket>,
    /// The processes that own `sockets`, ascending by process id.
    pub owners: Vec<SocketOwner>,
    /// Memory of processes by node; only of those asked for.
    pub process_memory: Vec<ProcessMemory>,
    /// What could not be read, and why.
    pub unknown: Vec<Unknown>,
}

impl Host {
    /// Of a queue's interrupt, what it is found again by; `None` of one that belongs to no queue, or
    /// that several handlers share.
    pub fn name_of_irq(&self, number: IrqNumber) -> Option<NicIrq> {
        let irq = self.irqs.iter().find(|irq| irq.irq == number)?;
        let named = !irq.name.is_empty() && !irq.name.contains([',', ' ']);
        let serves = |nic: &&Nic| {
            let rx = nic.rx_queues.iter().map(|queue| queue.irq);
            rx.chain(nic.tx_queues.iter().map(|queue| queue.irq)).any(|irq| irq == Some(number))
        };
        let nic = self.nics.iter().find(serves).filter(|_| named)?;
        Some(NicIrq { nic: nic.name.clone(), name: irq.name.clone() })
    }
}

/// What kernel runs, and on what.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// `/proc/sys/kernel/osrelease`.
    pub release: Option<String>,
    /// `/proc/sys/kernel/hostname`.
    pub hostname: Option<String>,
    /// `/proc/cmdline`.
    pub cmdline: Option<String>,
    /// The hypervisor that this machine is a guest of (`kvm`, `xen`, `vmware`, …); `none` when
    /// it is known to be no guest.
    pub virtualisation: Option<String>,
    /// `isolcpus=` as in force (`/sys/devices/system/cpu/isolated`).
    pub isolated: Option<CpuSet>,
    /// `nohz_full=` as in force.
    pub nohz_full: Option<CpuSet>,
    /// `rcu_nocbs=` of the command line (the kernel shows it nowhere else).
    pub rcu_nocbs: Option<CpuSet>,
}

/// Programs that change the same settings as nearpath.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemons {
    /// Whether `irqbalance` runs.
    pub irqbalance: Option<bool>,
    /// Whether `tuned` runs.
    pub tuned: Option<bool>,
    /// The profile that tuned has active (`/etc/tuned/active_profile`).
    pub tuned_profile: Option<String>,
}

/// A fact that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unknown {
    /// What it is a fact about: `nic eth0`, `cpu 3`, `host`.
    pub subject: String,
    /// The field's name: `numa_node`.
    pub fact: String,
    /// Why, with the path or the request: `/sys/class/net/eth0/device/numa_node: the firmware
    /// says -1`.
    pub reason: String,
}

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotSummary {
    /// Files of the machine, as they were read.
    pub files: usize,
    /// Answers of the kernel to requests that are no files.
    pub answers: usize,
    /// Paths that the machine refused to read, with the reasons.
    pub refused: usize,
    /// Size of the file in bytes.
    pub bytes: usize,
}
