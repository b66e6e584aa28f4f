//! What `nearpath fix` has done: the JSON of `fix --json`.

use crate::{Severity, TrialFigure, Verdict, Whose};
use serde::Serialize;

/// Version of the JSON form of [`Fixed`].
pub const FIX_SCHEMA: u32 = 1;

/// All that was tried, and what became of the packets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Fixed {
    /// [`FIX_SCHEMA`].
    pub schema: u32,
    /// How often the findings were gone through.
    pub rounds: usize,
    /// The title of the worst finding at first.
    pub first_finding: Option<String>,
    /// Whole packets before anything was changed; `None` if none were seen.
    pub before: Option<PacketFigures>,
    /// Whole packets at the end.
    pub after: Option<PacketFigures>,
    /// What was tried, in order.
    pub tried: Vec<Attempt>,
    /// Findings whose changes were not tried.
    pub not_tried: Vec<NotTried>,
    /// What is still wrong at the end.
    pub left: Vec<Left>,
    /// The changes that stay.
    pub kept: Vec<Kept>,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// Whole packets of the kind of path that most were of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PacketFigures {
    /// The kind of path.
    pub path: String,
    /// Their number.
    pub packets: u64,
    /// Median; `None` if there are too few packets, like all percentiles.
    pub p50_ns: Option<u64>,
    /// 99th percentile.
    pub p99_ns: Option<u64>,
    /// 99.9th percentile.
    pub p999_ns: Option<u64>,
    /// Longest.
    pub max_ns: Option<u64>,
}

/// The changes of a finding, as tried.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Attempt {
    /// The check of the finding.
    pub check: String,
    /// Its title.
    pub title: String,
    /// The changes: `target: before -> after`.
    pub changes: Vec<String>,
    /// The verdict.
    pub verdict: Verdict,
    /// The harm that stopped it, or why it could not be tried to the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Whether they stay.
    pub kept: bool,
    /// Number of blocks with the changes.
    pub blocks: usize,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The figures that were compared.
    pub figures: Vec<TrialFigure>,
}

/// A finding whose changes were not tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotTried {
    /// The check.
    pub check: String,
    /// The title.
    pub title: String,
    /// Why not.
    pub reason: String,
}

/// A finding that is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Left {
    /// The check.
    pub check: String,
    /// The title.
    pub title: String,
    /// The severity.
    pub severity: Severity,
    /// Who can do something about it.
    pub whose: Whose,
}

/// A change that stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Its number in the journal.
    pub id: u64,
    /// What was written to.
    pub target: String,
}
