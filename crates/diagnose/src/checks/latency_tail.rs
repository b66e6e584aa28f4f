//! Softirqs and readers that mostly run at once and sometimes wait very long.
//!
//! Input: the measured spans that are pure waiting for a CPU: from a softirq's raise to its
//! entry, from a reader's wake-up to its switch-in. Output: one finding for each whose tail is
//! many times its median.
//!
//! Rule: everoute's analysis of latency tails (tails of milliseconds over medians of microseconds point to starvation,
//! not to distance).

use crate::severity::{LATE_NS, late_of, of_tail};
use crate::spans::ENOUGH_PACKETS;
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{Direction, Finding, Severity, Span, Subject};

pub(super) const CHECK: Check =
    Check::new("latency_tail", "softirqs and readers that sometimes wait very long for a CPU", run)
        .explained_by(&["slow_packets", "idle_wakeups"]);

/// The spans, who waits in them, and where to look.
const WAITS: [(&str, &str, &str, &str); 2] = [
    (
        "net_rx_raise",
        "net_rx_entry",
        "NET_RX",
        "Look for interrupts, other softirqs and ksoftirqd behind busy threads on these CPUs.",
    ),
    (
        "sched_waking",
        "sched_switch",
        "The reader",
        "Look for busy threads on the reader's CPUs, its priority and its cgroup's quota.",
    ),
];

/// A tail is this many times the median, and at least [`LATE_NS`] long.
const TIMES: u64 = 20;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measurement) = context.measurement else {
        outcome.not_checked("no measurement: how long packets wait is not known");
        return outcome;
    };
    for (from, to, who, hint) in WAITS {
        let is_it =
            |s: &&Span| s.direction == Direction::Rx && s.from == from && s.to == to && s.count > 0;
        match measurement.spans.iter().find(is_it) {
            Some(span) => {
                outcome.findings.extend(finding(span, measurement.observed_time_s(), who, hint))
            }
            None if ![from, to].into_iter().all(|stage| measurement.observed(stage)) => {
                outcome.not_checked(format!("{from} -> {to} was not observed"));
            }
            None => outcome.not_checked(format!("{from} -> {to} was not measured")),
        }
    }
    outcome
}

fn finding(span: &Span, observed_s: f64, who: &str, hint: &str) -> Option<Finding> {
    let median = span.p50_ns?;
    let deep = [("p99.9", span.p999_ns), ("p99", span.p99_ns), ("longest", span.max_ns)];
    let (name, tail) = deep.into_iter().find_map(|(name, ns)| Some((name, ns?)))?;
    if span.count < ENOUGH_PACKETS || tail < LATE_NS || tail < median.saturating_mul(TIMES) {
        return None;
    }
    let late = late_of(span);
    // It names no cause: those that do go before it.
    let severity = of_tail(late as f64, span.count, observed_s).min(Severity::Warning);
    let title = format!("{who} waits up to {} for a CPU", text::time(span.max_ns.unwrap_or(tail)));
    let mut finding = Finding::new(severity, title)
        .about([Subject::Span(span.from.clone(), span.to.clone())])
        .evidence(format!(
            "{} -> {}: median {}, {name} {}.",
            span.from,
            span.to,
            text::time(median),
            text::time(tail)
        ))
        .evidence(hint);
    if late > 0 {
        let share = crate::counters::ratio(late, span.count);
        finding = finding.share(share, text::packets(span.count)).evidence(format!(
            "{late} of {} packets waited longer than {}.",
            span.count,
            text::time(LATE_NS)
        ));
    }
    Some(finding)
}
