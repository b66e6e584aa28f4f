//! Received packets that a device holds until a timer expires, before anything else sees them.
//!
//! Input: `gro_flush_timeout` and `napi_defer_hard_irqs` of interfaces, and the measured spans that begin at GRO. Output: one
//! finding for each interface. With a timeout GRO keeps packets for merging until it expires; with deferred interrupts, too,
//! a packet that comes while a queue is not polled waits for it.
//!
//! Rules: Documentation/networking/napi.rst ("Software IRQ coalescing"); `napi_complete_done` of net/core/dev.c.

use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{
    Finding, InterfaceFile, Nic, ProposedChange, SettingFile, Severity, Span, Subject,
};

pub(super) const CHECK: Check =
    Check::new("gro_flush", "received packets that GRO holds until a timer expires", run);

/// A wait from which it is most of a packet's latency; that of busy polling is 20 to 200 µs.
const LONG_NS: u64 = 250_000;
/// What is proposed where interrupts are deferred: the timer is what polls the queue then.
const SHORT_NS: u64 = 20_000;
/// The first stage after the device.
const GRO: [&str; 2] = ["napi_gro_receive", "napi_gro_frags"];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.nics() {
        if nic.gro_flush_timeout_ns.is_none() && context.hardware_nics().any(|its| its == nic) {
            outcome.not_checked(format!("gro_flush_timeout of {} is unknown", nic.name));
        }
        let timeout = nic.gro_flush_timeout_ns.filter(|ns| *ns >= LONG_NS);
        outcome.findings.extend(timeout.map(|ns| finding(context, nic, ns)));
    }
    outcome
}

fn finding(context: &Context<'_>, nic: &Nic, ns: u64) -> Finding {
    let received = context.statistic(nic, "rx_packets");
    let rate = received.and_then(|count| context.rate(count));
    let (name, wait) = (&nic.name, text::time(ns));
    let defers = nic.napi_defer_hard_irqs.unwrap_or(0);
    let spans = context.measurement.iter().flat_map(|measured| &measured.spans);
    let mut held = spans.filter(|span| GRO.contains(&span.from.as_str()));
    let is_long = |span: &&Span| span.p99_ns.is_some_and(|p99| p99 >= ns / 2);
    let seen = held.clone().any(|_| true);
    let long = held.find(is_long);
    // Of several devices the spans do not tell which: an idle one holds nothing.
    let severity = match (seen, long) {
        (true, None) => Severity::Info,
        _ => severity::of_traffic(rate),
    };
    let mut finding = Finding::new(severity, format!("{name} holds received packets for up to {wait}"))
        .about([Subject::Nic(name.clone())])
        .evidence(format!(
            "gro_flush_timeout of {name} is {ns} ns and napi_defer_hard_irqs {defers}: packets wait for the timer before the \
             stack sees them."
        ));
    if let Some(span) = long {
        finding =
            finding.about([Subject::Span(span.from.clone(), span.to.clone())]).evidence(format!(
                "Half of {} took {} or more from {} to {}.",
                text::packets(span.count),
                span.p50_ns.map_or_else(|| "unknown".to_owned(), text::time),
                text::clean(&span.from),
                text::clean(&span.to)
            ));
        finding.cost.max_ns = span.max_ns;
    }
    let after = if defers > 0 { SHORT_NS } else { 0 };
    let why = match defers {
        0 => "Packets are passed on at the end of each poll.",
        _ => "The queue is polled sooner.",
    };
    finding.change(ProposedChange::new(
        SettingFile::interface(name, InterfaceFile::GroFlushTimeout),
        Some(ns.to_string()),
        after.to_string(),
        why,
    ))
}
