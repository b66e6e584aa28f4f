//! What the instrument `locality` returns: the JSON of `measure locality --json`.

use crate::{Cost, Direction, Per, Place};
use serde::{Deserialize, Serialize};

/// Version of the JSON form of [`Locality`].
pub const LOCALITY_SCHEMA: u32 = 1;

/// On which CPUs packets are allocated, on which they are let go of, and what was not seen.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Locality {
    /// [`LOCALITY_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// How long was measured, in seconds.
    pub duration_s: f64,
    /// The filters in force, as on the command line; empty when every packet was looked at.
    pub filter: String,
    /// How it was seen.
    pub method: Method,
    /// What the kernel refused, where less is seen than it should let be seen.
    pub fallback: Option<String>,
    /// Received packets.
    pub rx: Distances,
    /// Sent packets.
    pub tx: Distances,
    /// What became of the packets.
    pub packets: Fates,
    /// Events that the kernel dropped (recursion misses of the programs).
    pub events_lost: u64,
    /// What observing cost; `None` where the kernel gives no run-time statistics.
    pub cost: Option<Cost>,
    /// From which CPU to which packets went, receive first.
    pub places: Vec<Places>,
    /// The same by group, those asked for and all others as one; empty where none were asked for.
    #[serde(default)]
    pub groups: Vec<LocalityGroup>,
}

/// A part of the packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalityGroup {
    /// By what.
    pub per: Per,
    /// As that of a [`crate::Group`].
    pub name: String,
    /// Its received packets.
    pub rx: Distances,
    /// Its sent packets.
    pub tx: Distances,
}

/// How allocation and end of a packet are seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// At the functions that allocate sk_buffs and let go of them.
    Exact,
    /// At tracepoints alone: from where a packet is first seen to where it is last seen.
    #[default]
    Tracepoints,
}

/// Packets that were let go of, by how far the CPU on which they were is from the one that
/// allocated them: each is counted once, so that all but the first add up to `packets`.
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
    /// On another CPU, of which the host does not tell where it is.
    pub unknown: u64,
}

impl Distances {
    /// From the programs' counters, in the order of `enum distance`.
    pub fn of(counts: [u64; 6]) -> Self {
        let [same_cpu, same_core, same_llc, same_node, other_node, unknown] = counts;
        let packets = counts.iter().sum();
        Self { packets, same_cpu, same_core, same_llc, same_node, other_node, unknown }
    }

    /// What came since an earlier reading.
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

    /// With those of another part.
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

/// What became of the packets that were looked at:
/// `started = completed + dropped + abandoned + collided + not_allocated`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fates {
    /// Packets that were received or sent.
    pub started: u64,
    /// Packets that were let go of by who they were for; with those dropped they are what [`Distances`]
    /// counts.
    pub completed: u64,
    /// Packets that the kernel dropped (`kfree_skb`).
    pub dropped: u64,
    /// Packets whose end was not seen, or still under way: what the other counts leave of those started.
    pub abandoned: u64,
    /// Packets lost to another with the same slot of the in-flight table.
    pub collided: u64,
    /// Packets whose allocation was not seen, as it was before the measurement.
    pub not_allocated: u64,
    /// Of those let go of on another CPU: sent back by the kernel to be freed on their own.
    pub returned: u64,
    /// Packets that matched the filter and were left out by `--sample`; no part of those started.
    pub sampled_out: u64,
}

/// Packets of one direction that went from one place to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// Receive or transmit.
    pub direction: Direction,
    /// `from`: allocated there. `to`: let go of there.
    #[serde(flatten)]
    pub place: Place,
}
