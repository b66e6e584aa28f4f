//! Packets that are late, whatever the reason.
//!
//! Input: the measured spans. Output: at most one finding per direction, about the span in which most packets wait for
//! longer than 1 ms, if they are more than a tail. It names no cause: where one is known, this becomes its symptom.
//!
//! Rule: everoute's analysis of latency tails (latencies of milliseconds on one host); nothing on a host takes that
//! long unless it waits.

use crate::readers::{self, READ};
use crate::severity::{LATE_NS, late_of, of_tail, watched_tail};
use crate::spans::ENOUGH_PACKETS;
use crate::{Check, CheckOutcome, Context, counters, text};
use nearpath_model::{Direction, Finding, Measurement, PathKind, Severity, Span, Subject, Watch};

pub(super) const CHECK: Check =
    Check::new("late_packets", "packets that wait for longer than 1ms, whatever the reason", run)
        .explained_by(&["gro_flush", "nfqueue", "slow_packets", "latency_tail", "idle_wakeups"]);

/// The share of a span's packets from which they are no tail: tails are `latency_tail`'s.
const NOTABLE: f64 = 0.01;
/// Late packets from which they are no accident.
const ENOUGH_LATE: u64 = 10;

/// What is freed after it was sent did not wait: devices report it when it suits them.
const FREED: [&str; 2] = ["consume_skb", "kfree_skb"];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    outcome.findings.extend(context.measurement.and_then(watched));
    match context.measurement {
        Some(measurement) => outcome.findings.extend(
            [Direction::Rx, Direction::Tx].into_iter().filter_map(|way| finding(measurement, way)),
        ),
        None => outcome.not_checked("no measurement: how long packets wait is not known"),
    }
    outcome
}

/// Where the watch sees the end of a packet.
const ENDS: [&str; 3] = ["sock_recv", "skb_copy_datagram", "consume_skb"];

/// A tail among all packets that were received, which are counted one by one.
fn watched(measurement: &Measurement) -> Option<Finding> {
    let watch = watched_tail(measurement)?;
    let severity =
        of_tail(watch.late as f64, watch.packets, watch.watched_s).min(Severity::Warning);
    if severity == Severity::Info {
        return None;
    }
    let share = counters::ratio(watch.late, watch.packets);
    let than = text::time(watch.late_ns);
    let title = format!("{} received packets were later than {than}", watch.late);
    let mut finding = Finding::new(severity, title)
        .share(share, text::packets(watch.packets))
        .about(ENDS.map(|end| Subject::Span(readers::STAMP.to_owned(), end.to_owned())))
        .evidence(format!(
            "{} of {} packets reached their reader more than {than} after the kernel had received them.",
            watch.late, watch.packets
        ))
        .evidence(format!("The cause is known for {} of them.", watch.explained))
        .evidence("measure stages --slow 1ms --outliers 10 follows some of them.");
    let path = measurement.paths.iter().find(|path| path.kind == PathKind::Watch);
    finding.cost.max_ns = path.and_then(|path| path.max_ns);
    Some(finding)
}

/// Whether fewer of all packets were late than is notable: those that were followed, in slices, are no fair sample.
fn denies(watch: &Watch) -> bool {
    let share = counters::ratio(watch.late, watch.packets);
    watch.is_whole() && watch.late_ns <= LATE_NS && share.is_some_and(|share| share < NOTABLE)
}

fn finding(measurement: &Measurement, direction: Direction) -> Option<Finding> {
    let is_it = |span: &&Span| {
        let is_sent = direction == Direction::Tx && FREED.contains(&span.to.as_str());
        let is_enough = span.count >= ENOUGH_PACKETS || late_of(span) >= ENOUGH_LATE;
        span.direction == direction && is_enough && !is_sent
    };
    let span = measurement.spans.iter().filter(is_it).max_by_key(|span| late_of(span))?;
    let late = late_of(span);
    let share = counters::ratio(late, span.count).filter(|share| *share >= NOTABLE)?;
    if READ.contains(&span.to.as_str()) && measurement.watch.as_ref().is_some_and(denies) {
        return None;
    }
    // It names no cause: those that do go before it.
    let severity =
        of_tail(late as f64, span.count, measurement.observed_time_s()).min(Severity::Warning);
    let (from, to) = (text::clean(&span.from), text::clean(&span.to));
    let (place, hint) = match (direction, to.as_str()) {
        (Direction::Rx, to) if READ.contains(&to) => (
            "wait in their socket for longer than 1ms".to_owned(),
            "Their reader did not read them in time: check what it does, and its CPU.",
        ),
        (Direction::Tx, "net_dev_start_xmit") => (
            "wait in a qdisc for longer than 1ms".to_owned(),
            "It shapes or paces them, or the device does not take them: look at tc -s qdisc show.",
        ),
        _ => (
            format!("are late from {from} to {to}"),
            "measure stages --slow 1ms --outliers 10 follows some of them.",
        ),
    };
    let title = format!("{} of packets {place}", text::percent(share));
    let mut finding = Finding::new(severity, title)
        .share(Some(share), text::packets(span.count))
        .about([Subject::Span(span.from.clone(), span.to.clone())])
        .evidence(format!(
            "{late} of {} from {from} to {to} took longer than {}{}.",
            text::count(span.count, "packet"),
            text::time(LATE_NS),
            span.p50_ns
                .map_or_else(String::new, |ns| format!(", half of all {} or more", text::time(ns)))
        ))
        .evidence(hint);
    finding.cost.max_ns = span.max_ns;
    Some(finding)
}
