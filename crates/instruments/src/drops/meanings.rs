//! Descriptions of drop reasons, after include/net/dropreason-core.h, with what to check first.

/// By name, ascending. The first words, up to a colon, are used alone in headlines.
const MEANINGS: &[(&str, &str)] = &[
    ("BPF_CGROUP_EGRESS", "refused by a BPF program of the sender's cgroup"),
    (
        "BRIDGE_INGRESS_STP_STATE",
        "bridge port blocked or disabled: spanning tree, or bridge link set state (bridge link)",
    ),
    ("CAKE_FLOOD", "unresponsive flow: dropped by the qdisc cake (BLUE)"),
    (
        "CPU_BACKLOG",
        "CPU backlog full: its CPU receives more than it can process (net.core.netdev_max_backlog), or the RPS flow limit was reached",
    ),
    ("DEV_HDR", "malformed header for the device"),
    ("DEV_READY", "device not ready: down, or without a reader"),
    ("DUALPI2_STEP_DROP", "queue delay above the threshold of the qdisc dualpi2"),
    ("DUP_FRAG", "duplicate fragment"),
    ("FQ_BAND_LIMIT", "band of the qdisc fq full"),
    ("FQ_FLOW_LIMIT", "flow limit of the qdisc fq reached: one flow has too many packets queued"),
    ("FQ_HORIZON_LIMIT", "send time beyond the horizon of the qdisc fq"),
    ("FRAG_REASM_TIMEOUT", "fragments missing: the packet could not be reassembled in time"),
    ("FRAG_TOO_FAR", "fragments too far apart (net.ipv4.ipfrag_max_dist)"),
    ("FULL_RING", "ring of the device or tap full: its reader is too slow"),
    ("HDR_TRUNC", "header truncated"),
    ("ICMP_CSUM", "wrong ICMP checksum"),
    (
        "INVALID_PROTO",
        "not allowed by the protocol, such as an ICMP timestamp request to a broadcast address",
    ),
    ("IPV6DISABLED", "IPv6 disabled on the device"),
    ("IPV6_BAD_EXTHDR", "bad IPv6 extension header"),
    ("IPV6_NDISC_BAD_CODE", "invalid neighbour discovery message (code)"),
    ("IPV6_NDISC_BAD_OPTIONS", "invalid neighbour discovery message (options)"),
    ("IPV6_NDISC_FRAG", "fragmented neighbour discovery message"),
    ("IPV6_NDISC_HOP_LIMIT", "neighbour discovery message from beyond the link"),
    ("IPV6_NDISC_NS_OTHERHOST", "neighbour solicitation for another host: normal"),
    ("IP_CSUM", "wrong IP header checksum"),
    ("IP_INADDRERRORS", "host unreachable: not for this host, which does not forward it"),
    ("IP_INHDR", "bad IP header, or TTL exceeded"),
    ("IP_INNOROUTES", "no route to the destination"),
    ("IP_INVALID_DEST", "invalid destination address"),
    ("IP_INVALID_SOURCE", "invalid source address"),
    ("IP_LOCALNET", "loopback address from outside"),
    ("IP_LOCAL_SOURCE", "source address is this host's own"),
    ("IP_NOPROTO", "no handler for the IP protocol"),
    ("IP_OUTNOROUTES", "no route to the destination of a packet to send"),
    ("IP_RPFILTER", "reverse path filter: the answer would leave by another device (rp_filter)"),
    ("IP_TUNNEL_ECN", "invalid ECN bits in a tunnel"),
    ("LOCAL_MAC", "source MAC address is this host's own"),
    ("MAC_IEEE_MAC_CONTROL", "link-local control frame that the bridge does not forward: normal"),
    ("MAC_INVALID_SOURCE", "invalid source MAC address"),
    ("NEIGH_CREATEFAIL", "no room for another neighbour (neigh/default/gc_thresh3)"),
    ("NEIGH_DEAD", "neighbour entry was being removed"),
    ("NEIGH_FAILED", "neighbour does not answer ARP or neighbour discovery"),
    ("NEIGH_HH_FILLFAIL", "no link-layer header for the neighbour"),
    ("NEIGH_QUEUEFULL", "queue of an unresolved neighbour full (neigh/default/unres_qlen_bytes)"),
    ("NETFILTER_DROP", "dropped by a firewall rule (nftables, iptables)"),
    ("NOMEM", "out of memory"),
    ("NOT_SPECIFIED", "not specified: the kernel gives no reason here; look at the function"),
    ("NO_SOCKET", "no socket: no listener on the port"),
    ("NO_TX_TARGET", "no device to send by"),
    (
        "OTHERHOST",
        "for another host: seen as the device is promiscuous, or by a bridge or switch that floods",
    ),
    ("OVS_DROP_ACTION_ERROR", "an action of Open vSwitch failed"),
    ("OVS_DROP_CONNTRACK", "refused by Open vSwitch's connection tracking"),
    ("OVS_DROP_DEFERRED_LIMIT", "too many deferred actions in Open vSwitch"),
    ("OVS_DROP_EXPLICIT", "dropped by an Open vSwitch rule"),
    ("OVS_DROP_EXPLICIT_WITH_ERROR", "dropped by an Open vSwitch rule that reports an error"),
    ("OVS_DROP_IP_TTL", "TTL exceeded in Open vSwitch"),
    ("OVS_DROP_LAST_ACTION", "dropped by an Open vSwitch rule: it has no output action"),
    ("OVS_DROP_METER", "rate limit of an Open vSwitch meter"),
    ("OVS_DROP_RECURSION_LIMIT", "too many recirculations in Open vSwitch"),
    (
        "PACKET_SOCK_ERROR",
        "packet socket full: a capture (tcpdump) lost a copy, its receiver did not",
    ),
    ("PFMEMALLOC", "memory reserve: not for this socket (SOCK_MEMALLOC)"),
    ("PKT_TOO_BIG", "larger than the MTU"),
    ("PKT_TOO_SMALL", "shorter than its headers say"),
    ("PROTO_MEM", "protocol memory exhausted (net.ipv4.tcp_mem, net.ipv4.udp_mem)"),
    ("QDISC_CONGESTED", "queue delay too long: the qdisc dropped it on purpose (AQM)"),
    ("QDISC_DROP", "queueing discipline full, or it dropped the packet on purpose (tc -s qdisc)"),
    ("QDISC_OVERLIMIT", "queueing discipline full (tc -s qdisc)"),
    ("QUEUE_PURGE", "queue emptied: its socket or device was closed"),
    ("RECURSION_LIMIT", "devices stacked in a loop"),
    ("SECURITY_HOOK", "refused by a security module (LSM)"),
    ("SKB_CSUM", "checksum could not be computed"),
    ("SKB_GSO_SEG", "segmentation failed"),
    ("SKB_UCOPY_FAULT", "data could not be copied from or to user space"),
    (
        "SOCKET_BACKLOG",
        "socket backlog full: its owner holds it locked for too long, or the receive buffer is too small",
    ),
    ("SOCKET_CLOSE", "socket closed with data unread"),
    ("SOCKET_FILTER", "refused by the socket's filter"),
    (
        "SOCKET_RCVBUFF",
        "receive buffer full: the reader is too slow, or the buffer too small (SO_RCVBUF, net.core.rmem_default)",
    ),
    ("TAP_FILTER", "refused by a filter of the tap"),
    ("TAP_TXFILTER", "refused by the tap's address filter"),
    ("TCP_ABORT_ON_DATA", "data for a closed TCP socket"),
    ("TCP_ACK_UNSENT_DATA", "TCP acknowledgement of data that was not sent"),
    ("TCP_CLOSE", "TCP socket closed"),
    ("TCP_CSUM", "wrong TCP checksum"),
    ("TCP_FASTOPEN", "refused by TCP Fast Open"),
    ("TCP_FLAGS", "invalid TCP flags"),
    ("TCP_INVALID_ACK_SEQUENCE", "TCP acknowledgement number not acceptable"),
    ("TCP_INVALID_END_SEQUENCE", "TCP segment ends beyond the window"),
    ("TCP_INVALID_SEQUENCE", "TCP sequence number outside of the window"),
    ("TCP_INVALID_SYN", "unexpected SYN"),
    (
        "TCP_LISTEN_OVERFLOW",
        "accept queue full: the application accepts too slowly (listen backlog, net.core.somaxconn)",
    ),
    ("TCP_MINTTL", "TTL below IP_MINTTL"),
    ("TCP_OFOMERGE", "TCP data received before, out of order: a retransmission too many"),
    ("TCP_OFO_DROP", "TCP data received before: a retransmission too many"),
    ("TCP_OFO_QUEUE_PRUNE", "receive buffer full: out-of-order TCP data was discarded"),
    ("TCP_OLD_ACK", "old TCP acknowledgement: normal"),
    ("TCP_OLD_DATA", "TCP data received before: a retransmission too many"),
    ("TCP_OLD_SEQUENCE", "TCP data received before: a retransmission too many"),
    ("TCP_OVERWINDOW", "TCP data beyond the receive window"),
    ("TCP_RESET", "reset, or refused TCP segment"),
    ("TCP_RFC7323_PAWS", "TCP timestamp too old (PAWS)"),
    ("TCP_RFC7323_PAWS_ACK", "TCP timestamp of an acknowledgement too old (PAWS)"),
    ("TCP_RFC7323_TSECR", "TCP timestamp echo not acceptable"),
    ("TCP_RFC7323_TW_PAWS", "TCP timestamp too old for a connection in TIME_WAIT (PAWS)"),
    ("TCP_TOO_OLD_ACK", "TCP acknowledgement too old"),
    ("TCP_ZEROWINDOW", "receive buffer full: TCP data although the window was closed"),
    ("TC_CHAIN_NOTFOUND", "tc chain not found"),
    ("TC_COOKIE_ERROR", "tc cookie error"),
    ("TC_EGRESS", "dropped by a tc filter or program on egress"),
    ("TC_INGRESS", "dropped by a tc filter or program on ingress"),
    ("TC_RECLASSIFY_LOOP", "tc filters in a loop"),
    ("TUNNEL_TXINFO", "no tunnel information for the packet"),
    ("UDP_CSUM", "wrong UDP checksum"),
    ("UNHANDLED_PROTO", "no handler for the Ethernet protocol"),
    ("UNICAST_IN_L2_MULTICAST", "IP unicast in a link-layer multicast"),
    ("VXLAN_ENTRY_EXISTS", "VXLAN forwarding entry exists already"),
    ("VXLAN_INVALID_HDR", "invalid VXLAN header"),
    ("VXLAN_VNI_NOT_FOUND", "unknown VXLAN network identifier"),
    ("XDP", "dropped by an XDP program"),
    ("XFRM_POLICY", "refused by an IPsec policy"),
];

/// The description of a reason; `None` if unknown.
pub fn meaning(reason: &str) -> Option<&'static str> {
    let found = MEANINGS.binary_search_by(|(name, _)| (*name).cmp(reason)).ok()?;
    MEANINGS.get(found).map(|(_, meaning)| *meaning)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::drops::in_short;

    #[test]
    fn meanings_are_found_by_name() {
        assert!(MEANINGS.is_sorted_by(|(a, _), (b, _)| a < b));
        assert_eq!(meaning("XDP"), Some("dropped by an XDP program"));
        assert_eq!(meaning("SUBSYS 9"), None);
        assert_eq!(in_short(meaning("SOCKET_RCVBUFF").unwrap()), "receive buffer full");
        assert_eq!(in_short(meaning("IP_RPFILTER").unwrap()), "reverse path filter");
        assert!(MEANINGS.iter().all(|(_, meaning)| !in_short(meaning).is_empty()));
    }
}
