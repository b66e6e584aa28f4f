//! Packets that wait for a program to decide about them: NFQUEUE.
//!
//! Input: the queues of the firewall at the start and the end of the interval, and the measured spans. Output: one finding
//! for each queue whose packets waited for a millisecond on average, or that was full. The average is that of Little's law:
//! those that wait, divided by those that come in each second.
//!
//! Rules: net/netfilter/nfnetlink_queue.c; iptables-extensions(8) (NFQUEUE, `--queue-balance`, `--queue-bypass`,
//! `--queue-cpu-fanout`).

use crate::readers::{READ, STAMP};
use crate::severity::{self, LATE_NS};
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{Finding, NfQueue, Span, Subject, Whose};

pub(super) const CHECK: Check =
    Check::new("nfqueue", "packets that wait for a program of the firewall's (NFQUEUE)", run)
        .of(Whose::Application);

/// Packets that wait at both ends of the interval, from which their average says something.
const ENOUGH_WAITING: u64 = 10;
/// Stages between which a packet passes the rules for what this host receives.
const BEFORE: [&str; 4] = ["netif_receive_skb", "ip_rcv", "ipv6_rcv", STAMP];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let queues = &context.host.nfqueues;
    match context.earlier {
        None if queues.is_empty() => {}
        None => outcome.not_checked("no interval: how long packets wait in queues is not known"),
        Some(earlier) => {
            // A program that was restarted has a new queue.
            let then = |now: &NfQueue| {
                let is_it = |then: &&NfQueue| then.number == now.number && then.pid == now.pid;
                earlier.nfqueues.iter().find(is_it).cloned().unwrap_or_default()
            };
            let found = queues.iter().filter_map(|now| finding(context, now, &then(now)));
            outcome.findings.extend(found);
        }
    }
    outcome
}

fn finding(context: &Context<'_>, now: &NfQueue, then: &NfQueue) -> Option<Finding> {
    let queued = now.queued.wrapping_sub(then.queued) & u64::from(u32::MAX);
    let rate = context.rate(queued).filter(|rate| *rate > 0.0)?;
    let lost = now.dropped.saturating_sub(then.dropped);
    let lost = lost.saturating_add(now.user_dropped.saturating_sub(then.user_dropped));
    let least = now.waiting.min(then.waiting);
    let average = (now.waiting as f64 + then.waiting as f64) / 2.0;
    let wait_ns = (least >= ENOUGH_WAITING).then(|| (average / rate * 1e9) as u64);
    let wait_ns = wait_ns.filter(|ns| *ns >= LATE_NS);
    if wait_ns.is_none() && lost == 0 {
        return None;
    }
    let owner = match (&now.comm, now.pid) {
        (Some(comm), Some(pid)) => format!("{} (pid {pid})", text::clean(comm)),
        _ => "a program".to_owned(),
    };
    let number = now.number;
    let losses = severity::of_loss(context, lost, Some(queued));
    let (severity, title) = match wait_ns {
        Some(wait) => {
            let late = severity::of_tail(queued as f64, queued, queued as f64 / rate);
            let wait = text::time(wait);
            (late.max(losses), format!("Packets wait {wait} for {owner} in NFQUEUE {number}"))
        }
        None => {
            let lost = text::count(lost, "packet");
            (losses, format!("NFQUEUE {number} of {owner} was full: {lost} dropped"))
        }
    };
    let mut finding = Finding::new(severity, title).evidence(format!(
        "{} packets per second are sent to it by a rule of the firewall; {} waited at the start and {} at the end.",
        text::digits(rate),
        then.waiting,
        now.waiting
    ));
    if lost > 0 {
        finding =
            finding.evidence(format!("{} dropped as it was full.", text::count(lost, "packet")));
    }
    if let Some(wait) = wait_ns {
        finding.cost.seconds_per_second = Some(wait as f64 / 1e9 * rate);
    }
    let spans = context.measurement.iter().flat_map(|measured| &measured.spans);
    let is_late = |span: &&Span| {
        BEFORE.contains(&span.from.as_str()) && span.p50_ns.is_some_and(|ns| ns >= LATE_NS)
    };
    let about = |span: &Span| Subject::Span(span.from.clone(), span.to.clone());
    let late = spans.filter(is_late).map(about);
    let watched = READ.iter().map(|read| Subject::Span(STAMP.to_owned(), (*read).to_owned()));
    finding = finding.about(late.chain(watched));
    Some(
        finding
            .evidence("That program is their reader, as a socket's: it does not keep up, whatever else runs on its CPU.")
            .evidence(
                "Less work for each packet, several queues (--queue-balance, --queue-cpu-fanout), or only the first \
                 packets of a connection (connmark); --queue-bypass keeps packets while it does not run.",
            ),
    )
}
