//! Workers: threads that poll (DPDK's lcores, Open vSwitch's PMD threads), with their processes and ports, and what was
//! measured of them in an interval.

use crate::memory::{NotAvailable, UsedDevice};
use crate::{CpuId, CpuSet, EventCost, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of [`Workers`].
pub const WORKERS_SCHEMA: u32 = 1;

/// The processes that poll, with their workers: a still picture, or the result of a measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Workers {
    /// The version of this document.
    pub schema: u32,
    /// Length of the measurement, in seconds; `None` of a still picture.
    #[serde(default)]
    pub duration_s: Option<f64>,
    /// By process id.
    pub processes: Vec<PollingProcess>,
    /// CPUs that isolated partitions of cgroups keep from the scheduler (`cpuset.cpus.isolated`); the boot parameter's are
    /// in the host. `None` if unknown.
    #[serde(default)]
    pub isolated_by_cgroups: Option<CpuSet>,
    /// Whether KNI's kernel module is loaded, which DPDK removed in 23.11.
    #[serde(default)]
    pub kni_module: Option<bool>,
    /// What ran on the workers' CPUs in the interval; empty of a still picture.
    #[serde(default)]
    pub cpus: Vec<WorkerCpu>,
    /// Nanoseconds that tasks ran on workers' CPUs without room to be counted.
    #[serde(default)]
    pub lost_ns: u64,
    /// What could not be measured, with the reason.
    #[serde(default)]
    pub not_available: Vec<NotAvailable>,
    /// What observing cost.
    #[serde(default)]
    pub cost: Option<EventCost>,
    /// Facts that could not be read.
    pub unknown: Vec<crate::Unknown>,
}

/// A process with workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PollingProcess {
    /// Its process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// DPDK's or Open vSwitch's version, as the process reports it.
    pub version: Option<String>,
    /// EAL's options, as the process reports them.
    pub eal: Vec<String>,
    /// Memory of DPDK's heaps in bytes, by node as DPDK sees it.
    pub heaps: BTreeMap<NodeId, u64>,
    /// Its packet buffers and other pools.
    #[serde(default)]
    pub pools: Vec<PollingPool>,
    /// Bytes in hugetlb pages by node, by the kernel; `None` if unknown.
    #[serde(default)]
    pub hugepages: Option<BTreeMap<NodeId, u64>>,
    /// Devices that it has open through vfio or uio.
    #[serde(default)]
    pub devices: Vec<UsedDevice>,
    /// Whether it has the device of KNI open; `None` if unknown.
    #[serde(default)]
    pub uses_kni: Option<bool>,
    /// Settings of Open vSwitch (`other_config` of its database).
    #[serde(default)]
    pub other_config: BTreeMap<String, String>,
    /// Its ports.
    pub ports: Vec<PollingPort>,
    /// Its workers, by lcore id.
    pub workers: Vec<PollingWorker>,
}

/// A pool of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PollingPool {
    /// Its name.
    pub name: String,
    /// Its node as DPDK has it; `None` if it may be on any.
    pub node: Option<NodeId>,
    /// Elements.
    pub elements: Option<u64>,
    /// Bytes of an element with its header and trailer.
    pub element_bytes: Option<u64>,
}

/// A port of a process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PollingPort {
    /// DPDK's number, or `None` in Open vSwitch.
    pub port: Option<u32>,
    /// Its name: a PCI address, a virtual device, or the interface's name in Open vSwitch.
    pub name: String,
    /// Its NUMA node, of a PCI function as the kernel has it. DPDK reports 0 for a node that is unknown.
    pub node: Option<NodeId>,
    /// Receive queues.
    pub rx_queues: Option<u32>,
    /// Transmit queues.
    pub tx_queues: Option<u32>,
    /// `pmd-rxq-affinity` of Open vSwitch.
    #[serde(default)]
    pub rxq_affinity: Option<String>,
    /// Packets received, a total.
    pub rx_packets: Option<u64>,
    /// The same by receive queue, where the process reports it.
    #[serde(default)]
    pub queue_packets: Vec<u64>,
    /// Packets that the NIC dropped as its queue was full, a total.
    pub imissed: Option<u64>,
    /// Packets dropped as no buffer was free, a total.
    pub rx_nombuf: Option<u64>,
    /// The same in the interval; `None` of a still picture.
    #[serde(default)]
    pub interval: Option<PortRates>,
}

/// What a port counted in an interval; `None` if it does not report it, or was reset.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PortRates {
    /// Packets received per second.
    pub rx_packets_per_s: Option<f64>,
    /// Share of them by receive queue, in percent; empty if there were none.
    pub queue_percent: Vec<f64>,
    /// Packets per second dropped by the NIC as its queue was full.
    pub imissed_per_s: Option<f64>,
    /// Packets per second dropped as no buffer was free.
    pub rx_nombuf_per_s: Option<f64>,
}

/// The role of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PollingRole {
    /// EAL's main lcore.
    Main,
    /// Another lcore.
    #[default]
    Worker,
    /// A PMD thread of Open vSwitch.
    Pmd,
    /// A worker of DPVS that forwards.
    Forwarding,
    /// A worker of DPVS that only receives, for another.
    IsolatedRx,
    /// A worker of DPVS that serves kernel network interfaces.
    Kni,
}

impl PollingRole {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Worker => "worker",
            Self::Pmd => "pmd",
            Self::Forwarding => "forwarding",
            Self::IsolatedRx => "isolated-rx",
            Self::Kni => "kni",
        }
    }
}

/// A worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PollingWorker {
    /// Its lcore id; in Open vSwitch the number of its core.
    pub lcore: u32,
    /// Its thread.
    pub tid: Option<u32>,
    /// The CPUs on which it may run; more than one if it floats.
    pub cpus: Option<CpuSet>,
    /// The other CPUs of its core.
    pub siblings: CpuSet,
    /// The node of its CPUs, if it is one.
    pub node: Option<NodeId>,
    /// The node that its process has for it, where it reports one: of simulated PMD threads the only one.
    #[serde(default)]
    pub reported_node: Option<NodeId>,
    /// Its role.
    pub role: PollingRole,
    /// Whether it takes only queues that `pmd-rxq-affinity` of Open vSwitch assigns to it.
    #[serde(default)]
    pub is_isolated: Option<bool>,
    /// Its receive queues by port, where the process reports them.
    pub queues: BTreeMap<String, Vec<u32>>,
    /// Share of its cycles spent on packets since its counters were reset, in percent.
    pub busy_percent: Option<f64>,
    /// Totals.
    #[serde(default)]
    pub counts: WorkerCounts,
    /// What it did in the interval; `None` of a still picture.
    #[serde(default)]
    pub interval: Option<WorkerActivity>,
}

/// Totals of a worker since its start, or since its counters were reset; `None` if they are not reported.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerCounts {
    /// Cycles spent on packets.
    pub busy_cycles: Option<u64>,
    /// All cycles.
    pub total_cycles: Option<u64>,
    /// Polls of its queues.
    pub polls: Option<u64>,
    /// Those without a packet.
    pub empty_polls: Option<u64>,
    /// Those that returned as many packets as they may.
    pub full_bursts: Option<u64>,
    /// Packets received.
    pub packets: Option<u64>,
    /// Time that its thread ran, in ns (`/proc/PID/task/TID/schedstat`).
    pub run_ns: Option<u64>,
    /// Time that it could have run and did not, in ns.
    pub delay_ns: Option<u64>,
    /// Switches to another task when it could have gone on.
    pub involuntary_switches: Option<u64>,
}

/// What a worker did in an interval; `None` if it is not known.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerActivity {
    /// Share of its cycles spent on packets, in percent.
    pub busy_percent: Option<f64>,
    /// Share of polls without a packet, in percent.
    pub empty_poll_percent: Option<f64>,
    /// Share of polls that returned as many packets as they may, in percent.
    pub full_burst_percent: Option<f64>,
    /// Packets for each poll that had any.
    pub packets_per_burst: Option<f64>,
    /// Packets received per second.
    pub packets_per_s: Option<f64>,
    /// Share of the time that its thread ran, in percent.
    pub ran_percent: Option<f64>,
    /// Share of the time that it could have run and did not, in percent.
    pub delayed_percent: Option<f64>,
    /// Switches to another task when it could have gone on, per second.
    pub involuntary_switches_per_s: Option<f64>,
    /// Share of the time that other tasks ran on its CPU, in percent; `None` also if it floats over several.
    pub others_percent: Option<f64>,
    /// The longest that another task ran there at a stretch, in ns.
    pub longest_ns: Option<u64>,
    /// The hypervisor took this share of the time of its CPU, in percent.
    pub stolen_percent: Option<f64>,
    /// Whether it polls and others took enough of its CPU to matter; `None` if that is unknown.
    pub is_disturbed: Option<bool>,
}

/// A CPU of workers in an interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerCpu {
    /// Its number.
    pub cpu: CpuId,
    /// The tasks that ran there, longest first: `idle` is none of them.
    pub tasks: Vec<CpuTask>,
    /// Time without a task, in ns; `None` if switches were not observed.
    pub idle_ns: Option<u64>,
    /// Interrupts of devices per second.
    pub device_interrupts_per_s: Option<f64>,
    /// Timer interrupts per second (`LOC`; arm64: `arch_timer` is an interrupt of a device).
    pub timer_ticks_per_s: Option<f64>,
    /// TLB shootdowns per second (`TLB`).
    pub tlb_shootdowns_per_s: Option<f64>,
    /// Calls of other CPUs per second (`CAL`).
    pub calls_per_s: Option<f64>,
    /// Requests to reschedule per second (`RES`).
    pub reschedules_per_s: Option<f64>,
    /// Softirqs per second by vector, those that ran.
    pub softirqs_per_s: BTreeMap<String, f64>,
    /// Share of its time that the hypervisor took, in percent.
    pub stolen_percent: Option<f64>,
    /// Its frequency at the end, in kHz.
    pub frequency_khz: Option<u64>,
    /// Its highest frequency, in kHz.
    pub max_frequency_khz: Option<u64>,
}

/// A task on a CPU of workers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTask {
    /// Its process, as `/proc` numbers it; 0 if it is in another PID namespace.
    pub pid: u32,
    /// Its thread.
    pub tid: u32,
    /// The thread's name.
    pub comm: String,
    /// Time that it ran there, in ns.
    pub ran_ns: u64,
    /// How often it was switched out there.
    pub runs: u64,
    /// The longest that it ran at a stretch, in ns.
    pub longest_ns: u64,
    /// Whether it is a worker.
    pub is_worker: bool,
}

impl WorkerCpu {
    /// A CPU of which nothing is known.
    pub fn new(cpu: CpuId) -> Self {
        Self {
            cpu,
            tasks: Vec::new(),
            idle_ns: None,
            device_interrupts_per_s: None,
            timer_ticks_per_s: None,
            tlb_shootdowns_per_s: None,
            calls_per_s: None,
            reschedules_per_s: None,
            softirqs_per_s: BTreeMap::new(),
            stolen_percent: None,
            frequency_khz: None,
            max_frequency_khz: None,
        }
    }
}
