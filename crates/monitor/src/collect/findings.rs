//! What is wrong now.

use super::name_of;
use crate::metrics::Id;
use crate::store::Store;
use nearpath_model::{Diagnosis, Finding, Subject};
use std::collections::BTreeMap;

/// Findings with series of their own: the most expensive.
const FINDINGS_MAX: usize = 64;

/// Sets the findings; those that ended are 0 until they are forgotten.
pub fn findings(store: &mut Store, diagnosis: &Diagnosis) {
    store.lower(Id::FindingActive);
    store.lower(Id::FindingCost);
    let mut costs: BTreeMap<(String, String), f64> = BTreeMap::new();
    for finding in diagnosis.findings.iter().take(FINDINGS_MAX) {
        let subject = subject(finding);
        let severity = name_of(&finding.severity);
        store.set(Id::FindingActive, &[&finding.check, &severity, &subject], 1.0);
        let cost = finding.cost.seconds_per_second.filter(|s| s.is_finite()).unwrap_or(0.0);
        *costs.entry((finding.check.clone(), subject)).or_default() += cost;
    }
    for ((check, subject), cost) in costs {
        store.set(Id::FindingCost, &[&check, &subject], cost);
    }
}

/// The label of what a finding is about: its first subject that is no CPU, as there are many of these.
pub fn subject(finding: &Finding) -> String {
    let is_cpu = |subject: &&Subject| matches!(subject, Subject::Cpu(_));
    let first = finding.subjects.iter().find(|s| !is_cpu(s)).or(finding.subjects.first());
    match first {
        Some(Subject::Cpu(cpu)) => format!("cpu {cpu}"),
        Some(Subject::Nic(nic)) => format!("nic {nic}"),
        Some(Subject::Span(from, to)) => format!("{from} > {to}"),
        Some(Subject::Hypervisor) => "hypervisor".to_owned(),
        Some(Subject::Port(port)) => format!("port {port}"),
        None => String::new(),
    }
}
