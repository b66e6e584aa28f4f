//! Workers that are never idle.
//!
//! Input: the workers' busy shares, as their processes count them. Output: one finding for each with hardly an empty
//! poll: more packets than now are lost.
//!
//! Rule: DPVS's guide to worker tuning (load by CPU), DPDK's `/eal/lcore/usage`, Open vSwitch's `pmd-stats-show`.

use crate::workers::{busy, name, process_name};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, Subject};

pub(super) const CHECK: Check = Check::new("worker_saturated", "workers without idle time", run);

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
    for (process, worker) in pollers {
        let Some(busy) = busy(worker).filter(|busy| *busy >= FULL) else { continue };
        let severity = severity::of_condition(context, true, Some(busy), FULL);
        let title = format!("{} has no idle time", name(process, worker));
        let mut finding = Finding::new(severity, title)
            .share(Some(busy / 100.0), "its time on packets")
            .about(worker.cpus.iter().flat_map(|cpus| cpus.iter().take(16)).map(Subject::Cpu))
            .evidence(format!("It spent {} of its time on packets.", text::percent(busy / 100.0)));
        if let Some(rate) = worker.interval.as_ref().and_then(|activity| activity.packets_per_s) {
            finding =
                finding.evidence(format!("It received {} a second.", text::packets(rate as u64)));
        }
        outcome
            .findings
            .push(finding.evidence("More packets are lost: add a worker and a queue for it."));
    }
    outcome
}
