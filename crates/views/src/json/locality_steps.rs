//! What `demo locality --json` prints: the locality of a server's packets and connections after each
//! step of putting them right.

use nearpath_model::locality::{CpuPairCount, Distances, Method};
use nearpath_model::{CpuSet, ProposedChange, accepts};
use serde::{Deserialize, Serialize};

/// Version of the JSON form of [`LocalitySteps`].
pub const LOCALITY_STEPS_SCHEMA: u32 = 1;

/// The whole demonstration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LocalitySteps {
    /// [`LOCALITY_STEPS_SCHEMA`].
    pub schema: u32,
    /// How packets are seen.
    pub method: Method,
    /// Why not exactly, or what the kernel refused.
    pub fallback: Option<String>,
    /// The CPUs that workers and queues are spread over.
    pub cpus: CpuSet,
    /// What was measured: as found first, then after each step.
    pub steps: Vec<LocalityStep>,
    /// Steps that were not made.
    pub not_made: Vec<NotMade>,
}

/// A step, and what was measured after it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LocalityStep {
    /// Its name.
    pub name: String,
    /// Its changes, as they were made.
    pub changes: Vec<ProposedChange>,
    /// How long was measured, in seconds.
    pub duration_s: f64,
    /// Packets that the server received.
    pub rx: Distances,
    /// Packets that it sent.
    pub tx: Distances,
    /// Packets whose end, or whose beginning, was not seen.
    pub not_followed: u64,
    /// Events of packets that the kernel dropped, and accepts that there was no room to count.
    pub events_lost: u64,
    /// Connections that its workers accepted.
    pub accepts: accepts::DistanceCounts,
    /// The share of the received packets that the busiest CPU freed, 0 to 1; `None` without any.
    pub busiest_cpu: Option<f64>,
    /// From which CPU to which packets went, receive first.
    pub places: Vec<CpuPairCount>,
}

/// A step that was not made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotMade {
    /// Its name.
    pub name: String,
    /// Why not.
    pub reason: String,
}
