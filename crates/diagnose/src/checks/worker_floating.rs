//! Workers that may run on several CPUs.
//!
//! Input: the workers' affinities. Output: one finding for the workers of a process that float over the same CPUs:
//! `--lcores (1-3)@(31-33)` makes each of three lcores run on any of three CPUs. Two may then share one CPU while another is idle.
//!
//! Rule: DPDK's guide (EAL parameters, `--lcores`), DPVS's guide to worker tuning (one worker a core).

use crate::text::capitalized;
use crate::workers::{DESCRIBED, grouped, lcores, name, names};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{CpuSet, Finding, PollingProcess, PollingWorker};

pub(super) const CHECK: Check =
    Check::new("worker_floating", "workers that may run on several CPUs", run);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let mut floating = Vec::new();
    for (process, worker) in context.pollers() {
        match &worker.cpus {
            None => {
                outcome.not_checked(format!("the CPUs of {} are unknown", name(process, worker)))
            }
            Some(cpus) if cpus.len() > 1 => floating.push(((process, cpus), worker)),
            Some(_) => {}
        }
    }
    for ((process, cpus), workers) in grouped(floating) {
        outcome.findings.push(finding(context, process, &workers, cpus));
    }
    outcome
}

fn finding(
    context: &Context<'_>,
    process: &PollingProcess,
    workers: &[&PollingWorker],
    cpus: &CpuSet,
) -> Finding {
    let delayed = |worker: &PollingWorker| worker.interval.as_ref()?.delayed_percent;
    let most = workers.iter().filter_map(|worker| delayed(worker)).reduce(f64::max);
    let severity = severity::of_condition(context, true, most, 0.1);
    let floats = if workers.len() == 1 { "floats" } else { "float" };
    let title = format!("{} {floats} over {}", names(process, workers), text::cpus_brief(cpus));
    let mut finding = Finding::new(severity, title)
        .share(most.map(|percent| percent / 100.0), "its time that it waited for a CPU");
    for worker in workers.iter().take(DESCRIBED) {
        if let Some(percent) = delayed(worker).filter(|percent| *percent > 0.0) {
            let share = text::percent(percent / 100.0);
            let lcore = capitalized(&lcores(&[worker]));
            finding =
                finding.evidence(format!("{lcore} waited for a CPU for {share} of its time."));
        }
    }
    let shares = |other: &&PollingWorker| {
        workers.iter().all(|worker| worker.lcore != other.lcore)
            && other.cpus.as_ref().is_some_and(|of| !of.intersection(cpus).is_empty())
    };
    let sharing: Vec<&PollingWorker> = process.workers.iter().filter(shares).collect();
    if !sharing.is_empty() {
        finding = finding.evidence(format!(
            "{} may run on some of these CPUs, too.",
            capitalized(&lcores(&sharing))
        ));
    }
    let pairs = workers.iter().zip(cpus.iter()).take(DESCRIBED);
    let own: Vec<String> = pairs.map(|(worker, cpu)| format!("{}@{cpu}", worker.lcore)).collect();
    let it = if workers.len() == 1 { "it" } else { "each" };
    finding.evidence(format!("Give {it} one CPU of its own, as --lcores {} does.", own.join(",")))
}
