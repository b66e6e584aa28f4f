//! The stage of the path in which a packet was dropped, from the kernel function that dropped it.
//!
//! The function is the caller of `kfree_skb` after inlining, so names differ between kernels: their common
//! parts are matched, the most specific first.

use nearpath_model::drops::DropStage;

/// How a function is matched.
enum Named {
    Begins(&'static str),
    Has(&'static str),
}
use Named::{Begins, Has};

/// The first match counts.
const FUNCTIONS: &[(Named, DropStage)] = &[
    (Has("xdp"), DropStage::Xdp),
    (Has("backlog_rcv"), DropStage::Socket),
    (Has("tcp_add_backlog"), DropStage::Tcp),
    (Begins("enqueue_to_backlog"), DropStage::Backlog),
    (Begins("process_backlog"), DropStage::Backlog),
    (Begins("flush_backlog"), DropStage::Backlog),
    (Begins("netif_rx"), DropStage::Backlog),
    (Begins("dev_cpu_dead"), DropStage::Backlog),
    (Begins("ovs_"), DropStage::Openvswitch),
    (Begins("do_execute_actions"), DropStage::Openvswitch),
    (Begins("internal_dev"), DropStage::Openvswitch),
    (Has("handle_ing"), DropStage::Tc),
    (Has("handle_egress"), DropStage::Tc),
    (Begins("sch_handle"), DropStage::Tc),
    (Begins("tc_run"), DropStage::Tc),
    (Begins("tcf_"), DropStage::Tc),
    (Begins("tcx_"), DropStage::Tc),
    (Begins("nf_"), DropStage::Netfilter),
    (Begins("nft_"), DropStage::Netfilter),
    (Begins("ipt_"), DropStage::Netfilter),
    (Has("conntrack"), DropStage::Netfilter),
    (Begins("tpacket_rcv"), DropStage::PacketSocket),
    (Begins("packet_"), DropStage::PacketSocket),
    (Begins("br_"), DropStage::UpperDevice),
    (Begins("bond_"), DropStage::UpperDevice),
    (Begins("vlan_"), DropStage::UpperDevice),
    (Begins("macvlan_"), DropStage::UpperDevice),
    (Begins("ipvlan_"), DropStage::UpperDevice),
    (Begins("team_"), DropStage::UpperDevice),
    (Begins("vxlan_"), DropStage::UpperDevice),
    (Begins("geneve_"), DropStage::UpperDevice),
    (Begins("ip_tunnel"), DropStage::UpperDevice),
    (Begins("gre_"), DropStage::UpperDevice),
    (Begins("ipgre_"), DropStage::UpperDevice),
    (Begins("gro_cells"), DropStage::UpperDevice),
    (Begins("arp_"), DropStage::Neighbour),
    (Has("neigh"), DropStage::Neighbour),
    (Begins("ndisc_"), DropStage::Neighbour),
    (Begins("icmp"), DropStage::Icmp),
    (Begins("ping_"), DropStage::Icmp),
    (Has("igmp"), DropStage::Ip),
    (Has("udp"), DropStage::Udp),
    (Has("tcp"), DropStage::Tcp),
    (Begins("inet_csk"), DropStage::Tcp),
    (Begins("reqsk"), DropStage::Tcp),
    (Has("qdisc"), DropStage::Qdisc),
    (Begins("__dev_xmit_skb"), DropStage::Qdisc),
    (Begins("fq_"), DropStage::Qdisc),
    (Begins("tbf_"), DropStage::Qdisc),
    (Begins("htb_"), DropStage::Qdisc),
    (Begins("codel_"), DropStage::Qdisc),
    (Begins("cake_"), DropStage::Qdisc),
    (Begins("netem_"), DropStage::Qdisc),
    (Begins("pfifo_"), DropStage::Qdisc),
    (Begins("etf_"), DropStage::Qdisc),
    (Begins("taprio_"), DropStage::Qdisc),
    (Begins("ipv6_"), DropStage::Ip),
    (Begins("ip6"), DropStage::Ip),
    (Begins("__ip"), DropStage::Ip),
    (Begins("ip_"), DropStage::Ip),
    (Begins("ipv4_"), DropStage::Ip),
    (Begins("inet_frag"), DropStage::Ip),
    (Begins("raw"), DropStage::Socket),
    (Begins("sock_"), DropStage::Socket),
    (Begins("sk_"), DropStage::Socket),
    (Begins("__sk_"), DropStage::Socket),
    (Begins("skb_queue_purge"), DropStage::Socket),
    (Begins("unix_"), DropStage::Socket),
    (Begins("netlink_"), DropStage::Socket),
    (Has("netif_receive"), DropStage::NetifReceive),
    (Begins("napi_"), DropStage::NetifReceive),
    (Begins("gro_"), DropStage::NetifReceive),
    (Begins("dev_gro"), DropStage::NetifReceive),
    (Begins("deliver_"), DropStage::NetifReceive),
    (Begins("__dev_queue_xmit"), DropStage::Transmit),
    (Has("validate_xmit"), DropStage::Transmit),
    (Begins("dev_hard_start_xmit"), DropStage::Transmit),
    (Begins("dev_direct_xmit"), DropStage::Transmit),
    (Begins("skb_"), DropStage::Other),
    (Has("_xmit"), DropStage::Driver),
    (Begins("net_tx_action"), DropStage::Driver),
    (Begins("veth_"), DropStage::Driver),
    (Begins("tun_"), DropStage::Driver),
    (Begins("tap_"), DropStage::Driver),
    (Begins("virtnet_"), DropStage::Driver),
    (Has("_poll"), DropStage::Driver),
    (Has("_clean_"), DropStage::Driver),
];

/// The stage of a function, unless the reason determines it.
pub fn stage_of(function: Option<&str>, reason: Option<&str>) -> DropStage {
    let by_reason = match reason {
        Some(reason) if reason.starts_with("OVS_") => Some(DropStage::Openvswitch),
        Some(reason) if is_of_qdisc(reason) => Some(DropStage::Qdisc),
        Some("XDP") => Some(DropStage::Xdp),
        Some("CPU_BACKLOG") => Some(DropStage::Backlog),
        Some("NETFILTER_DROP") => Some(DropStage::Netfilter),
        Some("TC_INGRESS" | "TC_EGRESS") => Some(DropStage::Tc),
        Some(reason) if reason.starts_with("NEIGH_") => Some(DropStage::Neighbour),
        _ => None,
    };
    by_reason.unwrap_or_else(|| function.map_or(DropStage::Other, stage_of_function))
}

/// Whether a queueing discipline counts drops for that reason.
pub fn is_of_qdisc(reason: &str) -> bool {
    ["QDISC_", "FQ_"].iter().any(|prefix| reason.starts_with(prefix))
        || matches!(reason, "CAKE_FLOOD" | "DUALPI2_STEP_DROP")
}

fn stage_of_function(function: &str) -> DropStage {
    let fits = |named: &Named| match named {
        Begins(prefix) => function.starts_with(prefix),
        Has(part) => function.contains(part),
    };
    let known = FUNCTIONS.iter().find(|(named, _)| fits(named));
    known.map_or(DropStage::Other, |(_, stage)| *stage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_of_stages() {
        for (function, stage) in [
            ("udp_queue_rcv_one_skb", DropStage::Udp),
            ("__udp4_lib_rcv", DropStage::Udp),
            ("udpv6_queue_rcv_one_skb", DropStage::Udp),
            ("tcp_v4_rcv", DropStage::Tcp),
            ("tcp_data_queue", DropStage::Tcp),
            ("enqueue_to_backlog", DropStage::Backlog),
            ("__netif_receive_skb_core", DropStage::NetifReceive),
            ("ip_rcv_finish_core", DropStage::Ip),
            ("ip6_mc_input", DropStage::Ip),
            ("icmpv6_rcv", DropStage::Icmp),
            ("__dev_queue_xmit", DropStage::Transmit),
            ("tun_net_xmit", DropStage::Driver),
            ("veth_xdp_rcv_skb", DropStage::Xdp),
            ("tpacket_rcv", DropStage::PacketSocket),
            ("neigh_probe", DropStage::Neighbour),
            ("do_execute_actions", DropStage::Openvswitch),
            ("arp_process", DropStage::Neighbour),
            ("sock_queue_rcv_skb_reason", DropStage::Socket),
            ("something_else", DropStage::Other),
        ] {
            assert_eq!(stage_of(Some(function), None), stage, "{function}");
        }
        assert_eq!(stage_of(Some("__dev_queue_xmit"), Some("QDISC_DROP")), DropStage::Qdisc);
        assert_eq!(stage_of(None, Some("XDP")), DropStage::Xdp);
        assert_eq!(stage_of(None, None), DropStage::Other);
    }

    #[test]
    fn stage_names_round_trip() {
        for stage in [DropStage::Driver, DropStage::NetifReceive, DropStage::PacketSocket] {
            assert_eq!(serde_json::to_value(stage).unwrap(), stage.to_string());
        }
        let later: DropStage = serde_json::from_str("\"of_a_later_version\"").unwrap();
        assert_eq!(later, DropStage::Other);
    }
}
