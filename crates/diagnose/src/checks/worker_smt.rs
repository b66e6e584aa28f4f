//! Workers on SMT siblings of other workers.
//!
//! Input: the workers' CPUs and their siblings. Output: one finding for each core with two workers that poll. A
//! forwarding worker of DPVS and its isolated receiver are meant to share a core (DPVS's guide to worker tuning).
//!
//! Rule: DPVS's guide to worker tuning (one worker a core); a thread that polls never lets its sibling have the core
//! alone.

use crate::workers::name;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{CpuSet, Finding, PollingProcess, PollingRole, PollingWorker, Subject};

pub(super) const CHECK: Check =
    Check::new("worker_smt", "workers that share a core with another worker", run);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let pollers = context.pollers();
    for (process, worker) in &pollers {
        if worker.cpus.is_none() {
            outcome.not_checked(format!("the CPUs of {} are unknown", name(process, worker)));
        }
    }
    for (at, first) in pollers.iter().enumerate() {
        let rest = pollers.get(at + 1..).unwrap_or_default();
        for second in rest.iter().filter(|second| shares_core(first.1, second.1)) {
            if !is_pair(first, second) {
                outcome.findings.push(finding(context, first, second));
            }
        }
    }
    outcome
}

fn shares_core(a: &PollingWorker, b: &PollingWorker) -> bool {
    let cpus = b.cpus.clone().unwrap_or_default();
    !a.siblings.intersection(&cpus).is_empty()
}

/// A forwarding worker and a receiver, of one process.
fn is_pair(a: &(&PollingProcess, &PollingWorker), b: &(&PollingProcess, &PollingWorker)) -> bool {
    let roles = [a.1.role, b.1.role];
    a.0.pid == b.0.pid
        && roles.contains(&PollingRole::Forwarding)
        && roles.contains(&PollingRole::IsolatedRx)
}

fn finding(
    context: &Context<'_>,
    a: &(&PollingProcess, &PollingWorker),
    b: &(&PollingProcess, &PollingWorker),
) -> Finding {
    let busy = [a, b].map(|(_, worker)| crate::workers::busy(worker));
    let both = busy[0].zip(busy[1]).map(|(a, b)| a.min(b));
    // An idle worker that polls takes the core as well, but costs nobody packets yet.
    let severity = severity::of_condition(context, true, both, 20.0);
    let cpus = |worker: &PollingWorker| worker.cpus.clone().unwrap_or_default();
    let core: CpuSet = cpus(a.1).union(&cpus(b.1));
    let title = format!(
        "{} shares a core with {}",
        name(a.0, a.1),
        if a.0.pid == b.0.pid { format!("lcore {}", b.1.lcore) } else { name(b.0, b.1) }
    );
    let mut finding = Finding::new(severity, title).about(core.iter().map(Subject::Cpu));
    finding = finding.evidence(format!("They poll on {}.", text::cpus_brief(&core)));
    for (of, busy) in [a, b].into_iter().zip(busy) {
        if let Some(busy) = busy {
            let busy = text::percent(busy / 100.0);
            finding = finding.evidence(format!("Lcore {} is busy for {busy}.", of.1.lcore));
        }
    }
    finding.evidence("Each gets about half of the core: start one of them on another core.")
}
