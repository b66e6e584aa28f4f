//! Workers whose CPU others took, and who they were.
//!
//! Input: what ran on the workers' CPUs in the interval. Output: one finding for the disturbed workers of a process. What a worker
//! does not poll meanwhile waits in the NIC's ring, and is lost when that is full: 1,024 packets arrive in 0.1 to 1 ms.
//!
//! Rules: DPVS's guide to worker tuning (the first cores are disturbed), `nearpath_model::DISTURBED_PERCENT` and
//! `DISTURBED_NS`.

use crate::text::capitalized;
use crate::workers::{DESCRIBED, cpus, grouped, lcores, name, names};
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{Finding, PollingProcess, PollingWorker, Severity, WorkerActivity, Workers};

pub(super) const CHECK: Check =
    Check::new("worker_disturbed", "tasks that ran on the CPUs of workers, and stolen time", run);

/// Share of a worker's time whose loss is critical: it serves a tenth less than it could.
const CRITICAL_PERCENT: f64 = 10.0;
/// Tasks named in the evidence.
const NAMED: usize = 5;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(workers) = context.workers.filter(|workers| workers.duration_s.is_some()) else {
        if context.earlier.is_some() && !context.polling_processes().is_empty() {
            outcome.not_checked("what ran on the workers' CPUs was not measured");
        }
        return outcome;
    };
    for missing in &workers.not_available {
        if !workers.processes.is_empty() {
            let (what, why) = (text::clean(&missing.what), text::clean(&missing.reason));
            outcome.not_checked(format!("{what} are unknown ({why})"));
        }
    }
    let mut disturbed = Vec::new();
    for (process, worker) in context.pollers() {
        let Some(activity) = &worker.interval else { continue };
        match activity.is_disturbed {
            Some(true) => disturbed.push((process, (worker, activity))),
            Some(false) => {}
            None => {
                outcome.not_checked(format!("how long {} waited is unknown", name(process, worker)))
            }
        }
    }
    for (process, of) in grouped(disturbed) {
        outcome.findings.push(finding(workers, process, &of));
    }
    outcome
}

/// A worker and what it lost.
type Disturbed<'a> = (&'a PollingWorker, &'a WorkerActivity);

fn finding(workers: &Workers, process: &PollingProcess, disturbed: &[Disturbed<'_>]) -> Finding {
    let own: Vec<&PollingWorker> = disturbed.iter().map(|(worker, _)| *worker).collect();
    let most = |of: fn(&WorkerActivity) -> Option<f64>| {
        disturbed.iter().filter_map(|(_, activity)| of(activity)).fold(0.0, f64::max)
    };
    let lost = most(WorkerActivity::lost_percent);
    let severity = if lost >= CRITICAL_PERCENT { Severity::Critical } else { Severity::Warning };
    let mut others: Vec<_> = own.iter().flat_map(|worker| workers.others_of(worker)).collect();
    others.sort_by_key(|(_, task)| std::cmp::Reverse(task.ran_ns));
    let who = others.first().map(|(_, task)| format!("{}[{}]", text::clean(&task.comm), task.tid));
    let by = match who {
        _ if most(|of| of.stolen_percent) > most(|of| of.others_percent) => {
            " to the hypervisor".to_owned()
        }
        Some(who) => format!(", most to {who}"),
        None => String::new(),
    };
    let share = match own.len() {
        1 => format!("{} of its time", text::percent(lost / 100.0)),
        _ => format!("up to {}", text::percent(lost / 100.0)),
    };
    let title = format!("{} lost {share}{by}", names(process, &own));
    let mut finding = Finding::new(severity, title)
        .share(Some(lost / 100.0), "its time")
        .about(own.iter().flat_map(|worker| cpus(worker)));
    for (cpu, task) in others.iter().take(NAMED) {
        let runs = text::count(task.runs.max(1), "time");
        finding = finding.evidence(format!(
            "{}[{}] ran on CPU {cpu} for {}, {runs}, at most {} at a stretch.",
            text::clean(&task.comm),
            task.tid,
            text::time(task.ran_ns),
            text::time(task.longest_ns)
        ));
    }
    for (worker, activity) in disturbed.iter().take(DESCRIBED) {
        let lcore = capitalized(&lcores(&[worker]));
        if let Some(delayed) = activity.delayed_percent.filter(|delayed| *delayed > 0.0) {
            let delayed = text::percent(delayed / 100.0);
            finding = finding.evidence(format!(
                "{lcore} was ready to run and did not for {delayed} of the time."
            ));
        }
        if let Some(stolen) = activity.stolen_percent.filter(|stolen| *stolen > 0.0) {
            let stolen = text::percent(stolen / 100.0);
            finding = finding.evidence(format!(
                "The hypervisor took {stolen} of the CPU of {}.",
                lcores(&[worker])
            ));
        }
    }
    let (its, cpu, it) =
        if own.len() == 1 { ("its", "CPU", "it") } else { ("their", "CPUs", "them") };
    finding.evidence(format!(
        "Keep tasks off {its} {cpu}: isolate {it}, and move interrupts and pinned threads elsewhere."
    ))
}
