//! The probes of the instrument `locality`, by method.

use crate::kernel::{Chosen, Point, Probe, entry, helper_probe, probe, result, returns};
use nearpath_model::locality::Method;

/// The return of a function that allocates an sk_buff.
const fn allocates(point: &'static [Point; 1]) -> Probe {
    returns("alloc", point)
}

/// Its program has the same name.
const fn allocation(function: &'static str) -> Point {
    result(function, function)
}

/// All probes.
pub const PROBES: &[Probe] = &[
    allocates(&[allocation("__alloc_skb")]),
    allocates(&[allocation("__build_skb")]),
    allocates(&[allocation("build_skb")]),
    allocates(&[allocation("slab_build_skb")]),
    allocates(&[allocation("__napi_build_skb")]),
    allocates(&[allocation("napi_build_skb")]),
    allocates(&[allocation("__netdev_alloc_skb")]),
    allocates(&[allocation("__napi_alloc_skb")]),
    allocates(&[allocation("napi_alloc_skb")]),
    probe("softirq_exit", "softirq_exit", "handle_softirqs", &[]),
    probe("softirq_entry", "softirq_entry", "handle_softirqs", &[]),
    probe("napi_gro_receive", "napi_gro_receive_entry", "napi_gro_receive", &[]),
    probe("napi_gro_frags", "napi_gro_frags_entry", "napi_gro_frags", &[]),
    probe("napi_gro_receive_exit", "napi_gro_receive_exit", "napi_gro_receive", &[]),
    probe("napi_gro_frags_exit", "napi_gro_frags_exit", "napi_gro_frags", &[]),
    probe("netif_rx", "netif_rx", "netif_rx_internal", &[]),
    probe("netif_receive_skb", "netif_receive_skb", "__netif_receive_skb_core", &[]),
    probe("net_dev_queue", "net_dev_queue", "__dev_queue_xmit", &[]),
    probe("tcp_sendmsg", "tcp_sendmsg_locked", "tcp_sendmsg_locked", &[]),
    probe("tcp_rcv_established", "tcp_probe", "tcp_rcv_established", &[]),
    probe("sk_data_ready", "sk_data_ready", "sock_def_readable", &[]),
    probe("skb_copy_datagram", "skb_copy_datagram_iovec", "skb_copy_datagram_iter", &[]),
    probe("sock_recv", "sock_recv_length", "sock_recvmsg", &[]),
    probe("consume_skb", "consume_skb", "consume_skb", &[]),
    probe("kfree_skb", "kfree_skb", "kfree_skb_reason", &[]),
    helper_probe(&[entry("skb_release_head_state")], "skb_release_head_state"),
    helper_probe(&[entry("napi_skb_free_stolen_head")], "napi_skb_free_stolen_head"),
    helper_probe(&[entry("skb_attempt_defer_free")], "skb_attempt_defer_free"),
];

/// The functions that are required. The others call one of these, or exist only on some kernels:
/// `slab_build_skb` since 6.3, `napi_build_skb` since 5.13, `skb_attempt_defer_free` since 5.19.
const NEEDED: &[&str] =
    &["__alloc_skb", "build_skb", "skb_release_head_state", "napi_skb_free_stolen_head"];

/// Tracepoints that replace functions if these cannot be attached to.
const STAND_INS: &[&str] = &[
    "napi_gro_receive_exit",
    "napi_gro_frags_exit",
    "tcp_sendmsg",
    "tcp_rcv_established",
    "sk_data_ready",
    "skb_copy_datagram",
    "sock_recv",
];

/// Tracepoints that identify the process of packets.
const FOR_PROCESSES: &[&str] = &["softirq_entry", "softirq_exit", "sock_recv"];

/// Whether a probe is needed for a method, with or without grouping by process or cgroup.
pub fn is_for(probe: &Probe, method: Method, by_process: bool) -> bool {
    if FOR_PROCESSES.contains(&probe.program) && by_process {
        return true;
    }
    if probe.program.starts_with("softirq_") {
        return false;
    }
    match method {
        Method::Exact => !STAND_INS.contains(&probe.program),
        Method::Tracepoints => probe.tracepoint.is_some(),
    }
}

/// Why packets cannot be tracked exactly with these probes: the missing ones.
pub fn lacks(chosen: &[Chosen], skipped: &[(&'static Probe, String)]) -> Option<String> {
    let missing = NEEDED.iter().find(|function| {
        !chosen.iter().any(|(p, _)| p.tracepoint.is_none() && p.function == **function)
    })?;
    let reason = skipped.iter().find(|(p, _)| p.function == *missing).map(|(_, why)| why.clone());
    Some(reason.unwrap_or_else(|| format!("{missing} cannot be attached to")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_has_its_programs() {
        crate::kernel::assert_has_programs::<crate::locality::load::skeleton::LocalitySkelBuilder>(
            PROBES,
        );
    }

    #[test]
    fn each_method_has_its_probes() {
        for name in NEEDED {
            let of = |p: &&Probe| p.tracepoint.is_none() && p.function == *name;
            let probe = PROBES.iter().find(of).unwrap();
            assert!(
                is_for(probe, Method::Exact, false) && !is_for(probe, Method::Tracepoints, true)
            );
        }
        for name in STAND_INS {
            let probe = PROBES.iter().find(|p| p.program == *name).unwrap();
            assert!(
                is_for(probe, Method::Tracepoints, false) && !is_for(probe, Method::Exact, false)
            );
        }
        assert!(lacks(&[], &[]).is_some());
    }
}
