//! ksoftirqd that waits for its CPU while it has packets to process.
//!
//! Input: how long each ksoftirqd ran and was kept waiting, over the interval. Output: one finding for all
//! CPUs where it waited long: softirqs that were put off to it stay undone meanwhile, NET_RX among them.
//!
//! Rules: kernel/softirq.c (`wakeup_softirqd`; it runs as SCHED_OTHER with nice 0),
//! Documentation/scheduler/sched-stats.rst (the second field of schedstat).

use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{CpuId, CpuSet, Finding, Subject};

pub(super) const CHECK: Check =
    Check::new("ksoftirqd_starved", "ksoftirqd kept waiting for its CPU", run)
        .explained_by(&["slow_packets"]);

/// Share of the time that it waited from which it is reported, and from which packets are late often.
const NOTABLE: f64 = 0.02;
const OFTEN: f64 = 0.1;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(earlier) = context.earlier else { return outcome };
    let (Some(seconds), false) = (context.interval_s(), context.host.net_threads.is_empty()) else {
        outcome.not_checked("how long ksoftirqd waited is unknown (/proc/PID/schedstat)");
        return outcome;
    };
    let waited: Vec<(CpuId, f64)> = context
        .host
        .net_threads
        .iter()
        .filter_map(|thread| {
            let cpu = CpuId(thread.comm.strip_prefix("ksoftirqd/")?.parse().ok()?);
            let same = |then: &&nearpath_model::NetThread| {
                (then.pid, &then.comm) == (thread.pid, &thread.comm)
            };
            let then = earlier.net_threads.iter().find(same)?;
            let ns = thread.wait_ns?.saturating_sub(then.wait_ns?);
            Some((cpu, ns as f64 / 1e9 / seconds))
        })
        .filter(|(_, share)| *share >= NOTABLE)
        .collect();
    let Some(worst) = waited.iter().map(|(_, share)| *share).max_by(f64::total_cmp) else {
        return outcome;
    };
    let cpus: CpuSet = waited.iter().map(|(cpu, _)| *cpu).collect();
    let title = format!(
        "ksoftirqd on {} waited up to {} of the time",
        text::cpus_brief(&cpus),
        text::percent(worst)
    );
    // A build keeps ksoftirqd waiting, too: late are packets where there are many.
    let severity = severity::of_condition(
        context,
        worst >= OFTEN,
        context.net_rx_per_s(&cpus),
        severity::TRAFFIC_PER_S,
    );
    let mut finding =
        Finding::new(severity, title).share(Some(worst), "the time").about(Subject::cpus(&cpus));
    for (cpu, share) in waited.iter().take(8) {
        finding = finding.evidence(format!(
            "ksoftirqd/{cpu} was ready and did not run for {}.",
            text::percent(*share)
        ));
    }
    finding = finding.evidence(
        "Other tasks had the CPU: move them, or the interrupts, elsewhere; or run NAPI in threads of its own \
         (/sys/class/net/NIC/threaded) with a higher priority.",
    );
    outcome.findings.push(finding);
    outcome
}
