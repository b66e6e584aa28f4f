//! Findings: what a check returns.

use crate::accepts::AcceptMeasurement;
use crate::locality::Locality;
use crate::{Measurement, ProposedChange};
use serde::{Deserialize, Serialize};

/// Version of the JSON form of [`Diagnosis`].
pub const DIAGNOSIS_SCHEMA: u32 = 1;

/// All that `diagnose` found: the JSON of `diagnose --json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Diagnosis {
    /// [`DIAGNOSIS_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// Ranked: what costs most comes first.
    pub findings: Vec<Finding>,
    /// Checks that could not be made, or only in part.
    pub not_checked: Vec<NotChecked>,
    /// The host in short.
    pub host: HostSummary,
    /// The measurement of stages that the findings rest on; `None` when there was none.
    pub measurement: Option<Measurement>,
    /// Where stages were measured twice, coarsely and then closer: the one that the findings do not rest on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_look: Option<Measurement>,
    /// The measurement of packets' locality; `None` when there was none.
    #[serde(default)]
    pub locality: Option<Locality>,
    /// The measurement of accepts; `None` when there was none.
    #[serde(default)]
    pub accepts: Option<AcceptMeasurement>,
}

/// A diagnosed problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the check: `rps_placement`.
    pub check: String,
    /// How bad it is.
    pub severity: Severity,
    /// One line that names the thing and the problem.
    pub title: String,
    /// Facts and figures that show it, a sentence each.
    pub evidence: Vec<String>,
    /// What it costs.
    pub cost: FindingCost,
    /// Changes that would fix it, in the order to make them; one that is marked as an
    /// alternative is made instead of those that are not.
    pub changes: Vec<ProposedChange>,
}

/// How bad a finding is; the order is that of the ranking.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing; nothing was seen to suffer from it.
    Info,
    /// It costs something or is likely to.
    Warning,
    /// It makes packets late or loses them, as measured or counted.
    Critical,
}

/// What a finding costs, as far as it is known. Ranking goes by severity, then by
/// `seconds_per_second`, then by `share_percent`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct FindingCost {
    /// Seconds of packets' waiting in each second measured, summed over packets.
    pub seconds_per_second: Option<f64>,
    /// Share of the packets (or of what the check counts) that is affected, 0 to 100.
    pub share_percent: Option<f64>,
    /// Extra latency of one affected packet, at the median.
    pub per_packet_ns: Option<u64>,
}

/// A check that could not be made, or only in part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotChecked {
    /// Name of the check.
    pub check: String,
    /// What was missing.
    pub reason: String,
}

/// The host in short.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HostSummary {
    /// Kernel release.
    pub kernel: Option<String>,
    /// Hypervisor, `none`, or unknown.
    pub virtualisation: Option<String>,
    /// CPUs that run.
    pub online_cpus: usize,
    /// Packages.
    pub packages: usize,
    /// NUMA nodes.
    pub nodes: usize,
    /// Last-level caches.
    pub llcs: usize,
    /// Interfaces, in a few words each: `eth0 virtio_net node 0, 2 rx queues`.
    pub nics: Vec<String>,
}

impl Finding {
    /// A finding without evidence, cost and changes, to which the check adds them.
    pub fn new(severity: Severity, title: impl Into<String>) -> Self {
        Self {
            check: String::new(),
            severity,
            title: title.into(),
            evidence: Vec::new(),
            cost: FindingCost::default(),
            changes: Vec::new(),
        }
    }

    /// Adds a sentence of evidence.
    #[must_use]
    pub fn evidence(mut self, sentence: impl Into<String>) -> Self {
        self.evidence.push(sentence.into());
        self
    }

    /// Sets the share that is affected, from a fraction of 0 to 1; what is no number stays unknown.
    #[must_use]
    pub fn share(mut self, share: Option<f64>) -> Self {
        self.cost.share_percent =
            share.filter(|s| s.is_finite()).map(|s| s.clamp(0.0, 1.0) * 100.0);
        self
    }

    /// Adds a change.
    #[must_use]
    pub fn change(mut self, change: ProposedChange) -> Self {
        self.changes.push(change);
        self
    }
}

impl Diagnosis {
    /// Says first of all that nothing was measured, and why.
    #[must_use]
    pub fn not_measured(mut self, reason: &str) -> Self {
        self.not_checked.insert(0, missing("nothing was", reason));
        self
    }

    /// Says that an instrument's part of the evidence is missing, and why: `stages`.
    #[must_use]
    pub fn not_measured_by(mut self, instrument: &str, reason: &str) -> Self {
        self.not_checked.insert(0, missing(&format!("{instrument} were not"), reason));
        self
    }
}

/// The reason in one harmless line, whoever gave it.
fn missing(what: &str, reason: &str) -> NotChecked {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let reason: String = reason.chars().take(200).map(plain).collect();
    let reason = format!("{what} measured: {reason}");
    NotChecked { check: "measurement".to_owned(), reason }
}
