//! What a trial says: the JSON of `tune try --json`.

use crate::comparison::Comparison;
use crate::live::Hops;
use serde::{Deserialize, Serialize};

/// Version of the JSON form of [`TrialReport`].
pub const TRIAL_SCHEMA: u32 = 1;

/// A plan that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialReport {
    /// [`TRIAL_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// What was tried: the ids of the plan's changes.
    pub changes: Vec<String>,
    /// What was compared; latencies are in nanoseconds, rates in seconds for each packet.
    pub metric: String,
    /// The numbers and the verdict.
    #[serde(flatten)]
    pub comparison: Comparison,
    /// Whether packets went elsewhere, which is how a change of placement works.
    pub mechanism: Moved,
    /// Whether the changes are in force now.
    pub kept: bool,
}

/// How far packets went, without the change and with it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Moved {
    /// Without.
    pub without: Hops,
    /// With.
    pub with: Hops,
}
