//! A host at a moment, from what was observed shortly before: what `nearpath top` shows. Counts are of the time that their
//! source observed, given beside them; rates are counts divided by it.

use crate::{CpuId, Diagnosis, NodeId};

/// A host at a moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// Name of the host; empty if nothing was observed.
    pub host: String,
    /// The moment, in microseconds since 1970.
    pub time_us: i64,
    /// Time before it that counts are of, in seconds, where their source was read so often.
    pub window_s: f64,
    /// Findings, latencies, causes, slow packets, locality.
    pub diagnosis: Diagnosis,
    /// CPUs that processed packets, ascending.
    pub cpus: Vec<CpuActivity>,
    /// Queues that interrupted, by device.
    pub queues: Vec<QueueActivity>,
    /// Connections with traffic.
    pub connections: Vec<ConnectionActivity>,
    /// Threads that poll.
    pub workers: Vec<WorkerActivity>,
    /// Virtual machines with packets.
    pub vms: Vec<VmActivity>,
    /// Packets dropped.
    pub drops: Vec<DropActivity>,
    /// CPU time of the instruments' programs as a share of one CPU; `None` if none ran.
    pub programs_share: Option<f64>,
    /// What could not be read, and why.
    pub notes: Vec<String>,
}

/// What a CPU did with packets, per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CpuActivity {
    /// The CPU.
    pub cpu: CpuId,
    /// Its node.
    pub node: Option<NodeId>,
    /// Packets taken from backlogs and by NAPI.
    pub processed: f64,
    /// Packets dropped as its backlog was full.
    pub dropped: f64,
    /// Times that NET_RX used up its budget or time.
    pub squeezed: f64,
    /// Interrupts received for RPS.
    pub received_rps: f64,
    /// Interrupts of NICs' queues.
    pub interrupts: f64,
}

impl CpuActivity {
    /// Of a CPU that did nothing.
    pub fn idle(cpu: CpuId) -> Self {
        let (processed, dropped, squeezed, received_rps) = (0.0, 0.0, 0.0, 0.0);
        Self { cpu, node: None, processed, dropped, squeezed, received_rps, interrupts: 0.0 }
    }
}

/// Interrupts of a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueActivity {
    /// The interface.
    pub device: String,
    /// Number of the queue; `rx0`, `tx0` where interrupts are separate.
    pub queue: String,
    /// Number of the interrupt.
    pub irq: u32,
    /// Interrupts per second by CPU, those with most first.
    pub cpus: Vec<(CpuId, f64)>,
}

impl QueueActivity {
    /// Interrupts per second.
    pub fn interrupts(&self) -> f64 {
        self.cpus.iter().map(|(_, rate)| rate).sum()
    }
}

/// A TCP connection.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionActivity {
    /// Address and port.
    pub local: String,
    /// Address and port.
    pub peer: String,
    /// Name of the process; empty if unknown.
    pub comm: String,
    /// Smoothed round-trip time.
    pub rtt_ns: Option<u64>,
    /// Its mean deviation.
    pub rttvar_ns: Option<u64>,
    /// Bytes acknowledged per second.
    pub bytes_out: f64,
    /// Bytes received per second.
    pub bytes_in: f64,
    /// Segments sent again per second.
    pub retransmitted: f64,
}

/// A thread that polls.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerActivity {
    /// Name of its process.
    pub app: String,
    /// The process.
    pub pid: u32,
    /// Number of the worker.
    pub lcore: Option<u32>,
    /// Share of its cycles that it spent on packets, 0 to 1.
    pub busy: Option<f64>,
    /// Share of its polls without a packet, 0 to 1.
    pub empty_polls: Option<f64>,
    /// Packets received per second.
    pub packets: Option<f64>,
    /// Share of the time that it could have run and did not, 0 to 1.
    pub delayed: Option<f64>,
}

/// Packets dropped.
#[derive(Debug, Clone, PartialEq)]
pub struct DropActivity {
    /// The kernel's reason, or the function if it has none.
    pub reason: String,
    /// The interface; empty if unknown.
    pub device: String,
    /// Packets per second.
    pub packets: f64,
}

/// Packets into a virtual machine.
#[derive(Debug, Clone, PartialEq)]
pub struct VmActivity {
    /// Its name, or that of its program.
    pub vm: String,
    /// Packets per second that reached the guest.
    pub packets: f64,
    /// Median from the first point known of a packet to the guest.
    pub p50_ns: Option<u64>,
    /// 99th percentile of the same.
    pub p99_ns: Option<u64>,
    /// The span with the longest 99th percentile, as in `measure vm --json`, and that.
    pub slowest: Option<(String, u64)>,
}
