//! The stages of the packet path and the probes that observe them: the one table that says what
//! is attached where.
//!
//! A probe is a pair of programs in `bpf/stages_*.h`, `NAME_btf` and `NAME_raw`, and may have
//! others at functions for kernels that lack its tracepoint. To observe a further stage: a number
//! in `bpf/stages.h`, a row in [`STAGES`], a program, a row in [`PROBES`].

use crate::Direction;

/// A named point of the packet path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Receive or transmit.
    pub direction: Direction,
    /// Its name in all output.
    pub name: &'static str,
    /// Whether a packet's path ends here.
    pub last: bool,
}

const fn rx(name: &'static str) -> Stage {
    Stage { direction: Direction::Rx, name, last: false }
}

const fn tx(name: &'static str) -> Stage {
    Stage { direction: Direction::Tx, name, last: false }
}

const fn last(stage: Stage) -> Stage {
    Stage { last: true, ..stage }
}

/// All stages in the order of the path; the number of a stage is its index plus one, as in
/// `enum stage` of `bpf/stages.h`.
pub const STAGES: &[Stage] = &[
    rx("irq_handler"),
    rx("net_rx_raise"),
    rx("net_rx_entry"),
    rx("napi_poll"),
    rx("napi_gro_receive"),
    rx("netif_rx"),
    rx("netif_receive_skb"),
    last(rx("net_dev_queue")),
    rx("tcp_rcv_established"),
    rx("sk_data_ready"),
    rx("sched_waking"),
    rx("sched_switch"),
    rx("skb_copy_datagram"),
    last(rx("sock_recv")),
    last(rx("consume_skb")),
    last(rx("kfree_skb")),
    tx("sock_send"),
    tx("tcp_sendmsg"),
    tx("net_dev_queue"),
    tx("qdisc_enqueue"),
    tx("qdisc_dequeue"),
    tx("net_dev_start_xmit"),
    tx("net_dev_xmit"),
    last(tx("netif_rx")),
    last(tx("consume_skb")),
    last(tx("kfree_skb")),
];

/// Where a probe is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Name of the programs without their suffix.
    pub program: &'static str,
    /// The tracepoint, as in `btf_trace_NAME`.
    pub tracepoint: &'static str,
    /// The kernel function that calls it.
    pub function: &'static str,
    /// Functions that stand in, all of them together, where the kernel has no such tracepoint.
    pub instead: &'static [Point],
    /// Names of the stages that it observes, of both directions; empty for a probe that only
    /// keeps what others need.
    pub stages: &'static [&'static str],
}

/// A program at a kernel function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// The program's name behind that of the probe.
    pub suffix: &'static str,
    /// `fentry` or `fexit`.
    pub at: &'static str,
    /// The function.
    pub function: &'static str,
}

const fn probe(
    program: &'static str,
    tracepoint: &'static str,
    function: &'static str,
    stages: &'static [&'static str],
) -> Probe {
    Probe { program, tracepoint, function, instead: &[], stages }
}

const fn or_at(probe: Probe, instead: &'static [Point]) -> Probe {
    Probe { instead, ..probe }
}

const fn entry(suffix: &'static str, function: &'static str) -> Point {
    Point { suffix, at: "fentry", function }
}

const fn exit(suffix: &'static str, function: &'static str) -> Point {
    Point { suffix, at: "fexit", function }
}

/// All probes, in the order in which they are attached: that of the path, but exits before their
/// entries, so that no CPU is taken to be in a handler whose end was not seen.
pub const PROBES: &[Probe] = &[
    probe("irq_handler_exit", "irq_handler_exit", "__handle_irq_event_percpu", &[]),
    probe("irq_handler_entry", "irq_handler_entry", "__handle_irq_event_percpu", &["irq_handler"]),
    probe("softirq_raise", "softirq_raise", "__raise_softirq_irqoff", &["net_rx_raise"]),
    probe("softirq_exit", "softirq_exit", "handle_softirqs", &[]),
    probe("softirq_entry", "softirq_entry", "handle_softirqs", &["net_rx_entry"]),
    probe("napi_poll", "napi_poll", "__napi_poll", &["napi_poll"]),
    probe("napi_gro_receive", "napi_gro_receive_entry", "napi_gro_receive", &["napi_gro_receive"]),
    probe("napi_gro_frags", "napi_gro_frags_entry", "napi_gro_frags", &["napi_gro_receive"]),
    probe("napi_gro_receive_exit", "napi_gro_receive_exit", "napi_gro_receive", &[]),
    probe("napi_gro_frags_exit", "napi_gro_frags_exit", "napi_gro_frags", &[]),
    probe("netif_rx", "netif_rx", "netif_rx_internal", &["netif_rx"]),
    probe(
        "netif_receive_skb",
        "netif_receive_skb",
        "__netif_receive_skb_core",
        &["netif_receive_skb"],
    ),
    probe("tcp_rcv_established", "tcp_probe", "tcp_rcv_established", &["tcp_rcv_established"]),
    or_at(
        probe("sk_data_ready", "sk_data_ready", "sock_def_readable", &["sk_data_ready"]),
        &[entry("entry", "sock_def_readable")],
    ),
    probe("sched_waking", "sched_waking", "try_to_wake_up", &["sched_waking"]),
    probe("sched_switch", "sched_switch", "__schedule", &["sched_switch"]),
    probe(
        "skb_copy_datagram",
        "skb_copy_datagram_iovec",
        "skb_copy_datagram_iter",
        &["skb_copy_datagram"],
    ),
    or_at(
        probe("sock_recv", "sock_recv_length", "sock_recvmsg", &["sock_recv"]),
        &[exit("exit", "inet_recvmsg"), exit("exit6", "inet6_recvmsg")],
    ),
    probe("sock_send", "sys_enter", "syscall entry", &["sock_send"]),
    or_at(
        probe("tcp_sendmsg", "tcp_sendmsg_locked", "tcp_sendmsg_locked", &["tcp_sendmsg"]),
        &[entry("entry", "tcp_sendmsg_locked")],
    ),
    probe("net_dev_queue", "net_dev_queue", "__dev_queue_xmit", &["net_dev_queue"]),
    probe("qdisc_enqueue", "qdisc_enqueue", "dev_qdisc_enqueue", &["qdisc_enqueue"]),
    probe("qdisc_dequeue", "qdisc_dequeue", "dequeue_skb", &["qdisc_dequeue"]),
    probe("net_dev_start_xmit", "net_dev_start_xmit", "xmit_one", &["net_dev_start_xmit"]),
    probe("net_dev_xmit", "net_dev_xmit", "xmit_one", &["net_dev_xmit"]),
    probe("consume_skb", "consume_skb", "consume_skb", &["consume_skb"]),
    probe("kfree_skb", "kfree_skb", "kfree_skb_reason", &["kfree_skb"]),
];

/// Most stages that the programs have room for (`STAGES_MAX` in `bpf/stages.h`).
pub const STAGES_MAX: usize = 64;
/// Most different spans that a measurement keeps apart (`SPANS_MAX` in `bpf/inflight.h`).
pub const SPANS_MAX: usize = 128;

/// The stage of that number.
pub fn stage(number: usize) -> Option<&'static Stage> {
    STAGES.get(number.checked_sub(1)?)
}

/// The pairs of stages that a path can join, as stage numbers, in the order of the path; far more
/// than those that occur on one host.
///
/// A packet may pass stages again (a bridge, a bond, a virtual device on top of another), so a
/// later stage may also come before an earlier one; only what ends a path is followed by nothing,
/// and only the interrupt by nothing preceded.
pub fn spans() -> Vec<(usize, usize)> {
    let numbers = || 1..=STAGES.len();
    let mut pairs = Vec::new();
    for from in numbers() {
        for to in numbers() {
            let (Some(a), Some(b)) = (stage(from), stage(to)) else { continue };
            let begins = matches!(b.name, "irq_handler" | "sock_send");
            // What was copied is only waited for by the end of the receive call.
            let after_copy = a.name != "skb_copy_datagram" || b.name == "sock_recv";
            if a.direction == b.direction && !a.last && !begins && after_copy {
                pairs.push((from, to));
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of `enum stage` in the C header, without the prefix of their direction.
    fn numbers_in_c() -> Vec<(Direction, String)> {
        let header = include_str!("../../../../bpf/stages.h");
        let body = &header[header.find("STAGE_NONE").unwrap()..header.find("STAGE_COUNT").unwrap()];
        body.lines()
            .filter_map(|line| line.trim().split(',').next())
            .filter_map(|name| {
                let (direction, name) = name.split_once('_')?;
                let direction = match direction {
                    "RX" => Direction::Rx,
                    "TX" => Direction::Tx,
                    _ => return None,
                };
                Some((direction, name.to_lowercase()))
            })
            .collect()
    }

    #[test]
    fn stages_have_the_numbers_of_the_programs() {
        let here: Vec<_> = STAGES.iter().map(|s| (s.direction, s.name.to_owned())).collect();
        assert_eq!(here, numbers_in_c());
        assert!(STAGES.len() < STAGES_MAX);
    }

    #[test]
    fn every_stage_has_a_probe_and_every_probe_a_program() {
        let sources = [
            include_str!("../../../../bpf/stages_cpu.h"),
            include_str!("../../../../bpf/stages_rx.h"),
            include_str!("../../../../bpf/stages_tx.h"),
            include_str!("../../../../bpf/stages.bpf.c"),
        ];
        for stage in STAGES {
            assert!(PROBES.iter().any(|p| p.stages.contains(&stage.name)), "{}", stage.name);
        }
        for probe in PROBES {
            let line = format!("PROBE({}, \"{}\")", probe.program, probe.tracepoint);
            assert!(sources.iter().any(|source| source.contains(&line)), "{line}");
            for point in probe.instead {
                let line = match point.at {
                    "fentry" => format!("PROBE_ENTRY({}, \"{}\")", probe.program, point.function),
                    at => format!(
                        "SEC(\"{at}/{}\") int {}_{}(",
                        point.function, probe.program, point.suffix
                    ),
                };
                assert!(sources.iter().any(|source| source.contains(&line)), "{line}");
            }
        }
    }

    #[test]
    fn spans_stay_within_a_direction() {
        for (from, to) in spans() {
            let (from, to) = (stage(from).unwrap(), stage(to).unwrap());
            assert_eq!(from.direction, to.direction);
            assert!(!from.last);
        }
    }
}
