//! The whole host.

use crate::{
    ArchIrq, Cgroup, Clocks, CpuManager, CpuPower, CpuSet, CpuTime, Irq, IrqNumber, KvmParameters,
    NetThread, NfQueue, Nic, NicIrq, NicKind, PciFunction, ProcessMemory, Socket, SocketOwner,
    SoftirqCounts, SoftnetCpu, Topology, Vm,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the JSON form of [`Host`]; it changes when a field is removed or changes its meaning.
pub const HOST_SCHEMA: u32 = 1;

/// The facts of one machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// [`HOST_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// The kernel and its environment.
    pub kernel: Kernel,
    /// CPUs, cores, caches and nodes.
    pub topology: Topology,
    /// The network interfaces of the namespace read.
    pub nics: Vec<Nic>,
    /// The network functions of the PCI bus, ascending by address; also those without an interface.
    #[serde(default)]
    pub devices: Vec<PciFunction>,
    /// Interrupts with their affinities and counts, ascending by number.
    pub irqs: Vec<Irq>,
    /// The interrupts of the architecture (`LOC`, `RES`, `CAL`), in the kernel's order.
    pub arch_irqs: Vec<ArchIrq>,
    /// `/proc/softirqs`, by vector name (`NET_RX`).
    pub softirqs: Vec<SoftirqCounts>,
    /// `/proc/net/softnet_stat`, one per CPU listed.
    pub softnet: Vec<SoftnetCpu>,
    /// `/proc/stat`, one per CPU listed.
    pub cpu_time: Vec<CpuTime>,
    /// Counters of the whole host by name: `Udp.RcvbufErrors`, `TcpExt.RcvPruned`, `vm.compact_stall`. Counters
    /// that this kernel lacks are absent.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// Sysctls by dotted name (`net.core.rps_sock_flow_entries`), as formatted by the kernel. A sysctl that
    /// this kernel lacks is absent here and listed in `unknown`.
    pub sysctls: BTreeMap<String, String>,
    /// Programs that change the same settings as nearpath.
    pub daemons: Daemons,
    /// Listening TCP and bound UDP sockets.
    pub sockets: Vec<Socket>,
    /// The processes that own `sockets`, ascending by process id.
    pub owners: Vec<SocketOwner>,
    /// Cgroups of the owners that have a CPU limit, by path; only if sockets are read.
    #[serde(default)]
    pub cgroups: Vec<Cgroup>,
    /// Kernel threads that run softirqs, NAPI and vhost, ascending by id.
    #[serde(default)]
    pub net_threads: Vec<NetThread>,
    /// Frequencies, idle states and temperature.
    #[serde(default)]
    pub power: CpuPower,
    /// What the kubelet's CPU manager has assigned; `None` without one, and where its policy assigns none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<CpuManager>,
    /// The firewall's queues to programs, of the network namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nfqueues: Vec<NfQueue>,
    /// The clocks that transmission is scheduled by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clocks: Option<Clocks>,
    /// Memory of processes by node; only of those requested.
    pub process_memory: Vec<ProcessMemory>,
    /// Virtual machines of KVM, ascending by process id; only if sockets are read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vms: Vec<Vm>,
    /// Parameters of KVM and vhost; only if there are virtual machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvm: Option<KvmParameters>,
    /// What could not be read, with the reason.
    pub unknown: Vec<Unknown>,
}

impl Host {
    /// What identifies a queue's interrupt when its number changes; `None` for an interrupt that belongs to no
    /// queue, is shared by several handlers, or has the name of another.
    pub fn name_of_irq(&self, number: IrqNumber) -> Option<NicIrq> {
        let irq = self.irqs.iter().find(|irq| irq.irq == number)?;
        let is_alone = self.irqs.iter().filter(|other| other.name == irq.name).count() == 1;
        let named = is_alone && !irq.name.is_empty() && !irq.name.contains([',', ' ']);
        let serves = |nic: &&Nic| {
            let rx = nic.rx_queues.iter().map(|queue| queue.irq);
            rx.chain(nic.tx_queues.iter().map(|queue| queue.irq)).any(|irq| irq == Some(number))
        };
        let nic = self.nics.iter().find(serves).filter(|_| named)?;
        Some(NicIrq { nic: nic.name.clone(), name: irq.name.clone() })
    }

    /// The interfaces that packets of an interface come through: itself, and those below it: the lower device of a VLAN or a
    /// macvlan, the ports of a bond, a team or a bridge, the virtual function of a synthetic interface.
    pub fn with_lower(&self, name: &str) -> Vec<&Nic> {
        let mut found: Vec<&Nic> = self.nics.iter().filter(|nic| nic.name == name).collect();
        let mut at = 0;
        while let Some(&upper) = found.get(at) {
            let link = match upper.kind {
                NicKind::Vlan | NicKind::Macvlan | NicKind::Macvtap => upper.link.as_deref(),
                _ => None,
            };
            let is_below = |nic: &&Nic| {
                nic.netns == upper.netns
                    && (nic.master.as_deref() == Some(upper.name.as_str())
                        || link == Some(nic.name.as_str()))
            };
            let below: Vec<&Nic> = self.nics.iter().filter(is_below).collect();
            for nic in below {
                if !found.iter().any(|known| known.ifindex == nic.ifindex) {
                    found.push(nic);
                }
            }
            at += 1;
        }
        found
    }

    /// The virtual function that carries the packets of a synthetic interface of Hyper-V, whose own queues are then idle
    /// (drivers/net/hyperv/netvsc_drv.c `netvsc_vf_changed`).
    pub fn data_path_of(&self, nic: &Nic) -> Option<&Nic> {
        let is_synthetic = nic.driver.as_deref() == Some("hv_netvsc");
        let is_vf = |other: &&Nic| {
            other.master.as_deref() == Some(nic.name.as_str())
                && other.netns == nic.netns
                && other.state.as_deref() != Some("down")
        };
        self.nics.iter().filter(|_| is_synthetic).find(is_vf)
    }
}

/// The kernel and its environment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    /// `/proc/sys/kernel/osrelease`.
    pub release: Option<String>,
    /// `/proc/sys/kernel/hostname`.
    pub hostname: Option<String>,
    /// `/proc/cmdline`.
    pub cmdline: Option<String>,
    /// The hypervisor (`kvm`, `xen`, `vmware`, …); `none` if the machine is known to be bare metal.
    pub virtualisation: Option<String>,
    /// `isolcpus=` in effect (`/sys/devices/system/cpu/isolated`).
    pub isolated: Option<CpuSet>,
    /// The CPUs of isolated partitions of cgroups (`cpuset.cpus.isolated` of the root cgroup), which the list of `isolated`
    /// does not have; `None` before Linux 6.7, and without cgroup v2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolated_by_cgroups: Option<CpuSet>,
    /// `nohz_full=` in effect.
    pub nohz_full: Option<CpuSet>,
    /// `rcu_nocbs=` of the command line (the kernel does not show it elsewhere).
    pub rcu_nocbs: Option<CpuSet>,
}

impl Kernel {
    /// The CPUs in no scheduling domain: isolated at boot, or by cgroups since; `None` if neither list is known.
    pub fn all_isolated(&self) -> Option<CpuSet> {
        let lists = [&self.isolated, &self.isolated_by_cgroups];
        lists.into_iter().flatten().cloned().reduce(|all, cpus| all.union(&cpus))
    }
}

/// Programs that change the same settings as nearpath.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Daemons {
    /// Whether `irqbalance` is running.
    pub irqbalance: Option<bool>,
    /// Whether `tuned` is running.
    pub tuned: Option<bool>,
    /// The active profile of tuned (`/etc/tuned/active_profile`).
    pub tuned_profile: Option<String>,
}

/// A fact that could not be read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unknown {
    /// The subject of the fact: `nic eth0`, `cpu 3`, `host`.
    pub subject: String,
    /// The field's name: `numa_node`.
    pub fact: String,
    /// The reason, with the path or the request: `/sys/class/net/eth0/device/numa_node: the firmware reports -1`.
    pub reason: String,
}

/// Contents of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotSummary {
    /// Files of the machine, as read.
    pub files: usize,
    /// Answers of the kernel to requests other than files.
    pub answers: usize,
    /// Paths that could not be read, with the reasons.
    pub refused: usize,
    /// Size of the file in bytes.
    pub bytes: usize,
}
