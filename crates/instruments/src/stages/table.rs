//! The stages of the packet path and the probes that observe them: the single table of attach points.
//!
//! To observe a further stage: a line in `bpf/stages.h`, from which [`STAGES`] is generated, a program in
//! `bpf/stages_*.h`, a row in [`PROBES`].

use super::watch::SKB_TSTAMP;
use crate::kernel::{
    Point, Probe, at, better_at, entry, entry_by, exit, helper_probe, of, or_at, pointed_to, probe,
    returns,
};
use crate::stamps::NIC_RX;
use nearpath_model::{Detail, Direction};
use std::sync::LazyLock;

/// A named point of the packet path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// Receive or transmit.
    pub direction: Direction,
    /// Its name in all output.
    pub name: &'static str,
    /// The lowest detail that includes it.
    pub detail: Detail,
    /// Whether a packet's path ends here.
    pub last: bool,
}

include!(concat!(env!("OUT_DIR"), "/stages_table.rs"));

/// The stage of the receive path with that name.
pub fn receive_stage(name: &str) -> Option<&'static Stage> {
    STAGES.iter().find(|stage| stage.direction == Direction::Rx && stage.name == name)
}

/// The lowest detail that includes a stage with that name, in either direction.
pub fn detail_of(name: &str) -> Option<Detail> {
    STAGES.iter().filter(|stage| stage.name == name).map(|stage| stage.detail).min()
}

/// A tracepoint of an interrupt, used only for budgets.
const fn vector(name: &'static str, function: &'static str) -> Probe {
    budget(probe(name, name, function, &[]))
}

/// A probe that budgets need.
const fn budget(probe: Probe) -> Probe {
    Probe { history: true, ..probe }
}

/// A probe that watches every packet.
const fn watch(probe: Probe) -> Probe {
    Probe { watch: true, ..probe }
}

/// A probe without stages, needed to observe others.
const fn keeps_for(stages: &'static [&'static str], probe: Probe) -> Probe {
    Probe { keeps_for: stages, ..probe }
}

/// An upper (stacked) device receives the address of the pointer to the sk_buff, so that it can replace it.
const fn upper(module: Option<&'static str>, function: &'static str) -> Point {
    pointed_to(Point { module, ..entry(function) })
}

const fn ovs(function: &'static str) -> Point {
    of("openvswitch", entry(function))
}

/// What is known only through the run of a softirq that it belongs to.
const WITHIN_RUNS: &[&str] =
    &["net_rx_entry", "irq_handler", "napi_poll", "process_backlog", "sock_send"];

/// All probes, in the order in which they are attached: that of the path, but exits before entries, so that no
/// CPU is taken to be in a handler whose end was missed.
pub const PROBES: &[Probe] = &[
    budget(keeps_for(
        &["irq_handler"],
        probe("irq_handler_exit", "irq_handler_exit", "__handle_irq_event_percpu", &[]),
    )),
    budget(probe(
        "irq_handler_entry",
        "irq_handler_entry",
        "__handle_irq_event_percpu",
        &["irq_handler"],
    )),
    vector("local_timer_exit", "sysvec_apic_timer_interrupt"),
    vector("local_timer_entry", "sysvec_apic_timer_interrupt"),
    vector("call_function_single_exit", "sysvec_call_function_single"),
    vector("call_function_single_entry", "sysvec_call_function_single"),
    budget(probe("cpuhp_enter", "cpuhp_enter", "cpuhp_invoke_callback", &[])),
    budget(probe("softirq_raise", "softirq_raise", "__raise_softirq_irqoff", &["net_rx_raise"])),
    budget(keeps_for(WITHIN_RUNS, probe("softirq_exit", "softirq_exit", "handle_softirqs", &[]))),
    budget(keeps_for(
        WITHIN_RUNS,
        probe("softirq_entry", "softirq_entry", "handle_softirqs", &["net_rx_entry"]),
    )),
    probe("napi_poll", "napi_poll", "__napi_poll", &["napi_poll"]),
    probe("napi_gro_receive", "napi_gro_receive_entry", "napi_gro_receive", &["napi_gro_receive"]),
    probe("napi_gro_frags", "napi_gro_frags_entry", "napi_gro_frags", &["napi_gro_receive"]),
    keeps_for(
        &["napi_gro_receive"],
        probe("napi_gro_receive_exit", "napi_gro_receive_exit", "napi_gro_receive", &[]),
    ),
    keeps_for(
        &["napi_gro_receive"],
        probe("napi_gro_frags_exit", "napi_gro_frags_exit", "napi_gro_frags", &[]),
    ),
    probe("netif_rx", "netif_rx", "netif_rx_internal", &["netif_rx"]),
    at(&[entry("enqueue_to_backlog")], &["enqueue_to_backlog"]),
    at(&[entry("process_backlog")], &["process_backlog"]),
    probe(
        "netif_receive_skb",
        "netif_receive_skb",
        "__netif_receive_skb_core",
        &[NIC_RX, "netif_receive_skb"],
    ),
    at(&[entry("gro_cells_receive")], &["gro_cells_receive"]),
    at(&[upper(None, "vlan_do_receive")], &["vlan_do_receive"]),
    at(&[upper(Some("bonding"), "bond_handle_frame")], &["bond_handle_frame"]),
    at(&[upper(Some("bridge"), "br_handle_frame")], &["br_handle_frame"]),
    at(&[upper(Some("macvlan"), "macvlan_handle_frame")], &["macvlan_handle_frame"]),
    at(&[upper(Some("tap"), "tap_handle_frame")], &["tap_handle_frame"]),
    at(&[ovs("ovs_vport_receive")], &["ovs_vport_receive"]),
    at(&[ovs("ovs_dp_process_packet")], &["ovs_dp_process_packet"]),
    at(&[ovs("ovs_dp_upcall")], &["ovs_dp_upcall"]),
    at(&[ovs("ovs_flow_key_extract_userspace")], &["ovs_packet_cmd_execute"]),
    at(&[ovs("ovs_vport_send")], &["ovs_vport_send"]),
    at(&[ovs("internal_dev_recv")], &["internal_dev_recv"]),
    at(&[entry("ip_rcv")], &["ip_rcv"]),
    at(&[entry("ipv6_rcv")], &["ipv6_rcv"]),
    at(&[entry("tcp_v4_rcv")], &["tcp_v4_rcv"]),
    at(&[entry("tcp_v6_rcv")], &["tcp_v6_rcv"]),
    at(&[entry("udp_rcv")], &["udp_rcv"]),
    at(&[entry("udpv6_rcv")], &["udpv6_rcv"]),
    probe("tcp_rcv_established", "tcp_probe", "tcp_rcv_established", &["tcp_rcv_established"]),
    or_at(
        probe("sk_data_ready", "sk_data_ready", "sock_def_readable", &["sk_data_ready"]),
        &[entry("sock_def_readable")],
    ),
    budget(probe("sched_waking", "sched_waking", "try_to_wake_up", &["sched_waking"])),
    budget(probe("sched_switch", "sched_switch", "__schedule", &["sched_switch"])),
    budget(probe("sched_migrate_task", "sched_migrate_task", "set_task_cpu", &[])),
    budget(helper_probe(&[entry("unthrottle_cfs_rq")], "unthrottle_cfs_rq")),
    probe(
        "skb_copy_datagram",
        "skb_copy_datagram_iovec",
        "skb_copy_datagram_iter",
        &["skb_copy_datagram"],
    ),
    keeps_for(&["sock_recv"], helper_probe(&[entry("skb_consume_udp")], "consume_udp")),
    or_at(
        probe("sock_recv", "sock_recv_length", "sock_recvmsg", &["sock_recv"]),
        &[exit("exit", "inet_recvmsg"), exit("exit6", "inet6_recvmsg")],
    ),
    // Includes io_uring threads, and leaves other system calls untouched.
    better_at(
        probe("sock_send", "sys_enter", "syscall entry", &["sock_send"]),
        &[
            exit("inet_exit", "inet_sendmsg"),
            exit("inet6_exit", "inet6_sendmsg"),
            entry_by("inet", "inet_sendmsg"),
            entry_by("inet6", "inet6_sendmsg"),
        ],
    ),
    // Sent by sendfile(2) and splice(2), before 6.5.
    Probe {
        stages: &["sock_send"],
        points: &[exit("page_exit", "inet_sendpage"), entry_by("page", "inet_sendpage")],
        ..returns("sock_send", &[exit("page_exit", "inet_sendpage")])
    },
    or_at(
        probe("tcp_sendmsg", "tcp_sendmsg_locked", "tcp_sendmsg_locked", &["tcp_sendmsg"]),
        &[entry("tcp_sendmsg_locked")],
    ),
    at(&[entry("__tcp_transmit_skb")], &["tcp_transmit_skb"]),
    at(&[entry("__ip_queue_xmit")], &["ip_queue_xmit"]),
    at(&[entry("inet6_csk_xmit")], &["inet6_csk_xmit"]),
    at(&[entry("ip_send_skb")], &["ip_send_skb"]),
    at(&[entry("ip6_send_skb")], &["ip6_send_skb"]),
    probe("net_dev_queue", "net_dev_queue", "__dev_queue_xmit", &["net_dev_queue"]),
    keeps_for(&["net_dev_xmit"], returns("gso_segment", &[exit("exit", "__skb_gso_segment")])),
    probe("qdisc_enqueue", "qdisc_enqueue", "dev_qdisc_enqueue", &["qdisc_enqueue"]),
    probe("qdisc_dequeue", "qdisc_dequeue", "dequeue_skb", &["qdisc_dequeue"]),
    probe("net_dev_start_xmit", "net_dev_start_xmit", "xmit_one", &["net_dev_start_xmit"]),
    at(&[ovs("internal_dev_xmit")], &["internal_dev_xmit"]),
    probe("net_dev_xmit", "net_dev_xmit", "xmit_one", &["net_dev_xmit"]),
    probe("consume_skb", "consume_skb", "consume_skb", &["consume_skb"]),
    probe("kfree_skb", "kfree_skb", "kfree_skb_reason", &["kfree_skb"]),
    watch(better_at(
        probe("watch_datagram", "consume_skb", "consume_skb", &[]),
        &[entry("skb_consume_udp")],
    )),
    watch(probe("watch_ready", "sk_data_ready", "sock_def_readable", &[])),
    watch(probe("watch_receive", "sock_recv_length", "sock_recvmsg", &[])),
    watch(probe("watch_segment", "skb_copy_datagram_iovec", "skb_copy_datagram_iter", &[])),
];

/// Maximum number of spans of a measurement (`SPANS_MAX` in `bpf/inflight.h`).
pub const SPANS_MAX: usize = 128;

/// The stage with that number.
pub fn stage(number: usize) -> Option<&'static Stage> {
    STAGES.get(number.checked_sub(1)?)
}

/// The pairs of stages that a path can join, as stage numbers, in the order of the path; far more than occur on
/// one host.
///
/// A packet may pass stages again (a bridge, a bond, a stacked virtual device), so a later stage may also come
/// before an earlier one. Only the end of a path has no successor, and only the NIC's timestamp comes before
/// the interrupt, and nothing before it.
pub fn spans() -> &'static [(usize, usize)] {
    static SPANS: LazyLock<Vec<(usize, usize)>> = LazyLock::new(pairs_of_stages);
    &SPANS
}

fn pairs_of_stages() -> Vec<(usize, usize)> {
    let numbers = || 1..=STAGES.len();
    let mut pairs = Vec::new();
    for from in numbers() {
        for to in numbers() {
            let (Some(a), Some(b)) = (stage(from), stage(to)) else { continue };
            let begins = match b.name {
                // NET_RX may have been raised by its interrupt.
                "irq_handler" => a.name != NIC_RX,
                name => name == NIC_RX || name == "sock_send",
            };
            // After the copy, only the end of the receive call follows.
            let after_copy = a.name != "skb_copy_datagram" || b.name == "sock_recv";
            // Seen only from a packet's end.
            let is_watched = [a.name, b.name].contains(&SKB_TSTAMP);
            if a.direction == b.direction && !is_watched && !a.last && !begins && after_copy {
                pairs.push((from, to));
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_can_be_followed_with_each_detail() {
        assert!(STAGES.len() < STAGES_MAX);
        // A path starts and ends in either direction, even with the fewest hooks.
        for direction in [Direction::Rx, Direction::Tx] {
            let coarse =
                || STAGES.iter().filter(|s| s.direction == direction && s.detail == Detail::Coarse);
            assert!(coarse().any(|s| s.last) && coarse().any(|s| !s.last));
        }
        // No program is attached without need, whatever is requested.
        for probe in PROBES {
            let names = probe.stages.iter().chain(probe.keeps_for);
            assert!(names.clone().all(|name| detail_of(name).is_some()), "{probe:?}");
            assert!(probe.history || probe.watch || names.count() > 0, "{probe:?}");
        }
    }

    #[test]
    fn every_stage_has_a_probe_and_every_probe_a_program() {
        // (The stamp is no call.)
        for stage in STAGES.iter().filter(|stage| stage.name != SKB_TSTAMP) {
            assert!(PROBES.iter().any(|p| p.stages.contains(&stage.name)), "{}", stage.name);
        }
        crate::kernel::assert_has_programs::<crate::stages::load::skeleton::StagesSkelBuilder>(
            PROBES,
        );
    }

    #[test]
    fn spans_stay_within_a_direction() {
        for &(from, to) in spans() {
            let (from, to) = (stage(from).unwrap(), stage(to).unwrap());
            assert_eq!(from.direction, to.direction);
            assert!(!from.last);
        }
    }
}
