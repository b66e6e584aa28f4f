//! Hosts by what packets wait for on them.

use super::answer::{AnswerError, Series, series};
use crate::metrics::{Id, METRICS};
use nearpath_model::fleet::{FLEET_SCHEMA, Fleet, FleetFinding, FleetHost};
use std::collections::BTreeMap;

/// Findings and causes of a host that are kept.
const OF_HOST_MAX: usize = 256;

/// What is known of a host so far.
#[derive(Default)]
struct Known {
    /// By check and subject.
    findings: BTreeMap<(String, String), FleetFinding>,
    causes: BTreeMap<String, f64>,
    p99_s: Option<f64>,
}

/// Ranks the hosts of answers; `by` is the label that names a host.
///
/// # Errors
/// They are no answers, or have nothing of nearpath.
pub fn rank(answers: &[u8], by: &str) -> Result<Fleet, AnswerError> {
    let name = |id: Id| METRICS.get(id as usize).map_or("", |metric| metric.name);
    let (active, cost) = (name(Id::FindingActive), name(Id::FindingCost));
    let mut hosts: BTreeMap<String, Known> = BTreeMap::new();
    let (mut known, mut other) = (0, 0);
    for series in series(answers)? {
        let host = series.label(by);
        let metric = series.label("__name__");
        let is_ours = metric.starts_with("nearpath");
        if host.is_empty() || !is_ours {
            other += 1;
            continue;
        }
        known += 1;
        let host = hosts.entry(host.to_owned()).or_default();
        match metric {
            _ if !series.value.is_finite() => {}
            _ if metric == active => host.finding(&series, |finding| {
                finding.severity = series.label("severity").to_owned();
            }),
            _ if metric == cost => host.finding(&series, |finding| finding.cost_s = series.value),
            "nearpath:late_seconds:rate" => host.cause(&series),
            "nearpath:path_latency_seconds:p99" => {
                host.p99_s = Some(host.p99_s.unwrap_or(0.0).max(series.value));
            }
            _ => {}
        }
    }
    if hosts.is_empty() {
        return Err(AnswerError::Empty);
    }
    let mut hosts: Vec<FleetHost> =
        hosts.into_iter().map(|(name, known)| known.host(name)).collect();
    // By name where nothing else differs.
    hosts.sort_by(|a, b| b.is_worse(a));
    Ok(Fleet { schema: FLEET_SCHEMA, hosts, series: known, other_series: other })
}

impl Known {
    /// A finding that ended is 0 for some time.
    fn finding(&mut self, series: &Series, set: impl FnOnce(&mut FleetFinding)) {
        let key = (series.label("check").to_owned(), series.label("subject").to_owned());
        if series.value <= 0.0
            || (self.findings.len() >= OF_HOST_MAX && !self.findings.contains_key(&key))
        {
            return;
        }
        set(self.findings.entry(key).or_insert_with_key(|(check, subject)| FleetFinding {
            check: check.clone(),
            subject: subject.clone(),
            ..FleetFinding::default()
        }));
    }

    fn cause(&mut self, series: &Series) {
        let cause = series.label("cause");
        if series.value > 0.0
            && (self.causes.len() < OF_HOST_MAX || self.causes.contains_key(cause))
        {
            *self.causes.entry(cause.to_owned()).or_default() += series.value;
        }
    }

    fn host(self, name: String) -> FleetHost {
        let mut findings: Vec<FleetFinding> = self.findings.into_values().collect();
        findings.sort_by(|a, b| b.cost_s.total_cmp(&a.cost_s).then(order(b).cmp(&order(a))));
        let mut causes: Vec<(String, f64)> = self.causes.into_iter().collect();
        causes.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        FleetHost {
            name,
            cost_s: findings.iter().map(|finding| finding.cost_s).sum(),
            findings,
            causes,
            p99_ns: self.p99_s.map(|seconds| (seconds * 1e9).round() as u64),
        }
    }
}

fn order(finding: &FleetFinding) -> usize {
    ["info", "warning", "critical"]
        .iter()
        .position(|name| *name == finding.severity)
        .map_or(0, |at| at + 1)
}
