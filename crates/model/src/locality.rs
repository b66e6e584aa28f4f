//! Results of the instrument `locality`: the JSON of `measure locality --json`.

use crate::{Cost, Direction, Per, Place};
use serde::{Deserialize, Serialize};

/// Version of the JSON form of [`Locality`].
pub const LOCALITY_SCHEMA: u32 = 1;

/// The CPUs on which packets are allocated and freed, and what was not observed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Locality {
    /// [`LOCALITY_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// Duration of the measurement, in seconds.
    pub duration_s: f64,
    /// The filters used, as on the command line; empty if all packets were observed.
    pub filter: String,
    /// The method of observation.
    pub method: Method,
    /// What the kernel refused, if less was observed than it should allow.
    pub fallback: Option<String>,
    /// Received packets.
    pub rx: Distances,
    /// Sent packets.
    pub tx: Distances,
    /// The fate of the packets.
    pub packets: Fates,
    /// Events that the kernel dropped (recursion misses of the programs).
    pub events_lost: u64,
    /// Measurement overhead; `None` if the kernel has no run-time statistics.
    pub cost: Option<Cost>,
    /// From which CPU to which packets went, receive first.
    pub places: Vec<CpuPairCount>,
    /// The same by group: those requested, and all others as one; empty if no grouping was requested.
    #[serde(default)]
    pub groups: Vec<LocalityGroup>,
}

/// A group of packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalityGroup {
    /// The grouping.
    pub per: Per,
    /// As in [`crate::Group`].
    pub name: String,
    /// Its received packets.
    pub rx: Distances,
    /// Its sent packets.
    pub tx: Distances,
}

/// How allocation and free of a packet are observed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// At the functions that allocate and free sk_buffs.
    Exact,
    /// At tracepoints only: from where a packet is first seen to where it is last seen.
    #[default]
    Tracepoints,
}

/// Packets freed, by distance between the CPU that freed them and the CPU that allocated them. Each packet is
/// counted once, so all but the first add up to `packets`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distances {
    /// All of them.
    pub packets: u64,
    /// On the same CPU.
    pub same_cpu: u64,
    /// On another CPU of the same core.
    pub same_core: u64,
    /// On another core under the same last-level cache.
    pub same_llc: u64,
    /// Under another cache of the same node.
    pub same_node: u64,
    /// On another node.
    pub other_node: u64,
    /// On another CPU whose location is unknown.
    pub unknown: u64,
}

impl Distances {
    /// From the programs' counters, in the order of `enum distance`.
    pub fn of(counts: [u64; 6]) -> Self {
        let [same_cpu, same_core, same_llc, same_node, other_node, unknown] = counts;
        let packets = counts.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
        Self { packets, same_cpu, same_core, same_llc, same_node, other_node, unknown }
    }

    /// The counts by distance, each with the name of its field.
    pub fn by_name(&self) -> [(&'static str, u64); 6] {
        [
            ("same_cpu", self.same_cpu),
            ("same_core", self.same_core),
            ("same_llc", self.same_llc),
            ("same_node", self.same_node),
            ("other_node", self.other_node),
            ("unknown", self.unknown),
        ]
    }

    /// The change since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(earlier.packets),
            same_cpu: self.same_cpu.saturating_sub(earlier.same_cpu),
            same_core: self.same_core.saturating_sub(earlier.same_core),
            same_llc: self.same_llc.saturating_sub(earlier.same_llc),
            same_node: self.same_node.saturating_sub(earlier.same_node),
            other_node: self.other_node.saturating_sub(earlier.other_node),
            unknown: self.unknown.saturating_sub(earlier.unknown),
        }
    }

    /// The sum with those of another group.
    #[must_use]
    pub fn with(&self, more: &Self) -> Self {
        Self {
            packets: self.packets.saturating_add(more.packets),
            same_cpu: self.same_cpu.saturating_add(more.same_cpu),
            same_core: self.same_core.saturating_add(more.same_core),
            same_llc: self.same_llc.saturating_add(more.same_llc),
            same_node: self.same_node.saturating_add(more.same_node),
            other_node: self.other_node.saturating_add(more.other_node),
            unknown: self.unknown.saturating_add(more.unknown),
        }
    }

    /// The share that stayed on its CPU, 0 to 1; `None` without packets.
    pub fn local(&self) -> Option<f64> {
        (self.packets > 0).then(|| self.same_cpu as f64 / self.packets as f64)
    }
}

/// The fate of the observed packets:
/// `started = completed + dropped + abandoned + collided + not_allocated`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fates {
    /// Packets that were received or sent.
    pub started: u64,
    /// Packets freed by their consumer; with the dropped ones they are what [`Distances`] counts.
    pub completed: u64,
    /// Packets that the kernel dropped (`kfree_skb`).
    pub dropped: u64,
    /// Packets whose end was not seen, or that are still in flight: the remainder of those started.
    pub abandoned: u64,
    /// Packets lost to another with the same slot of the in-flight table.
    pub collided: u64,
    /// Packets whose allocation was not seen because it was before the measurement.
    pub not_allocated: u64,
    /// Of those freed on another CPU: freed individually because the kernel sent them back.
    pub returned: u64,
    /// Packets that matched the filter and were skipped by `--sample`; not part of those started.
    pub sampled_out: u64,
}

/// Packets of one direction that went from one CPU to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuPairCount {
    /// Receive or transmit.
    pub direction: Direction,
    /// `from`: allocated there. `to`: freed there.
    #[serde(flatten)]
    pub place: Place,
}
