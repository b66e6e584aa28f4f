//! Workers on CPU 0, or on CPUs that the scheduler uses for others.
//!
//! Input: the workers' CPUs, `isolcpus=` in effect (`/sys/devices/system/cpu/isolated`) and the isolated partitions of
//! cgroups (`cpuset.cpus.isolated`): each alone is enough, and neither is in the other's list. Output: one finding for
//! each process.
//!
//! Rules: DPVS's guide to worker tuning (the first cores are disturbed; isolate the workers'),
//! Documentation/admin-guide/ kernel-parameters.txt (`isolcpus`), cgroup-v2.rst (`cpuset.cpus.partition`).

use crate::workers::{polls, process_name};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{CpuId, CpuSet, Finding, PollingProcess, PollingWorker, Severity, Subject};

pub(super) const CHECK: Check =
    Check::new("worker_isolation", "workers on CPU 0 or on CPUs that are not isolated", run)
        .explained_by(&["worker_disturbed"]);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(workers) = context.workers.filter(|workers| !workers.processes.is_empty()) else {
        return outcome;
    };
    let (boot, cgroups) = (&context.host.kernel.isolated, &workers.isolated_by_cgroups);
    let isolated = match (boot, cgroups) {
        (Some(boot), Some(cgroups)) => boot.union(cgroups),
        (None, _) => {
            let why = context.why_unknown("host", "isolated");
            outcome.not_checked(format!("which CPUs were isolated at boot is unknown{why}"));
            return outcome;
        }
        (_, None) => {
            outcome.not_checked("which CPUs are in isolated partitions of cgroups is unknown");
            return outcome;
        }
    };
    for process in context.polling_processes() {
        outcome.findings.extend(finding(context, process, &isolated));
    }
    outcome
}

fn finding(context: &Context<'_>, process: &PollingProcess, isolated: &CpuSet) -> Option<Finding> {
    let workers: Vec<&PollingWorker> =
        process.workers.iter().filter(|worker| polls(worker)).collect();
    let cpus = workers.iter().filter_map(|worker| worker.cpus.as_ref());
    let cpus = cpus.fold(CpuSet::new(), |all, cpus| all.union(cpus));
    let shared = cpus.difference(isolated);
    let on_first = cpus.contains(CpuId(0));
    if shared.is_empty() && !on_first {
        return None;
    }
    let is_felt = |worker: &&&PollingWorker| {
        worker.interval.as_ref().is_some_and(|activity| activity.is_disturbed == Some(true))
    };
    let felt = workers.iter().filter(is_felt).count();
    let severity =
        if felt > 0 && context.earlier.is_some() { Severity::Warning } else { severity::UNFELT };
    let title = match shared.is_empty() {
        true => format!("{} polls on CPU 0", process_name(process)),
        false => format!(
            "{} polls on {}, not isolated",
            process_name(process),
            text::cpus_brief(&shared)
        ),
    };
    let mut finding = Finding::new(severity, title).about(shared.iter().map(Subject::Cpu));
    if !shared.is_empty() {
        let kept = if isolated.is_empty() {
            "No CPU is isolated, neither at boot nor by a cgroup.".to_owned()
        } else {
            format!("Isolated are {}.", text::cpus_brief(isolated))
        };
        finding = finding.evidence(kept);
    }
    if on_first {
        finding =
            finding.evidence("CPU 0 also has the kernel's own timekeeping and many interrupts.");
    }
    if felt > 0 {
        finding = finding
            .evidence(format!("{} disturbed in the interval.", text::count(felt as u64, "worker")));
    }
    Some(
        finding.evidence(
            "nearpath tune plan --dpdk prints the kernel command line that isolates them.",
        ),
    )
}
