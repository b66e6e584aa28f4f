//! Workers whose CPU others took, and who they were.
//!
//! Input: what ran on the workers' CPUs in the interval. Output: one finding for each disturbed worker. What a worker
//! does not poll meanwhile waits in the NIC's ring, and is lost when that is full: 1,024 packets arrive in 0.1 to 1 ms.
//!
//! Rules: DPVS's guide to worker tuning (the first cores are disturbed), `nearpath_model::DISTURBED_PERCENT` and
//! `DISTURBED_NS`.

use crate::workers::name;
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{
    Finding, PollingProcess, PollingWorker, Severity, Subject, WorkerActivity, Workers,
};

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
    for (process, worker) in context.pollers() {
        let Some(activity) = &worker.interval else { continue };
        match activity.is_disturbed {
            Some(true) => outcome.findings.push(finding(workers, process, worker, activity)),
            Some(false) => {}
            None => {
                outcome.not_checked(format!("how long {} waited is unknown", name(process, worker)))
            }
        }
    }
    outcome
}

fn finding(
    workers: &Workers,
    process: &PollingProcess,
    worker: &PollingWorker,
    activity: &WorkerActivity,
) -> Finding {
    let lost = activity.lost_percent().unwrap_or(0.0);
    let severity = if lost >= CRITICAL_PERCENT { Severity::Critical } else { Severity::Warning };
    let others = workers.others_of(worker);
    let who = others.first().map(|(_, task)| format!("{}[{}]", text::clean(&task.comm), task.tid));
    let stolen = activity.stolen_percent.unwrap_or(0.0);
    let by = match who {
        Some(_) if stolen > activity.others_percent.unwrap_or(0.0) => {
            " to the hypervisor".to_owned()
        }
        Some(who) => format!(", most to {who}"),
        None => String::new(),
    };
    let title =
        format!("{} lost {} of its time{by}", name(process, worker), text::percent(lost / 100.0));
    let mut finding = Finding::new(severity, title)
        .share(Some(lost / 100.0), "its time")
        .about(worker.cpus.iter().flat_map(|cpus| cpus.iter().take(16)).map(Subject::Cpu));
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
    if let Some(delayed) = activity.delayed_percent.filter(|delayed| *delayed > 0.0) {
        let delayed = text::percent(delayed / 100.0);
        finding =
            finding.evidence(format!("It was ready to run and did not for {delayed} of the time."));
    }
    if stolen > 0.0 {
        let stolen = text::percent(stolen / 100.0);
        finding = finding.evidence(format!("The hypervisor took {stolen} of its CPU."));
    }
    finding.evidence(
        "Keep tasks off its CPU: isolate it, and move interrupts and pinned threads elsewhere.",
    )
}
