//! ETF that takes packets from its queue too late for their time.
//!
//! Input: the delta of each ETF, what it dropped, and, where scheduled transmission was measured, how late CPUs woke up and
//! how many probes missed their time; without a measurement the longest exit latency of the idle states. Output: at most one
//! finding per interface. ETF sets a timer for the packet's time minus delta: if the CPU takes longer than delta to wake
//! up and run the transmit softirq, the time has passed, and the packet is dropped.
//!
//! Rules: tc-etf(8), `etf_dequeue_timesortedlist` and `timesortedlist_drop` in net/sched/sch_etf.c (overlimits count missed
//! packets, drops also those that were refused).

use crate::counters::ratio;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{
    Etf, Finding, Nic, NicKind, Qdisc, ScheduledTransmission, Scheduler, Severity, Subject,
};

pub(super) const CHECK: Check =
    Check::new("etf_delta", "scheduled packets that ETF drops, and deltas that are too short", run);

/// A delta that is proposed is this many times the longest wake-up, rounded up.
const MARGIN: u64 = 2;
const ROUND_NS: u64 = 100_000;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.nics() {
        let etfs = nic.qdiscs.iter().flatten().filter_map(|qdisc| match &qdisc.scheduler {
            Some(Scheduler::Etf(etf)) => Some((qdisc, etf)),
            _ => None,
        });
        for (qdisc, etf) in etfs {
            let measured = context.txtime.filter(|its| leaves_by(context, its, nic));
            outcome.findings.extend(missed(context, nic, qdisc, etf, measured));
            outcome.findings.extend(refused(nic, measured));
            if measured.is_none() && context.host.power.idle_states.is_none() {
                outcome.not_checked(format!(
                    "how long a CPU takes to wake up is unknown: measure it with 'nearpath bench latency --txtime' over {}",
                    nic.name
                ));
            }
        }
    }
    outcome
}

/// Whether the probes left by this interface: it is theirs, the lower one of theirs, or a port of theirs.
pub(super) fn leaves_by(
    context: &Context<'_>,
    measured: &ScheduledTransmission,
    nic: &Nic,
) -> bool {
    let Some(device) = &measured.device else { return false };
    let upper = context.host.nics.iter().find(|its| its.name == *device);
    let is_ovs = |its: &Nic| its.kind == NicKind::OvsInternal;
    let master = context.host.nics.iter().find(|its| Some(&its.name) == nic.master.as_ref());
    *device == nic.name
        || nic.master.as_ref() == Some(device)
        || upper.is_some_and(|upper| upper.link.as_ref() == Some(&nic.name))
        // Internal ports and others have the datapath's own device as their master.
        || (upper.is_some_and(is_ovs) && master.is_some_and(is_ovs))
}

/// Packets whose time passed in the qdisc, in the interval or since it was set up.
fn missed_in(context: &Context<'_>, nic: &Nic, qdisc: &Qdisc) -> u64 {
    let now = qdisc.overlimits.unwrap_or(0);
    let Some(earlier) = context.earlier else { return now };
    let then =
        earlier.nics.iter().find(|then| then.ifindex == nic.ifindex && then.name == nic.name);
    let same = |then: &&Qdisc| (&then.handle, &then.parent) == (&qdisc.handle, &qdisc.parent);
    let then = then.and_then(|then| then.qdiscs.as_ref()?.iter().find(same));
    then.map_or(0, |then| now.saturating_sub(then.overlimits.unwrap_or(0)))
}

fn missed(
    context: &Context<'_>,
    nic: &Nic,
    qdisc: &Qdisc,
    etf: &Etf,
    measured: Option<&ScheduledTransmission>,
) -> Option<Finding> {
    let delta_ns = u64::try_from(etf.delta_ns).unwrap_or(0);
    let (count, of) = match measured {
        Some(its) => (its.dropped_missed, Some(its.sent)),
        None => (missed_in(context, nic, qdisc), None),
    };
    let longest = measured.and_then(|its| its.wake_up.max_ns).and_then(|ns| u64::try_from(ns).ok());
    let usual = measured.and_then(|its| its.wake_up.percentiles.get("99"));
    let usual = usual.and_then(|&ns| u64::try_from(ns).ok()).or(longest);
    let states = context.host.power.idle_states.iter().flatten().filter(|state| !state.disabled);
    let deepest = states.max_by_key(|state| state.latency_us);
    let exit_ns = deepest.map(|state| state.latency_us.saturating_mul(1_000));
    let is_short = usual.or(exit_ns).is_some_and(|ns| delta_ns < ns);
    if count == 0 && !is_short {
        return None;
    }
    let severity = match (count, measured) {
        (0, Some(_)) => Severity::Warning,
        (0, None) => severity::UNFELT,
        (_, None) => severity::of_loss(context, count, None),
        (_, Some(its)) if ratio(count, its.sent).is_some_and(|share| share >= 1e-3) => {
            Severity::Critical
        }
        _ => Severity::Warning,
    };
    let (name, delta) = (&nic.name, text::time(delta_ns));
    let title = if count == 0 {
        format!("{name}: ETF's delta of {delta} is shorter than a CPU takes to wake up")
    } else {
        let packets = text::count(count, "packet");
        format!("{name}: ETF's delta of {delta} is too short: {packets} dropped")
    };
    let mut finding = Finding::new(severity, title)
        .share(of.and_then(|of| ratio(count, of)), "the scheduled packets")
        .about([Subject::Nic(name.clone())]);
    if count > 0 {
        let since = if measured.is_some() { "in the measurement" } else { context.since() };
        finding = finding.evidence(format!("Their time had passed when it took them, {since}."));
    }
    if let (Some(its), Some(longest)) = (measured, longest) {
        let usual = usual.map(|ns| format!("{} at the 99th percentile, ", text::time(ns)));
        finding = finding.evidence(format!(
            "In the same run a thread that slept until {} before the packets' time woke up late: {}{} at most.",
            text::time(its.lead_ns),
            usual.unwrap_or_default(),
            text::time(longest)
        ));
    }
    if let (Some(state), Some(exit_ns)) = (deepest, exit_ns) {
        let name = text::clean(&state.name);
        finding =
            finding.evidence(format!("Idle state {name} takes {} to leave.", text::time(exit_ns)));
    }
    // The timer's wake-up and the softirq that follows it; at least twice of what was too short.
    let wake_up = longest.or(exit_ns).unwrap_or(0).max(delta_ns);
    let proposed = wake_up.saturating_mul(MARGIN).div_ceil(ROUND_NS).saturating_mul(ROUND_NS);
    finding = finding.evidence(format!(
        "Use a delta above what waking up takes, for instance {}, and hand packets over at least as early; or keep the \
         CPUs out of deep idle states ('nearpath tune plan --wakeup-latency').",
        text::time(proposed)
    ));
    Some(finding)
}

/// Probes that ETF did not accept.
fn refused(nic: &Nic, measured: Option<&ScheduledTransmission>) -> Option<Finding> {
    let its = measured.filter(|its| its.dropped_invalid > 0)?;
    let count = text::count(its.dropped_invalid, "scheduled packet");
    Some(
        Finding::new(Severity::Critical, format!("{}: ETF refused {count}", nic.name))
            .share(ratio(its.dropped_invalid, its.sent), "the scheduled packets")
            .about([Subject::Nic(nic.name.clone())])
            .evidence(format!(
                "Their time had passed when they were handed over ({} ahead), or ETF has another clock or mode than the \
                 socket.",
                text::time(its.lead_ns)
            )),
    )
}
