//! Many hosts, by what is wrong with them: what `nearpath fleet` shows.

use serde::Serialize;

/// Version of the JSON of `fleet`.
pub const FLEET_SCHEMA: u32 = 1;

/// Hosts at a moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Fleet {
    /// [`FLEET_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// The worst first.
    pub hosts: Vec<FleetHost>,
    /// Series that were read, and of nearpath.
    pub series: usize,
    /// Series of other names, or without a host.
    pub other_series: usize,
}

/// A host.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FleetHost {
    /// The label that names it.
    pub name: String,
    /// Seconds that packets wait per second for what its findings are about.
    pub cost_s: f64,
    /// Findings that hold, the most expensive first.
    pub findings: Vec<FleetFinding>,
    /// What the slowest packets waited for, in seconds per second, the largest first.
    pub causes: Vec<(String, f64)>,
    /// The highest 99th percentile of its whole paths.
    pub p99_ns: Option<u64>,
}

/// A finding of a host.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FleetFinding {
    /// Name of the check.
    pub check: String,
    /// `critical`, `warning`, `info`; empty if unknown.
    pub severity: String,
    /// What it is about.
    pub subject: String,
    /// Seconds that packets wait for it per second; 0 if unknown.
    pub cost_s: f64,
}

impl FleetHost {
    /// Findings of a severity.
    pub fn count(&self, severity: &str) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// Whether it is worse than another: by cost, by findings, by its 99th percentile.
    pub fn is_worse(&self, other: &Self) -> std::cmp::Ordering {
        let counts = |host: &Self| (host.count("critical"), host.count("warning"), host.p99_ns);
        self.cost_s.total_cmp(&other.cost_s).then(counts(self).cmp(&counts(other)))
    }
}

/// Hosts at two moments.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FleetDifference {
    /// [`FLEET_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// Hosts that differ, those that got worst first.
    pub hosts: Vec<HostDifference>,
    /// Hosts that are the same.
    pub same: usize,
    /// Hosts that are there only later.
    pub new: Vec<String>,
    /// Hosts that are there only earlier.
    pub gone: Vec<String>,
}

/// How a host has changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct HostDifference {
    /// The label that names it.
    pub name: String,
    /// Its cost before and after, as in [`FleetHost`].
    pub cost_s: (f64, f64),
    /// Its 99th percentile before and after.
    pub p99_ns: (Option<u64>, Option<u64>),
    /// Findings that were not there before.
    pub began: Vec<FleetFinding>,
    /// Findings that are no longer there.
    pub ended: Vec<FleetFinding>,
}
