//! Workers that are never idle.
//!
//! Input: the workers' busy shares, as their processes count them. Output: one finding for each process that has
//! workers with hardly an empty poll: more packets than now are lost.
//!
//! Rule: DPVS's guide to worker tuning (load by CPU), DPDK's `/eal/lcore/usage`, Open vSwitch's `pmd-stats-show`.

use crate::text::capitalized;
use crate::workers::{
    DESCRIBED, busy, cpus, grouped, is_away, lcores, names, ports_of, process_name,
};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, PollingPort, PollingProcess, PollingWorker, Subject};

pub(super) const CHECK: Check = Check::new("worker_saturated", "workers without idle time", run)
    .of(nearpath_model::Whose::Application)
    .explained_by(&["worker_missed", "worker_smt"]);

/// Busy share in percent from which on nothing is left.
const FULL: f64 = 99.0;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let pollers = context.pollers();
    for process in context.polling_processes() {
        let mut own = pollers.iter().filter(|(of, _)| of.pid == process.pid).peekable();
        if own.peek().is_some() && own.all(|(_, worker)| busy(worker).is_none()) {
            outcome.not_checked(format!(
                "how busy the workers of {} are is unknown: it does not count cycles",
                process_name(process)
            ));
        }
    }
    let full = pollers
        .into_iter()
        .filter(|(_, worker)| !is_away(worker) && busy(worker).is_some_and(|of| of >= FULL));
    for (process, workers) in grouped(full) {
        outcome.findings.push(finding(context, process, &workers));
    }
    outcome
}

fn finding(context: &Context<'_>, process: &PollingProcess, workers: &[&PollingWorker]) -> Finding {
    let most = workers.iter().filter_map(|worker| busy(worker)).fold(0.0, f64::max);
    let severity = severity::of_condition(context, true, Some(most), FULL);
    let polled = |port: &&PollingPort| {
        workers.iter().any(|worker| match ports_of(process, worker) {
            Some(ports) => ports.iter().any(|of| of.name == port.name),
            None => true,
        })
    };
    let ports = process.ports.iter().filter(polled);
    let has = if workers.len() == 1 { "has" } else { "have" };
    let mut finding =
        Finding::new(severity, format!("{} {has} no idle time", names(process, workers)))
            .share(Some(most / 100.0), "its time on packets")
            .about(workers.iter().flat_map(|worker| cpus(worker)))
            .about(ports.map(|port| Subject::Nic(text::clean(&port.name))));
    for worker in workers.iter().take(DESCRIBED) {
        let share = text::percent(busy(worker).unwrap_or(0.0) / 100.0);
        let rate = worker.interval.as_ref().and_then(|activity| activity.packets_per_s);
        let received =
            rate.map(|rate| format!(", and received {} a second", text::packets(rate as u64)));
        finding = finding.evidence(format!(
            "{} spent {share} of its time on packets{}.",
            capitalized(&lcores(&[worker])),
            received.unwrap_or_default()
        ));
    }
    finding.evidence(if workers.len() == 1 {
        "More packets are lost: add a worker and a queue for it."
    } else {
        "More packets are lost: add workers and queues for them."
    })
}
