//! What `demo tune --json` prints: a misplaced path that is measured, planned for, tried, and undone.

use super::{JournalEntry, UndoneChange};
use nearpath_model::{Finding, Measurement, Plan, TrialReport};
use serde::Serialize;

/// Version of the JSON form of [`TuneDemo`].
pub const TUNE_DEMO_SCHEMA: u32 = 1;

/// The whole demonstration.
#[derive(Debug, Serialize)]
pub struct TuneDemo {
    /// [`TUNE_DEMO_SCHEMA`].
    pub schema: u32,
    /// How long was measured before planning, in seconds.
    pub measured_s: f64,
    /// Packets that were followed meanwhile.
    pub packets: u64,
    /// The findings, the most expensive first.
    pub findings: Vec<Finding>,
    /// The plan that would fix it.
    pub plan: Plan,
    /// What the plan did; `None` when it was not tried.
    pub trial: Option<TrialReport>,
    /// Why not.
    pub not_tried: Option<String>,
    /// The journal after the trial.
    pub journal: Vec<JournalEntry>,
    /// What was rolled back then, in this order.
    pub undone: Vec<UndoneChange>,
    /// Settings that were compared, before everything and after.
    pub settings: usize,
    /// Those that are not as before.
    pub not_restored: Vec<String>,
}

impl TuneDemo {
    /// The demonstration as far as the plan.
    pub fn new(measured: &Measurement, findings: Vec<Finding>, plan: Plan) -> Self {
        Self {
            schema: TUNE_DEMO_SCHEMA,
            measured_s: measured.duration_s,
            packets: measured.packets.started,
            findings,
            plan,
            trial: None,
            not_tried: None,
            journal: Vec::new(),
            undone: Vec::new(),
            settings: 0,
            not_restored: Vec::new(),
        }
    }
}
