//! Workers that may run on several CPUs.
//!
//! Input: the workers' affinities. Output: one finding for each that floats: `--lcores (1-3)@(31-33)` makes each of
//! three lcores run on any of three CPUs. Two may then share one CPU while another is idle.
//!
//! Rule: DPDK's guide (EAL parameters, `--lcores`), DPVS's guide to worker tuning (one worker a core).

use crate::workers::name;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, PollingProcess, PollingWorker};

pub(super) const CHECK: Check =
    Check::new("worker_floating", "workers that may run on several CPUs", run);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for (process, worker) in context.pollers() {
        match &worker.cpus {
            None => {
                outcome.not_checked(format!("the CPUs of {} are unknown", name(process, worker)))
            }
            Some(cpus) if cpus.len() > 1 => {
                outcome.findings.push(finding(context, process, worker))
            }
            Some(_) => {}
        }
    }
    outcome
}

fn finding(context: &Context<'_>, process: &PollingProcess, worker: &PollingWorker) -> Finding {
    let cpus = worker.cpus.clone().unwrap_or_default();
    let delayed = worker.interval.as_ref().and_then(|activity| activity.delayed_percent);
    let severity = severity::of_condition(context, true, delayed, 0.1);
    let title = format!("{} floats over {}", name(process, worker), text::cpus_brief(&cpus));
    let mut finding = Finding::new(severity, title)
        .share(delayed.map(|percent| percent / 100.0), "its time that it waited for a CPU");
    let sharing = process.workers.iter().filter(|other| {
        other.lcore != worker.lcore
            && other.cpus.as_ref().is_some_and(|of| !of.intersection(&cpus).is_empty())
    });
    let sharing: Vec<u32> = sharing.map(|other| other.lcore).take(16).collect();
    if !sharing.is_empty() {
        finding = finding.evidence(format!("So may lcore {}.", text::list(&sharing)));
    }
    finding.evidence(format!(
        "Give it one CPU of its own, as --lcores {}@{} does.",
        worker.lcore,
        cpus.first().map(|cpu| cpu.to_string()).unwrap_or_default()
    ))
}
