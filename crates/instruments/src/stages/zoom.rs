//! Selects stages for a closer look. Input: a measurement with few stages. Output: the stages to observe next,
//! which are those between its stages where time is lost.

use super::table::{STAGES, Stage};
use crate::stamps::NIC_RX;
use nearpath_model::{Detail, Direction, Measurement, Span};

/// A span is examined if this share of all time is spent in it, or if its slowest packets take this long.
const NOTABLE_SHARE: f64 = 0.1;
const SLOW_NS: u64 = 1_000_000;
/// Minimum number of packets to determine where time is lost.
pub const ENOUGH_PACKETS: u64 = 100;

/// Stages at which packets are received before a CPU is selected: one of these is needed to see steering.
pub(super) const ARRIVALS: [&str; 3] = ["napi_gro_receive", "netif_rx", "enqueue_to_backlog"];

/// Names of the stages to observe after a coarse measurement; `None` if it had too few packets.
pub fn zoom(coarse: &Measurement) -> Option<Vec<String>> {
    if coarse.packets.started < ENOUGH_PACKETS {
        return None;
    }
    let all: u64 = coarse.spans.iter().fold(0, |sum, span| sum.saturating_add(span.total_ns));
    let is_lost = |span: &Span| {
        let share = span.total_ns as f64 / all.max(1) as f64;
        let slowest = [span.p999_ns, span.p99_ns].into_iter().flatten().next();
        share >= NOTABLE_SHARE || slowest.is_some_and(|ns| ns >= SLOW_NS)
    };
    let lost: Vec<&Span> = coarse.spans.iter().filter(|span| is_lost(span)).collect();
    let receives = coarse.spans.iter().any(|span| span.direction == Direction::Rx);
    Some(names(|stage| {
        stage.detail == Detail::Coarse
            || (receives && ARRIVALS.contains(&stage.name))
            || lost.iter().any(|span| is_within(span, stage))
    }))
}

/// Names of stages, in the order of the path, without duplicates.
fn names(wanted: impl Fn(&Stage) -> bool) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for stage in STAGES.iter().filter(|stage| wanted(stage)) {
        if !names.iter().any(|name| name == stage.name) {
            names.push(stage.name.to_owned());
        }
    }
    names
}

/// Whether a stage may be within a span: between its ends in the order of the path, or before the first
/// coarsely observed stage of the CPU, if the span starts there.
fn is_within(span: &Span, stage: &Stage) -> bool {
    let find =
        |name: &str| STAGES.iter().position(|s| s.direction == span.direction && s.name == name);
    let (Some(from), Some(to), Some(place)) = (find(&span.from), find(&span.to), find(stage.name))
    else {
        return false;
    };
    let first = STAGES
        .iter()
        .position(|s| {
            s.direction == span.direction && s.detail == Detail::Coarse && s.name != NIC_RX
        })
        .is_some_and(|first| first == from && span.direction == Direction::Rx);
    stage.direction == span.direction && place < to && (place > from || first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::Options;
    use nearpath_model::Packets;

    fn span(direction: Direction, from: &str, to: &str, total_ns: u64, p99_ns: u64) -> Span {
        Span {
            direction,
            from: from.to_owned(),
            to: to.to_owned(),
            count: 1000,
            min_ns: None,
            p50_ns: None,
            p90_ns: None,
            p99_ns: Some(p99_ns),
            p999_ns: None,
            max_ns: None,
            total_ns,
            other_cpu: None,
            other_llc: None,
            other_node: None,
            buckets: vec![],
            places: vec![],
        }
    }

    fn measured(spans: Vec<Span>) -> Measurement {
        let packets = Packets { started: 1000, ..Packets::default() };
        Measurement { packets, spans, ..Measurement::default() }
    }

    fn zoomed(spans: Vec<Span>) -> Vec<String> {
        zoom(&measured(spans)).unwrap()
    }

    #[test]
    fn the_stages_before_the_stack_are_observed_if_softirqs_are_late() {
        let names = zoomed(vec![
            span(Direction::Rx, "net_rx_raise", "netif_receive_skb", 900, 4_000),
            span(Direction::Rx, "netif_receive_skb", "sk_data_ready", 50, 900),
        ]);
        let has = |name: &str| names.iter().any(|n| n == name);
        for name in ["irq_handler", "net_rx_entry", "napi_poll", "process_backlog", "netif_rx"] {
            assert!(has(name), "{name}: {names:?}");
        }
        for name in ["ip_rcv", "udp_rcv", "qdisc_enqueue", "sock_send"] {
            assert!(!has(name), "{name}: {names:?}");
        }
        // What was observed before is observed again, without duplicates.
        assert!(has("sk_data_ready") && has("net_dev_queue"));
        assert_eq!(names.iter().filter(|n| *n == "net_dev_queue").count(), 1);
    }

    #[test]
    fn a_rare_long_wait_is_examined_although_its_sum_is_small() {
        let names = zoomed(vec![
            span(Direction::Rx, "sk_data_ready", "sched_waking", 9_000_000, 2_000),
            span(Direction::Tx, "net_dev_queue", "net_dev_start_xmit", 1_000, 7_000_000),
        ]);
        assert!(names.iter().any(|n| n == "qdisc_dequeue"), "{names:?}");
        assert!(!names.iter().any(|n| n == "net_rx_entry"), "{names:?}");
    }

    #[test]
    fn a_first_look_at_steered_packets_has_the_stages_before_a_cpu_is_chosen() {
        let coarse = Options { detail: Detail::Coarse, arrivals: true, ..Options::default() };
        assert!(
            ARRIVALS.into_iter().all(|name| coarse.observes(name)) && coarse.observes("sock_recv")
        );
        assert!(!coarse.observes("napi_poll") && !coarse.observes("ip_rcv"));
    }

    #[test]
    fn too_few_packets_select_nothing() {
        assert_eq!(zoom(&Measurement::default()), None);
    }
}
