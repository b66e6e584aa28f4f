//! What the instrument `stages` returns for an interval: the JSON of `measure stages --json`.

use crate::{CpuId, Detail, IfIndex, NodeId};
use crate::{Outlier, Share, Slow};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Version of the JSON form of [`Measurement`].
pub const MEASUREMENT_SCHEMA: u32 = 1;

/// Where packets spent their time, and what was not seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// [`MEASUREMENT_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// How long was measured, in seconds.
    pub duration_s: f64,
    /// For how long of that packets were observed, in seconds, where not all the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_s: Option<f64>,
    /// The share of a CPU that observing was allowed to take, in percent, if it was limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_percent: Option<f64>,
    /// The filters in force, as on the command line; empty when every packet was looked at.
    pub filter: String,
    /// How much of the path was observed; `None` where stages were chosen by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<Detail>,
    /// Names of the stages that were observed; empty where that is not known (an older nearpath).
    #[serde(default)]
    pub stages: Vec<String>,
    /// What became of the packets.
    pub packets: Packets,
    /// Stage events that the kernel dropped (recursion misses of the programs).
    pub events_lost: u64,
    /// What the kernel refused, where programs had to be attached in another way than the best that it
    /// should have: fewer functions are seen then, or at a higher cost.
    #[serde(default)]
    pub fallback: Option<String>,
    /// What observing cost; `None` where the kernel gives no run-time statistics.
    pub cost: Option<Cost>,
    /// Whose boundaries the buckets have: [`crate::histogram::SCHEMA`]; 0 in what a nearpath wrote that had 16 linear
    /// buckets for each power of two.
    #[serde(default)]
    pub bucket_schema: u32,
    /// Latencies of whole paths, each packet once, by kind in the order of [`PathKind`].
    #[serde(default)]
    pub paths: Vec<PathLatency>,
    /// Hardware time stamps of received packets; `None` where no NIC gives any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic_stamps: Option<NicStamps>,
    /// Latencies between adjacent stages, in the order of the path, receive first.
    pub spans: Vec<Span>,
    /// Stages that cannot be observed here, and why.
    pub not_observable: Vec<NotObservable>,
    /// How many packets were slow.
    #[serde(default)]
    pub slow: Slow,
    /// The slowest of them, the slowest first.
    #[serde(default)]
    pub outliers: Vec<Outlier>,
    /// Where the time of all that were seen went, by what and by whom, the largest first.
    #[serde(default)]
    pub budget_totals: Vec<Share>,
    /// Those that were dropped, by the last stage that they passed, most packets first; known of the whole alone.
    #[serde(default)]
    pub drops: Vec<StageDrop>,
    /// The same by group, those asked for and all others as one; empty where none were asked for.
    #[serde(default)]
    pub groups: Vec<Group>,
    /// What is among the others because there was no room for its group.
    #[serde(default)]
    pub not_grouped: NotGrouped,
}

impl Measurement {
    /// For how long packets were observed, in seconds: what counts are divided by for a rate.
    pub fn observed_time_s(&self) -> f64 {
        self.observed_s.unwrap_or(self.duration_s)
    }

    /// Whether a stage was observed, so that packets which do not show there did not pass it.
    pub fn observed(&self, stage: &str) -> bool {
        match self.stages.is_empty() {
            true => !self.not_observable.iter().any(|n| n.stage == stage),
            false => self.stages.iter().any(|name| name == stage),
        }
    }
}

/// What became of hardware time stamps of received packets: a packet whose stamp is used begins at `nic_rx`. Counts are
/// of packets that were followed; exact.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NicStamps {
    /// The devices that stamp packets they receive, in all network namespaces.
    pub devices: Vec<StampingNic>,
    /// Packets whose path begins at the NIC.
    pub used: u64,
    /// Stamps that were not used, as they are later than the first stage at which the packet was seen;
    pub ahead: u64,
    /// as they are more than a second before it;
    pub too_old: u64,
    /// as the clock of their device is not known: see [`StampingNic::left_out`];
    pub unconverted: u64,
    /// as the device that the packet came by did not stamp when the measurement began: a forwarded packet keeps the stamp
    /// of the one before;
    pub other_device: u64,
    /// as the driver keeps something else there, from which it makes a time for whoever asks (`SKBTX_HW_TSTAMP_NETDEV`).
    pub not_plain: u64,
}

/// A device that stamps packets it receives.
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
    /// The clock that the stamps are times of: `ptp0`.
    pub clock: Option<String>,
    /// How that is read beside the monotonic clock: `precise`, `extended`, `offset`.
    pub method: Option<String>,
    /// By how much a converted stamp may be off: half of the shortest bracket of a reading, or how far the clock was
    /// from its course at the next reading, whichever was most.
    pub uncertainty_ns: Option<u64>,
    /// By how much the NIC's clock is faster than the kernel's, in parts per 10^9.
    pub drift_ppb: Option<f64>,
    /// How often the clock was set while packets were observed: stamps until the next reading (half a second) are off.
    #[serde(default)]
    pub clock_steps: u64,
    /// Whether a path begins at a stamp of this device.
    pub used: bool,
    /// Why its stamps are not used, or no longer.
    pub left_out: Option<String>,
}

/// By what packets are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Per {
    /// The CPU on which a span ends.
    Cpu,
    /// That CPU's node.
    Node,
    /// The device and queue that the packet came by, or is sent by.
    Queue,
    /// Protocol, addresses and ports.
    Flow,
    /// Who reads or sends it.
    Process,
    /// The cgroup of who reads or sends it.
    Cgroup,
}

/// A part of the packets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// By what.
    pub per: Per,
    /// `cpu 3`, `node 0`, `eth0 rx-0`, `TCP 10.0.0.1:5000 > 10.0.0.2:80`, `nginx/4711`,
    /// `/system.slice/nginx.service`; `no process`, `others`.
    pub name: String,
    /// Its packets; by CPU and node those that were first seen there.
    pub packets: u64,
    /// Its whole paths, as those of the whole.
    #[serde(default)]
    pub paths: Vec<PathLatency>,
    /// Its latencies, as those of the whole; without places.
    pub spans: Vec<Span>,
}

impl Group {
    /// The path with the worst tail: the highest 99th percentile, or the highest maximum where no kind of path has
    /// samples enough for one. What the kernel sends by itself counts only where there is nothing else.
    pub fn worst_path(&self) -> Option<&PathLatency> {
        let is_of_kernel = |path: &PathLatency| path.kind == PathKind::KernelTransmit;
        self.paths.iter().max_by_key(|path| (!is_of_kernel(path), path.p99_ns, path.max_ns))
    }

    /// The span with the worst tail: the highest 99th percentile, or the highest maximum where no
    /// span has samples enough for one.
    pub fn worst(&self) -> Option<&Span> {
        self.spans.iter().max_by_key(|span| (span.p99_ns, span.max_ns))
    }
}

/// Packets that were followed until the kernel dropped them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageDrop {
    /// Receive or transmit.
    pub direction: Direction,
    /// The last stage that they passed.
    pub after: String,
    /// As that of a [`crate::drops::Drop`].
    pub reason: Option<String>,
    /// What it means.
    pub meaning: Option<String>,
    /// The kernel function that dropped them; an address where functions are not known.
    pub function: String,
    /// The device that they were at, or had come by; `None` when it is not known any more.
    pub device: Option<String>,
    /// Inode of its network namespace; `None` when it is not known any more.
    pub netns: Option<u32>,
    /// Packets.
    pub packets: u64,
}

/// What there was no room for among the groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotGrouped {
    /// Packets of groups that were seen too late.
    pub packets: u64,
    /// Latencies of packets that have a group.
    pub spans: u64,
}

/// What became of the packets that were looked at:
/// `started = completed + dropped + abandoned + collided`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packets {
    /// Packets whose first stage was seen.
    pub started: u64,
    /// Packets that were followed to the end of their path.
    pub completed: u64,
    /// Packets that the kernel dropped (`kfree_skb`).
    pub dropped: u64,
    /// Packets whose end was not seen: freed without a tracepoint, or still on the way. It is
    /// what the other counts leave of those started.
    pub abandoned: u64,
    /// Packets lost to another with the same slot of the in-flight table.
    pub collided: u64,
    /// Packets that matched the filter and were left out by `--sample`.
    pub sampled_out: u64,
}

/// What observing cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Nanoseconds of all programs together for each packet started, net of the accounting.
    pub ns_per_packet: f64,
    /// Nanoseconds for each run of a program, net of the accounting.
    pub ns_per_event: f64,
    /// Nanoseconds that calling a program takes, which are not in those; `None` where that was not found out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch_ns: Option<f64>,
    /// CPU time of all programs over the whole time, with what calling them takes; 100 is one whole CPU.
    pub cpu_percent: f64,
}

/// What observing cost, where no packets are followed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct EventCost {
    /// Nanoseconds for each run of a program, net of the accounting.
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

/// What becomes of packets that are followed to their end: what a path's latency is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PathKind {
    /// As [`PathKind::Receive`], of packets that the NIC has stamped: from there on.
    ReceiveFromNic,
    /// From the first stage that was seen until a task has read it: TCP data when it is copied, a datagram when the
    /// receive call returns.
    Receive,
    /// As [`PathKind::Forward`], of packets that the NIC has stamped: from there on.
    ForwardFromNic,
    /// From the first stage that was seen to the queue of the device that sends it on.
    Forward,
    /// From the send call until its transmission is complete, or a virtual device's peer has it. Where send calls are
    /// not observed: from the first stage that was seen, of all packets sent.
    Transmit,
    /// The same of what the kernel sends outside of a send call, from the first stage that was seen: forwarded
    /// packets, acknowledgements, retransmissions, data that had to wait for the peer.
    KernelTransmit,
}

impl PathKind {
    /// All kinds, in their order (`enum path_kind` of `bpf/path.h`).
    pub const ALL: [Self; 6] = [
        Self::ReceiveFromNic,
        Self::Receive,
        Self::ForwardFromNic,
        Self::Forward,
        Self::Transmit,
        Self::KernelTransmit,
    ];

    /// Whether it begins at the NIC's time stamp.
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
        }
    }
}

/// Latencies of whole paths of one kind: a percentile is one of packets, not a sum of the spans' percentiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathLatency {
    /// Of which kind.
    pub kind: PathKind,
    /// The earliest stage that is observed where such a path may begin. A packet that does not pass it begins at its own
    /// first stage.
    pub from: String,
    /// Packets whose path ended so; exact.
    pub count: u64,
    /// Shortest; exact.
    pub min_ns: Option<u64>,
    /// Median; `None` when the samples cannot carry it, like all percentiles.
    pub p50_ns: Option<u64>,
    /// 90th percentile.
    pub p90_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// 99.9th percentile.
    pub p999_ns: Option<u64>,
    /// Longest; exact.
    pub max_ns: Option<u64>,
    /// Sum of all latencies, within the histogram's error of 2.2 %.
    pub total_ns: u64,
    /// How many took longer than each time that was asked for, ascending; exact.
    pub above: Vec<Above>,
    /// Share of packets whose path ended on another CPU than it began on, 0 to 1.
    pub other_cpu: Option<f64>,
    /// Share for which these were under different last-level caches.
    pub other_llc: Option<f64>,
    /// Share for which they were on different nodes.
    pub other_node: Option<f64>,
    /// As of a [`Span`].
    pub buckets: Vec<(u64, u64)>,
}

/// Packets that took longer than some time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Above {
    /// Than this.
    pub ns: u64,
    /// Packets; exact.
    pub count: u64,
    /// Their share of all, 0 to 1.
    pub share: f64,
}

/// What lies between two adjacent stages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Receive or transmit.
    pub direction: Direction,
    /// Name of the stage before (`netif_rx`).
    pub from: String,
    /// Name of the stage after.
    pub to: String,
    /// Packets that passed both; exact.
    pub count: u64,
    /// Shortest.
    pub min_ns: Option<u64>,
    /// Median; `None` when the samples cannot carry it, like all percentiles.
    pub p50_ns: Option<u64>,
    /// 90th percentile.
    pub p90_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// 99.9th percentile.
    pub p999_ns: Option<u64>,
    /// Longest; exact.
    pub max_ns: Option<u64>,
    /// Sum of all latencies, within the histogram's error of 2.2 %.
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
    /// Where the two stages ran.
    pub places: Vec<Place>,
}

/// How many packets of a span went from one place to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// CPU of the stage before; on hosts of more than 128 CPUs the lowest CPU of its LLC.
    pub from_cpu: CpuId,
    /// CPU of the stage after, likewise.
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
    /// Why: what the kernel lacks or refused.
    pub reason: String,
}

/// A transport protocol to look at.
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
