//! CPUs that the hypervisor takes away while packets wait.
//!
//! Input: how each CPU spent its time. Output: one finding for a guest whose CPUs were
//! stolen from; nothing inside the guest fixes it, so there is no change.
//!
//! Rule: Documentation/filesystems/proc.rst (`steal`: involuntary wait of a guest).

use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{CpuSet, Finding, Subject};

pub(super) const CHECK: Check =
    Check::new("cpu_steal", "time that the hypervisor took from this guest's CPUs", run)
        .of(nearpath_model::Whose::Hypervisor);

/// Share of a CPU's time from which packets on it are likely to be late.
const NOTABLE: f64 = 0.05;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    if context.host.kernel.virtualisation.as_deref() == Some("none") {
        return outcome;
    }
    let shares = context.time_shares();
    if shares.values().all(|time| time.steal.is_none()) {
        outcome.not_checked("how much time the hypervisor took is unknown (/proc/stat)");
    }
    let stolen: Vec<_> = shares
        .iter()
        .filter_map(|(cpu, time)| Some((*cpu, time.steal?)))
        .filter(|(_, steal)| *steal >= NOTABLE)
        .collect();
    let Some(worst) = stolen.iter().map(|(_, steal)| *steal).max_by(f64::total_cmp) else {
        return outcome;
    };
    let cpus: CpuSet = stolen.iter().map(|(cpu, _)| *cpu).collect();
    let severity = severity::of_condition(context, true, Some(worst), NOTABLE);
    let title = format!(
        "The hypervisor took up to {} of {}",
        text::percent(worst),
        text::cpus_brief(&cpus)
    );
    let mut finding =
        Finding::new(severity, title).share(Some(worst), "its time").about([Subject::Hypervisor]);
    for (cpu, steal) in stolen.iter().take(8) {
        let (steal, since) = (text::percent(*steal), context.since());
        finding = finding.evidence(format!("CPU {cpu}: {steal} of its time {since}."));
    }
    finding = finding.evidence(
        "Long latencies on these CPUs may come from the host: give the guest dedicated CPUs there.",
    );
    outcome.findings.push(finding);
    outcome
}
