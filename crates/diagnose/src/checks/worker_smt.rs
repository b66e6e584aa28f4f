//! Workers on SMT siblings of other workers.
//!
//! Input: the workers' CPUs and their siblings. Output: one finding for the cores on which two workers of the
//! same processes poll. A
//! forwarding worker of DPVS and its isolated receiver are meant to share a core (DPVS's guide to worker tuning).
//!
//! Rule: DPVS's guide to worker tuning (one worker a core); a thread that polls never lets its sibling have the core
//! alone.

use crate::text::capitalized;
use crate::workers::{DESCRIBED, busy, grouped, lcores, name, names};
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
    let mut pairs = Vec::new();
    for (at, first) in pollers.iter().enumerate() {
        let rest = pollers.get(at + 1..).unwrap_or_default();
        for second in rest.iter().filter(|second| shares_core(first.1, second.1)) {
            if !is_pair(first, second) {
                pairs.push(((first.0.pid, second.0.pid), (*first, *second)));
            }
        }
    }
    for (_, of) in grouped(pairs) {
        outcome.findings.extend(finding(context, &of));
    }
    outcome
}

fn shares_core(a: &PollingWorker, b: &PollingWorker) -> bool {
    let cpus = b.cpus.clone().unwrap_or_default();
    !a.siblings.intersection(&cpus).is_empty()
}

/// A forwarding worker and a receiver, of one process.
/// A process and one of its workers.
type Poller<'a> = (&'a PollingProcess, &'a PollingWorker);

/// A forwarding worker and a receiver, of one process.
fn is_pair(a: &Poller<'_>, b: &Poller<'_>) -> bool {
    let roles = [a.1.role, b.1.role];
    a.0.pid == b.0.pid
        && roles.contains(&PollingRole::Forwarding)
        && roles.contains(&PollingRole::IsolatedRx)
}

/// Pairs on one core each; all of the same two processes.
fn finding(context: &Context<'_>, pairs: &[(Poller<'_>, Poller<'_>)]) -> Option<Finding> {
    let (a, b) = pairs.first()?;
    let is_one_process = a.0.pid == b.0.pid;
    let both_busy = |(a, b): &(Poller<'_>, Poller<'_>)| Some(busy(a.1)?.min(busy(b.1)?));
    let both = pairs.iter().filter_map(both_busy).reduce(f64::max);
    // An idle worker that polls takes the core as well, but costs nobody packets yet.
    let severity = severity::of_condition(context, true, both, 20.0);
    let firsts: Vec<&PollingWorker> = pairs.iter().map(|(a, _)| a.1).collect();
    let seconds: Vec<&PollingWorker> = pairs.iter().map(|(_, b)| b.1).collect();
    let title = match (pairs.len(), is_one_process) {
        (1, true) => format!("{} shares a core with {}", name(a.0, a.1), lcores(&seconds)),
        (1, false) => format!("{} shares a core with {}", name(a.0, a.1), name(b.0, b.1)),
        (cores, true) => {
            let all: Vec<&PollingWorker> = firsts.iter().chain(&seconds).copied().collect();
            format!("{} share {cores} cores", names(a.0, &all))
        }
        (_, false) => {
            format!("{} share cores with {}", names(a.0, &firsts), names(b.0, &seconds))
        }
    };
    let mut finding = Finding::new(severity, title);
    for (at, (a, b)) in pairs.iter().enumerate() {
        let cpus = |worker: &PollingWorker| worker.cpus.clone().unwrap_or_default();
        let core: CpuSet = cpus(a.1).union(&cpus(b.1));
        finding = finding.about(core.iter().map(Subject::Cpu));
        if at >= DESCRIBED {
            continue;
        }
        let who = match is_one_process {
            true => capitalized(&lcores(&[a.1, b.1])),
            false => format!("{} and {}", name(a.0, a.1), name(b.0, b.1)),
        };
        finding = finding.evidence(format!("{who} poll on {}.", text::cpus_brief(&core)));
        for of in [a, b] {
            if let Some(busy) = busy(of.1) {
                let busy = text::percent(busy / 100.0);
                finding = finding
                    .evidence(format!("{} is busy for {busy}.", capitalized(&lcores(&[of.1]))));
            }
        }
    }
    Some(
        finding.evidence("Each gets about half of its core: start one of the two on another core."),
    )
}
