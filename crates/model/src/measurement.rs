//! Results of the instrument `stages` for an interval: the JSON of `measure stages --json`.

use crate::clock::Clocks;
use crate::vm::VmMeasurement;
use crate::{CpuId, Detail, IfIndex, NodeId};
use crate::{Outlier, Share, Slow};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Version of the JSON form of [`Measurement`].
pub const MEASUREMENT_SCHEMA: u32 = 1;

/// Where packets spent their time, and what was not observed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// [`MEASUREMENT_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// Duration of the measurement, in seconds.
    pub duration_s: f64,
    /// How much of that time packets were observed, in seconds, if not all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_s: Option<f64>,
    /// The limit on overhead in percent of a CPU, if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_percent: Option<f64>,
    /// The filters used, as on the command line; empty if all packets were observed.
    pub filter: String,
    /// How much of the path was observed; `None` if stages were selected by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Detail>,
    /// Names of the observed stages; empty if unknown (written by an older nearpath).
    #[serde(default)]
    pub stages: Vec<String>,
    /// The fate of the packets.
    pub packets: Packets,
    /// Stage events that the kernel dropped (recursion misses of the programs).
    pub events_lost: u64,
    /// What the kernel refused, if programs had to be attached by a less suitable method than it should
    /// support: fewer functions are observed then, or at a higher cost.
    #[serde(default)]
    pub fallback: Option<String>,
    /// Measurement overhead; `None` if the kernel has no run-time statistics.
    pub cost: Option<Cost>,
    /// Bucket boundaries used: [`crate::histogram::SCHEMA`]; 0 in data from an older nearpath with 16 linear
    /// buckets per power of two.
    #[serde(default)]
    pub bucket_schema: u32,
    /// The watch over every packet; `None` if it was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watch: Option<Watch>,
    /// Latencies of whole paths, each packet once, by kind, that of the watch first.
    #[serde(default)]
    pub paths: Vec<PathLatency>,
    /// Hardware timestamps of received packets; `None` if no NIC provides them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic_stamps: Option<NicStamps>,
    /// Latencies between adjacent stages, in the order of the path, receive first.
    pub spans: Vec<Span>,
    /// Stages that cannot be observed here, with the reason.
    pub not_observable: Vec<NotObservable>,
    /// How many packets were slow.
    #[serde(default)]
    pub slow: Slow,
    /// The slowest of them, slowest first.
    #[serde(default)]
    pub outliers: Vec<Outlier>,
    /// Where the time of all observed ones went, by cause, largest first.
    #[serde(default)]
    pub budget_totals: Vec<Share>,
    /// Dropped packets by the last stage that they passed, most packets first; for the whole measurement only.
    #[serde(default)]
    pub drops: Vec<StageDrop>,
    /// The same by group: those requested, and all others as one; empty if no grouping was requested.
    #[serde(default)]
    pub groups: Vec<Group>,
    /// What is counted among the others because its group did not fit.
    #[serde(default)]
    pub not_grouped: NotGrouped,
    /// The way into virtual machines of packets that reached their taps; `None` if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub into_guests: Option<VmMeasurement>,
    /// The clocks of this kernel, if slow packets were recorded and the CPU has a time stamp counter: with them the
    /// recording of a guest is put beside the host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clocks: Option<Clocks>,
}

impl Measurement {
    /// How long packets were observed, in seconds: the divisor of rates.
    pub fn observed_time_s(&self) -> f64 {
        self.observed_s.unwrap_or(self.duration_s)
    }

    /// Whether a stage was observed, so that packets without it did not pass it.
    pub fn observed(&self, stage: &str) -> bool {
        match self.stages.is_empty() {
            true => !self.not_observable.iter().any(|n| n.stage == stage),
            false => self.stages.iter().any(|name| name == stage),
        }
    }
}

/// The watch: every packet that a reader received, from the stamp of the kernel ([`PathKind::Watch`]), over the whole
/// time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Watch {
    /// How long packets were watched, in seconds.
    pub watched_s: f64,
    /// For how much of that what each CPU and reader did was recorded, so that late packets are explained.
    pub recorded_s: f64,
    /// Packets that reached their reader; exact.
    pub packets: u64,
    /// Those without a stamp of their reception, whose latency is not known: a virtual device has removed it.
    pub unstamped: u64,
    /// Packets later than this are late.
    pub late_ns: u64,
    /// How many were; exact.
    pub late: u64,
    /// How many of them were looked at and have a complete budget.
    pub explained: u64,
    /// Why packets are not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_watched: Option<String>,
}

impl Watch {
    /// Whether it speaks for all received packets: at most one in a hundred had no stamp.
    pub fn is_whole(&self) -> bool {
        self.packets > 0 && self.unstamped <= self.packets / 100
    }
}

/// Use of hardware timestamps of received packets: a packet whose timestamp is used starts at `nic_rx`. Counts
/// are of tracked packets; exact.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NicStamps {
    /// Devices that timestamp received packets, in all network namespaces.
    pub devices: Vec<StampingNic>,
    /// Packets whose path starts at the NIC.
    pub used: u64,
    /// Timestamps not used because they are later than the first stage at which the packet was seen;
    pub ahead: u64,
    /// because they are more than a second before it;
    pub too_old: u64,
    /// because the clock of their device is unknown: see [`StampingNic::left_out`];
    pub unconverted: u64,
    /// because the device that the packet came from did not timestamp when the measurement started: a forwarded
    /// packet keeps the timestamp of the previous device;
    pub other_device: u64,
    /// because the driver stores something else there, from which it computes a time on request
    /// (`SKBTX_HW_TSTAMP_NETDEV`).
    pub not_plain: u64,
}

/// A device that timestamps received packets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StampingNic {
    /// Its name.
    pub nic: String,
    /// Its index.
    pub ifindex: IfIndex,
    /// Inode of its network namespace.
    pub netns: Option<u32>,
    /// Which packets: `all`, `ptpv2-event`, …
    pub rx_filter: String,
    /// The clock of the timestamps: `ptp0`.
    pub clock: Option<String>,
    /// How it is read relative to the monotonic clock: `precise`, `extended`, `offset`.
    pub method: Option<String>,
    /// Maximum error of a converted timestamp: half of the shortest bracket of a reading, or the deviation of
    /// the clock from its extrapolation at the next reading, whichever was larger.
    pub uncertainty_ns: Option<u64>,
    /// How much faster the NIC's clock runs than the kernel's, in parts per 10^9.
    pub drift_ppb: Option<f64>,
    /// How often the clock was set during the measurement: timestamps until the next reading (half a second)
    /// are off.
    #[serde(default)]
    pub clock_steps: u64,
    /// Whether paths start at timestamps of this device.
    pub used: bool,
    /// Why its timestamps are not used, or no longer used.
    pub left_out: Option<String>,
}

/// The grouping of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// The CPU on which a span ends.
    Cpu,
    /// That CPU's node.
    Node,
    /// The device and queue that the packet was received or is sent on.
    Queue,
    /// Protocol, addresses and ports.
    Flow,
    /// The process that reads or sends it.
    Process,
    /// The cgroup of the process that reads or sends it.
    Cgroup,
}

/// A group of packets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The grouping.
    pub per: Per,
    /// `cpu 3`, `node 0`, `eth0 rx-0`, `TCP 10.0.0.1:5000 > 10.0.0.2:80`, `nginx/4711`,
    /// `/system.slice/nginx.service`; `no process`, `others`.
    pub name: String,
    /// Its packets; by CPU and node those first seen there.
    pub packets: u64,
    /// Its whole paths, as in the measurement.
    #[serde(default)]
    pub paths: Vec<PathLatency>,
    /// Its latencies, as in the measurement; without CPU pairs.
    pub spans: Vec<Span>,
}

impl Group {
    /// The path with the worst tail: the highest 99th percentile, or the highest maximum if no kind of path has
    /// enough samples for one. What the kernel sends by itself counts only if there is nothing else.
    pub fn worst_path(&self) -> Option<&PathLatency> {
        let is_of_kernel = |path: &PathLatency| path.kind == PathKind::KernelTransmit;
        self.paths.iter().max_by_key(|path| (!is_of_kernel(path), path.p99_ns, path.max_ns))
    }

    /// The span with the worst tail: the highest 99th percentile, or the highest maximum if no span has enough
    /// samples for one.
    pub fn worst(&self) -> Option<&Span> {
        self.spans.iter().max_by_key(|span| (span.p99_ns, span.max_ns))
    }
}

/// Tracked packets that the kernel dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageDrop {
    /// Receive or transmit.
    pub direction: Direction,
    /// The last stage that they passed.
    pub after: String,
    /// As in [`crate::drops::Drop`].
    pub reason: Option<String>,
    /// Description of the reason.
    pub meaning: Option<String>,
    /// The kernel function that dropped them; an address if function names are not available.
    pub function: String,
    /// The device that they were on, or came from; `None` if no longer known.
    pub device: Option<String>,
    /// Inode of its network namespace; `None` if no longer known.
    pub netns: Option<u32>,
    /// Packets.
    pub packets: u64,
}

/// What did not fit in the groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotGrouped {
    /// Packets of groups that did not fit.
    pub packets: u64,
    /// Latencies of grouped packets that did not fit.
    pub spans: u64,
}

/// The fate of the observed packets:
/// `started = completed + dropped + abandoned + collided`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packets {
    /// Packets whose first stage was seen.
    pub started: u64,
    /// Packets that were tracked to the end of their path.
    pub completed: u64,
    /// Packets that the kernel dropped (`kfree_skb`).
    pub dropped: u64,
    /// Packets whose end was not seen: freed without a tracepoint, or still in flight. The remainder of those
    /// started.
    pub abandoned: u64,
    /// Packets lost to another with the same slot of the in-flight table.
    pub collided: u64,
    /// Packets that matched the filter and were skipped by `--sample`.
    pub sampled_out: u64,
}

/// Measurement overhead.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Nanoseconds of all programs together per packet started, excluding the accounting.
    pub ns_per_packet: f64,
    /// Nanoseconds per run of a program, excluding the accounting.
    pub ns_per_event: f64,
    /// Nanoseconds to call a program, not included above; `None` if not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_ns: Option<f64>,
    /// CPU time of all programs over the whole time, including the calls, and within an overhead limit also nearpath's
    /// own for attaching, detaching and reading; 100 is one whole CPU.
    pub cpu_percent: f64,
}

/// Measurement overhead, if packets are not tracked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct EventCost {
    /// Nanoseconds per run of a program, excluding the accounting.
    pub ns_per_event: f64,
    /// CPU time of all programs; 100 is one whole CPU.
    pub cpu_percent: f64,
}

/// Receive or transmit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the NIC to the reader.
    Rx,
    /// From the sender to the NIC.
    Tx,
}

/// Kinds of paths that are tracked to their end, by how they end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    /// Like [`PathKind::Receive`], for packets timestamped by the NIC: from the timestamp.
    ReceiveFromNic,
    /// From the first stage observed until a task has read it: TCP data when it is copied, a datagram when the
    /// receive call returns.
    Receive,
    /// Like [`PathKind::Forward`], for packets timestamped by the NIC: from the timestamp.
    ForwardFromNic,
    /// From the first stage observed to the queue of the device that forwards it.
    Forward,
    /// From the send call until its transmission is complete, or the peer of a virtual device has it. If send
    /// calls are not observed: from the first stage observed, for all packets sent.
    Transmit,
    /// The same for what the kernel sends outside of a send call, from the first stage observed: forwarded
    /// packets, acknowledgements, retransmissions, data that had to wait for the peer.
    KernelTransmit,
    /// Every packet, whether its stages are observed or not: from the stamp that the kernel gives it when the stack
    /// receives it until its reader copies it ([`Watch`]).
    Watch,
}

impl PathKind {
    /// All kinds, in order (`enum path_kind` of `bpf/path.h`).
    pub const ALL: [Self; 7] = [
        Self::ReceiveFromNic,
        Self::Receive,
        Self::ForwardFromNic,
        Self::Forward,
        Self::Transmit,
        Self::KernelTransmit,
        Self::Watch,
    ];

    /// Whether it starts at the NIC's timestamp.
    pub fn is_from_nic(self) -> bool {
        matches!(self, Self::ReceiveFromNic | Self::ForwardFromNic)
    }

    /// Its name in the JSON: `kernel_transmit`.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReceiveFromNic => "receive_from_nic",
            Self::Receive => "receive",
            Self::ForwardFromNic => "forward_from_nic",
            Self::Forward => "forward",
            Self::Transmit => "transmit",
            Self::KernelTransmit => "kernel_transmit",
            Self::Watch => "watch",
        }
    }
}

/// Latencies of whole paths of one kind: percentiles are of packets, not sums of the spans' percentiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathLatency {
    /// The kind.
    pub kind: PathKind,
    /// The earliest observed stage at which such a path may start. A packet that does not pass it starts at its
    /// own first stage.
    pub from: String,
    /// Packets whose path ended this way; exact.
    pub count: u64,
    /// Shortest; exact.
    pub min_ns: Option<u64>,
    /// Median; `None` if there are too few samples, like all percentiles.
    pub p50_ns: Option<u64>,
    /// 90th percentile.
    pub p90_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// 99.9th percentile.
    pub p999_ns: Option<u64>,
    /// Longest; exact.
    pub max_ns: Option<u64>,
    /// Sum of all latencies, within the histogram's error of 2.2%.
    pub total_ns: u64,
    /// How many took longer than each requested time, ascending; exact.
    pub above: Vec<Above>,
    /// Share of packets whose path ended on another CPU than it started on, 0 to 1.
    pub other_cpu: Option<f64>,
    /// Share for which these were under different last-level caches.
    pub other_llc: Option<f64>,
    /// Share for which they were on different nodes.
    pub other_node: Option<f64>,
    /// As in [`Span`].
    pub buckets: Vec<(u64, u64)>,
}

/// Packets that took longer than a given time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Above {
    /// The time.
    pub ns: u64,
    /// Packets; exact.
    pub count: u64,
    /// Their share of all packets, 0 to 1.
    pub share: f64,
}

/// The interval between two adjacent stages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Receive or transmit.
    pub direction: Direction,
    /// Name of the first stage (`netif_rx`).
    pub from: String,
    /// Name of the second stage.
    pub to: String,
    /// Packets that passed both; exact.
    pub count: u64,
    /// Shortest.
    pub min_ns: Option<u64>,
    /// Median; `None` if there are too few samples, like all percentiles.
    pub p50_ns: Option<u64>,
    /// 90th percentile.
    pub p90_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// 99.9th percentile.
    pub p999_ns: Option<u64>,
    /// Longest; exact.
    pub max_ns: Option<u64>,
    /// Sum of all latencies, within the histogram's error of 2.2%.
    pub total_ns: u64,
    /// Share of packets for which both stages were on different CPUs, 0 to 1.
    pub other_cpu: Option<f64>,
    /// Share for which they were under different last-level caches.
    pub other_llc: Option<f64>,
    /// Share for which they were on different nodes.
    pub other_node: Option<f64>,
    /// `[upper_ns, count]` of each histogram bucket that is not empty, ascending; a bucket holds
    /// latencies up to and including `upper_ns`.
    pub buckets: Vec<(u64, u64)>,
    /// The CPUs on which the two stages ran.
    pub places: Vec<Place>,
}

/// Number of packets of a span that went from one CPU to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// CPU of the first stage; on hosts with more than 128 CPUs the lowest CPU of its LLC.
    pub from_cpu: CpuId,
    /// CPU of the second stage, likewise.
    pub to_cpu: CpuId,
    /// Node of `from_cpu`.
    pub from_node: Option<NodeId>,
    /// Node of `to_cpu`.
    pub to_node: Option<NodeId>,
    /// Packets.
    pub count: u64,
}

/// A stage that cannot be observed here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotObservable {
    /// Receive or transmit; `None` for a stage of both.
    pub direction: Option<Direction>,
    /// Name of the stage.
    pub stage: String,
    /// The reason: what the kernel lacks or refused.
    pub reason: String,
}

/// A transport protocol to observe.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// ICMP and ICMPv6.
    Icmp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        })
    }
}
