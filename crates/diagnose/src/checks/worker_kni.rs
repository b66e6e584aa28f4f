//! KNI, which DPDK removed in 23.11, and the threads of what replaces it on the workers' CPUs.
//!
//! Input: the processes' descriptors and options, the kernel's modules, the affinities of vhost threads. Output: a finding
//! for each process that uses KNI, and one for each whose vhost threads (of virtio-user ports) may run where workers poll.
//!
//! Rules: DPDK's release notes of 23.11, its guide "Virtio_user as Exception Path".

use crate::workers::{polls, process_name};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{CpuSet, Finding, PollingProcess, PollingRole, Subject};

pub(super) const CHECK: Check =
    Check::new("worker_kni", "KNI, and vhost threads on the CPUs of workers", run);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for process in context.polling_processes() {
        let module = context.workers.and_then(|workers| workers.kni_module);
        if process.uses_kni.is_none() && module.is_none() {
            let process = process_name(process);
            outcome.not_checked(format!("whether {process} uses KNI is unknown"));
        }
        if uses_kni(process) {
            let title = format!("{} uses KNI, gone since DPDK 23.11", process_name(process));
            let version = process.version.as_deref().map(text::clean).unwrap_or_default();
            let finding = Finding::new(severity::UNFELT, title)
                .evidence(format!(
                    "It runs {version}, which still has it: an update takes it away."
                ))
                .evidence("virtio-user replaces it; its vhost threads need CPUs of their own.");
            outcome.findings.push(finding);
        }
        outcome.findings.extend(vhost(context, process));
    }
    outcome
}

fn uses_kni(process: &PollingProcess) -> bool {
    process.uses_kni == Some(true)
        || process.workers.iter().any(|worker| worker.role == PollingRole::Kni)
        || process.eal.iter().any(|word| word.contains("net_kni"))
}

fn vhost(context: &Context<'_>, process: &PollingProcess) -> Option<Finding> {
    let cpus = process.workers.iter().filter(|worker| polls(worker));
    let cpus = cpus.filter_map(|worker| worker.cpus.as_ref());
    let cpus = cpus.fold(CpuSet::new(), |all, cpus| all.union(cpus));
    // Before 6.4 a kernel thread with the process in its name.
    let own = format!("vhost-{}", process.pid);
    let threads = context.host.net_threads.iter().filter(|thread| {
        thread.comm.starts_with("vhost-")
            && (thread.process == Some(process.pid) || thread.comm == own)
    });
    let there: Vec<_> = threads
        .filter_map(|thread| {
            let shared = thread.cpus.as_ref()?.intersection(&cpus);
            (!shared.is_empty()).then_some((thread, shared))
        })
        .collect();
    let (_, shared) = there.first()?;
    let title = format!(
        "vhost threads of {} may use its workers' {}",
        process_name(process),
        text::cpus_brief(shared)
    );
    let mut finding = Finding::new(severity::UNFELT, title).about(shared.iter().map(Subject::Cpu));
    for (thread, shared) in there.iter().take(8) {
        let name = text::clean(&thread.comm);
        finding = finding.evidence(format!(
            "{name}[{}] may use {}.",
            thread.pid,
            text::cpus_brief(shared)
        ));
    }
    Some(finding.evidence("Bind them to other CPUs of the same node: taskset -p, or a cpuset of the process without the workers' CPUs."))
}
