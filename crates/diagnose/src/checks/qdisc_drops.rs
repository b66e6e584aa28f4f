//! Packets dropped before they were sent: by queueing disciplines, and by transmit queues that got stuck.
//!
//! Input: the drops of qdiscs and the transmit timeouts of NICs, over the interval when there is an earlier
//! reading. Output: at most one finding of each for each interface.
//!
//! Rules: tc(8), net/sched/sch_generic.c (`dev_watchdog` counts a timeout when a queue was stopped for
//! longer than the driver's `watchdog_timeo`), Documentation/ABI/testing/sysfs-class-net-queues
//! (`tx_timeout`).

use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, Nic, Qdisc, Severity, Subject};

pub(super) const CHECK: Check = Check::new(
    "qdisc_drops",
    "packets that qdiscs dropped, and transmit queues that got stuck",
    run,
);

/// Queueing disciplines that manage their queue (tc-fq_codel(8), tc-cake(8), tc-red(8), tc-pie(8)).
const MANAGERS: [&str; 7] = ["fq_codel", "codel", "cake", "red", "pie", "fq_pie", "dualpi2"];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.nics() {
        if nic.qdiscs.is_none() {
            let why = context.why_unknown(&format!("nic {}", nic.name), "qdiscs");
            outcome.not_checked(format!("the qdiscs of {} are unknown{why}", nic.name));
        }
        outcome.findings.extend(drops(context, nic));
        outcome.findings.extend(timeouts(context, nic));
    }
    outcome
}

fn earlier<'a>(context: &Context<'a>, nic: &Nic) -> Option<&'a Nic> {
    context.earlier?.nics.iter().find(|then| then.ifindex == nic.ifindex && then.name == nic.name)
}

/// What a qdisc dropped; nothing of one that is new, as it may be another one of the same handle.
fn dropped(context: &Context<'_>, nic: &Nic, qdisc: &Qdisc) -> u64 {
    let now = qdisc.drops.unwrap_or(0);
    if context.earlier.is_none() {
        return now;
    }
    let same = |then: &&Qdisc| {
        (&then.kind, &then.handle, &then.parent) == (&qdisc.kind, &qdisc.handle, &qdisc.parent)
    };
    let then = earlier(context, nic).and_then(|then| then.qdiscs.as_ref()?.iter().find(same));
    then.map_or(0, |then| now.saturating_sub(then.drops.unwrap_or(0)))
}

fn drops(context: &Context<'_>, nic: &Nic) -> Option<Finding> {
    let qdiscs = nic.qdiscs.as_ref()?;
    // The policer of a clsact or ingress qdisc drops on purpose.
    let sending =
        qdiscs.iter().filter(|qdisc| !matches!(qdisc.kind.as_str(), "ingress" | "clsact"));
    let by_qdisc: Vec<(&Qdisc, u64)> = sending
        .map(|qdisc| (qdisc, dropped(context, nic, qdisc)))
        .filter(|(_, n)| *n > 0)
        .collect();
    // A root counts what its children drop as well, most of the time.
    let root = by_qdisc.iter().filter(|(q, _)| q.parent == "root").map(|(_, n)| *n).max();
    let children = total(by_qdisc.iter().filter(|(q, _)| q.parent != "root").map(|(_, n)| *n));
    let lost = root.unwrap_or(0).max(children);
    if lost == 0 {
        return None;
    }
    let sent = context.statistic(nic, "tx_packets");
    let since = context.since();
    let leaf = by_qdisc.iter().find(|(qdisc, _)| qdisc.parent != "root").or(by_qdisc.first());
    let kind = leaf.map(|(qdisc, _)| text::clean(&qdisc.kind)).unwrap_or_default();
    let title = format!("{}: {kind} dropped {} {since}", nic.name, text::count(lost, "packet"));
    let share = sent.and_then(|sent| ratio(lost, sent.saturating_add(lost)));
    let severity = severity::of_loss(context, lost, sent);
    // Dropping is how these make senders slow down to the link's rate.
    let severity = match (MANAGERS.contains(&kind.as_str()), severity) {
        (true, Severity::Critical) => Severity::Warning,
        (true, _) => Severity::Info,
        (false, severity) => severity,
    };
    let mut finding = Finding::new(severity, title)
        .share(share, "its packets")
        .about([Subject::Nic(nic.name.clone())]);
    for (qdisc, count) in by_qdisc.iter().take(8) {
        let (kind, parent) = (text::clean(&qdisc.kind), text::clean(&qdisc.parent));
        finding = finding.evidence(format!("{kind} at {parent}: {count} dropped."));
    }
    Some(finding.evidence("AQMs such as fq_codel drop by design; pfifo and tbf when full."))
}

fn timeouts(context: &Context<'_>, nic: &Nic) -> Option<Finding> {
    let now = nic.tx_timeouts?;
    let rise = match context.earlier {
        None => now,
        Some(_) => now.saturating_sub(earlier(context, nic)?.tx_timeouts?),
    };
    if rise == 0 {
        return None;
    }
    let severity = severity::of_condition(context, true, Some(context.per_second(rise)), 0.0);
    let since = context.since();
    let title = format!("{}: transmit queue stuck {} {since}", nic.name, text::count(rise, "time"));
    Some(Finding::new(severity, title).about([Subject::Nic(nic.name.clone())]).evidence(
        "Packets waited for seconds until the watchdog reset the queue: a driver, firmware or cabling fault; see \
         the kernel log (NETDEV WATCHDOG).",
    ))
}
