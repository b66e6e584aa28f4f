//! Findings: what a check returns.

use nearpath_model::Measurement;
use nearpath_model::accepts::AcceptMeasurement;
use nearpath_model::locality::Locality;
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
    /// Changes that would mend it, in the order to make them; one that is marked as an
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

/// A write to the host that would mend a finding: text for people and data for the tuner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedChange {
    /// What is written: a path under /sys or /proc (`/sys/class/net/eth0/queues/rx-0/rps_cpus`),
    /// a sysctl (`sysctl net.core.netdev_budget`), `ethtool -X eth0 equal`, the affinity of a process
    /// or a thread (`affinity pid 4711`, `affinity pid 4711 tid 4712`), a command of nearpath (`nearpath steer
    /// --port 80`).
    pub target: String,
    /// The value now, in the form that the target takes; `None` when it is unknown.
    pub before: Option<String>,
    /// The value that would mend it.
    pub after: String,
    /// Why, in one sentence.
    pub why: String,
    /// Whether it stands in for the changes before it, instead of being made after them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alternative: bool,
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
