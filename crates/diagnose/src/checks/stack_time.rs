//! Received packets that take long to process, each of them, without waiting for anything.
//!
//! Input: the measured spans in which one CPU processes a packet from stage to stage, and what observing costs on this
//! machine. Output: at most one finding for the driver with its XDP program, and one for the stack.
//!
//! A packet takes some µs from the device to its socket. It takes longer where firewall rules are compared one by one, and
//! where programs (XDP, tc, socket filters, tracing) run for each packet. Machines differ in speed, emulated ones by a
//! factor of 50: so the time is also compared with that of nearpath's own programs, some hundred instructions each. The
//! tenth percentile is taken: packets that wait, and those behind others of one poll, are not among the fastest tenth.
//!
//! Rule: nft(8) (sets and maps instead of lists of rules); the thresholds are measured (docs/checks.md).

use crate::severity::{self, Delay};
use crate::spans::ENOUGH_PACKETS;
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{Direction, Finding, Measurement, ShareKind, Span, Subject};

pub(super) const CHECK: Check =
    Check::new("stack_time", "packets that take long to process, without waiting", run);

/// Time from which it is no healthy stack.
const LONG_NS: u64 = 20_000;
/// The same in runs of nearpath's programs.
const LONG_RUNS: f64 = 60.0;

/// A part of the path in which a packet is processed at once.
struct Part {
    /// Where it may begin and end.
    from: &'static [&'static str],
    to: &'static [&'static str],
    /// Its name, and what to look at.
    name: &'static str,
    hint: &'static str,
}

const PARTS: [Part; 2] = [
    Part {
        from: &["net_rx_entry", "napi_poll"],
        to: &["napi_gro_receive", "netif_receive_skb"],
        name: "in its driver or an XDP program",
        hint: "Look at XDP programs (ip link show, bpftool net show) and how long they run: sysctl -w \
               kernel.bpf_stats_enabled=1, then run_time_ns of bpftool prog show; perf top -C CPU shows functions.",
    },
    Part {
        from: &["netif_receive_skb", "ip_rcv", "ipv6_rcv", "udp_rcv", "udpv6_rcv"],
        to: &[
            "br_handle_frame",
            "ip_rcv",
            "ipv6_rcv",
            "tcp_v4_rcv",
            "tcp_v6_rcv",
            "udp_rcv",
            "udpv6_rcv",
            "tcp_rcv_established",
            "sk_data_ready",
            "net_dev_queue",
        ],
        name: "in the network stack",
        hint: "Look for firewall rules that are compared one by one (nft list ruleset, iptables-save: sets and maps take \
               one look-up), tc and socket filters and tracing programs (bpftool net show; sysctl -w \
               kernel.bpf_stats_enabled=1, then run_time_ns of bpftool prog show); perf top -C CPU shows functions.",
    },
];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measurement) = context.measurement else {
        outcome.not_checked("no measurement: how long packets take is not known");
        return outcome;
    };
    let cpus = context.host.topology.online.len().max(1) as f64;
    let observed_s = measurement.observed_time_s().max(f64::MIN_POSITIVE);
    // What takes more time than there are CPUs is not processing: these packets wait for something that is not known.
    let is_work = |(_, span, each): &(&Part, &Span, u64)| {
        *each as f64 * span.count as f64 / 1e9 / observed_s <= cpus
    };
    let long: Vec<(&Part, &Span, u64)> = PARTS
        .iter()
        .filter_map(|part| longest(measurement, part))
        .filter(is_work)
        .filter(|_| !are_held(measurement))
        .collect();
    match measurement.cost {
        None if !long.is_empty() => {
            outcome.not_checked(
                "how fast this machine runs programs is unknown (no run-time statistics)",
            );
        }
        None => {}
        Some(cost) => outcome.findings.extend(
            long.into_iter()
                .filter(|(.., each)| *each as f64 >= LONG_RUNS * cost.ns_per_event)
                .map(|(part, span, each)| finding(measurement, part, span, each)),
        ),
    }
    outcome
}

/// Whether most of the time of slow packets was in a queue that is not known.
fn are_held(measurement: &Measurement) -> bool {
    let of = |is_it: &dyn Fn(ShareKind) -> bool| -> u64 {
        let all = measurement.budget_totals.iter().filter(|total| is_it(total.share));
        all.map(|total| total.ns).sum()
    };
    let held = of(&|kind| kind == ShareKind::Held);
    held > 0 && held >= of(&|kind| kind.is_time()) / 2
}

/// The span of a part that takes most time, with what nine in ten packets take at least.
fn longest<'a>(measurement: &'a Measurement, part: &'a Part) -> Option<(&'a Part, &'a Span, u64)> {
    let is_of = |span: &&Span| {
        span.direction == Direction::Rx
            && span.count >= ENOUGH_PACKETS
            && part.from.contains(&span.from.as_str())
            && part.to.contains(&span.to.as_str())
    };
    let of = |span: &'a Span| Some((part, span, tenth(span).filter(|each| *each >= LONG_NS)?));
    let spans = measurement.spans.iter().filter(is_of).filter_map(of);
    spans.max_by_key(|(_, span, each)| u128::from(*each) * u128::from(span.count))
}

/// The upper end of the bucket of the tenth percentile.
fn tenth(span: &Span) -> Option<u64> {
    let mut seen = 0u64;
    let mut is_there = |count: u64| {
        seen = seen.saturating_add(count);
        seen >= span.count.div_ceil(10)
    };
    span.buckets.iter().find(|(_, count)| is_there(*count)).map(|(upper, _)| *upper)
}

fn finding(measurement: &Measurement, part: &Part, span: &Span, each: u64) -> Finding {
    let observed_s = measurement.observed_time_s().max(f64::MIN_POSITIVE);
    let per_second = span.count as f64 / observed_s;
    let each = span.p50_ns.unwrap_or(each).max(each);
    let cpu = per_second * each as f64 / 1e9;
    let severity = severity::of_delay(Delay {
        per_second,
        share: 1.0,
        each_ns: Some(each),
        seconds_per_second: Some(cpu),
    });
    let (from, to) = (text::clean(&span.from), text::clean(&span.to));
    let title = format!("Each received packet takes {} {}", text::time(each), part.name);
    let mut finding = Finding::new(severity, title)
        .share(Some(1.0), text::packets(span.count))
        .about([Subject::Span(span.from.clone(), span.to.clone())])
        .evidence(format!(
            "Half of them take that or more from {from} to {to}, without waiting; some µs are usual."
        ))
        .evidence(format!(
            "At {} packets per second that takes {} s of CPU time per second.",
            text::digits(per_second),
            text::digits(cpu)
        ))
        .evidence(part.hint);
    finding.cost.per_packet_ns = Some(each);
    finding.cost.seconds_per_second = Some(cpu);
    finding
}
