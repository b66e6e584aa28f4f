//! Host-wide counters by name, of which only a few concern packets and memory: `/proc/net/snmp`,
//! `/proc/net/snmp6` and `/proc/net/netstat` of the network namespace (net/ipv4/proc.c, net/ipv6/proc.c), and
//! `/proc/vmstat` (mm/vmstat.c).
//!
//! Input: the text of a file. Output: values under `Udp.RcvbufErrors`, `Ip6.OutDiscards`, `TcpExt.RcvPruned`,
//! `vm.compact_stall`.

use std::collections::BTreeMap;

/// The counters that are kept.
const KEPT: &[&str] = &[
    // Datagrams, and those dropped because a socket's buffer was full.
    "Udp.InDatagrams",
    "Udp.OutDatagrams",
    "Udp.RcvbufErrors",
    "Udp.SndbufErrors",
    "Udp6.InDatagrams",
    "Udp6.OutDatagrams",
    "Udp6.RcvbufErrors",
    "Udp6.SndbufErrors",
    // Datagrams dropped for another reason.
    "Udp.NoPorts",
    "Udp.InCsumErrors",
    "Udp.MemErrors",
    "Udp6.NoPorts",
    "Udp6.InCsumErrors",
    "Udp6.MemErrors",
    // Packets that IP sent and forwarded, and those that it could not deliver, forward, send or reassemble.
    "Ip.InReceives",
    "Ip.OutRequests",
    "Ip.OutTransmits",
    "Ip.ForwDatagrams",
    "Ip.InHdrErrors",
    "Ip.InAddrErrors",
    "Ip.InUnknownProtos",
    "Ip.InDiscards",
    "Ip.OutDiscards",
    "Ip.OutNoRoutes",
    "Ip.ReasmReqds",
    "Ip.ReasmTimeout",
    "Ip.ReasmFails",
    "Ip.FragFails",
    "IpExt.InNoRoutes",
    "IpExt.InTruncatedPkts",
    "Ip6.InReceives",
    "Ip6.OutRequests",
    "Ip6.OutForwDatagrams",
    "Ip6.InHdrErrors",
    "Ip6.InAddrErrors",
    "Ip6.InUnknownProtos",
    "Ip6.InTooBigErrors",
    "Ip6.InTruncatedPkts",
    "Ip6.InDiscards",
    "Ip6.InNoRoutes",
    "Ip6.OutDiscards",
    "Ip6.OutNoRoutes",
    "Ip6.ReasmReqds",
    "Ip6.ReasmTimeout",
    "Ip6.ReasmFails",
    "Ip6.FragFails",
    "TcpExt.IPReversePathFilter",
    // Segments, and those dropped or pruned because the buffer was full.
    "Tcp.InSegs",
    "Tcp.InCsumErrors",
    "Tcp.OutSegs",
    "Tcp.RetransSegs",
    "TcpExt.TCPTimeouts",
    "TcpExt.TCPDSACKRecv",
    "Tcp.PassiveOpens",
    "TcpExt.RcvPruned",
    "TcpExt.OfoPruned",
    "TcpExt.TCPRcvQDrop",
    "TcpExt.TCPBacklogDrop",
    "TcpExt.TCPZeroWindowDrop",
    "TcpExt.TCPMinTTLDrop",
    "TcpExt.PAWSEstab",
    "TcpExt.ListenOverflows",
    "TcpExt.ListenDrops",
    // How often TCP's memory ran short.
    "TcpExt.TCPMemoryPressures",
    // SYNs dropped, or answered with a cookie, because the queue of a listener was full.
    "TcpExt.TCPReqQFullDrop",
    "TcpExt.TCPReqQFullDoCookies",
    // Tasks that waited for memory compaction, and huge pages allocated by faults.
    "vm.compact_stall",
    "vm.thp_fault_alloc",
    "vm.thp_fault_fallback",
    // AutoNUMA: its page faults, and the pages that it migrated.
    "vm.numa_hint_faults",
    "vm.numa_hint_faults_local",
    "vm.numa_pages_migrated",
];

/// Parses `/proc/net/snmp` or `/proc/net/netstat`: a line of names and a line of numbers per protocol. Anything
/// that is not such a pair of lines is skipped.
pub fn parse_protocols(bytes: &[u8]) -> BTreeMap<String, u64> {
    let text = String::from_utf8_lossy(bytes);
    let mut counters = BTreeMap::new();
    let mut lines = text.lines();
    while let Some(names) = lines.next() {
        let (Some((protocol, names)), Some(values)) = (names.split_once(':'), lines.next()) else {
            break;
        };
        let Some((same, values)) = values.split_once(':') else { break };
        if same != protocol {
            break;
        }
        let pairs = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
        for (name, value) in pairs {
            keep(&mut counters, format!("{protocol}.{name}"), value);
        }
    }
    counters
}

/// Parses `/proc/net/snmp6`: a name and a number per line, `Udp6InDatagrams 3`.
pub fn parse_snmp6(bytes: &[u8]) -> BTreeMap<String, u64> {
    let name = |name: &str| {
        ["Udp6", "Ip6"].iter().find_map(|p| Some(format!("{p}.{}", name.strip_prefix(p)?)))
    };
    of_lines(bytes, name)
}

/// Parses `/proc/vmstat`: a name and a number per line.
pub fn parse_vmstat(bytes: &[u8]) -> BTreeMap<String, u64> {
    of_lines(bytes, |name| Some(format!("vm.{name}")))
}

fn of_lines(bytes: &[u8], name: impl Fn(&str) -> Option<String>) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    for line in String::from_utf8_lossy(bytes).lines() {
        let mut words = line.split_ascii_whitespace();
        if let (Some(first), Some(value)) = (words.next(), words.next())
            && let Some(name) = name(first)
        {
            keep(&mut counters, name, value);
        }
    }
    counters
}

/// Keeps a counter that is known and has a value; -1 means no value.
fn keep(counters: &mut BTreeMap<String, u64>, name: String, value: &str) {
    if KEPT.contains(&name.as_str())
        && let Ok(value) = value.parse()
    {
        counters.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(counters: &BTreeMap<String, u64>) -> Vec<(&str, u64)> {
        counters.iter().map(|(name, value)| (name.as_str(), *value)).collect()
    }

    #[test]
    fn protocols_have_a_line_of_names_and_one_of_numbers() {
        let text = b"Ip: Forwarding DefaultTTL\nIp: 1 64\n\
            Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\n\
            Udp: 20374 163 0 20604 7 -1\n";
        let counters = parse_protocols(text);
        assert_eq!(
            of(&counters),
            [
                ("Udp.InDatagrams", 20374),
                ("Udp.NoPorts", 163),
                ("Udp.OutDatagrams", 20604),
                ("Udp.RcvbufErrors", 7)
            ]
        );
        for text in [&b""[..], b"Udp: InDatagrams", b"Udp: InDatagrams\nTcp: 5\n", b"x\ny\n\xff"] {
            assert_eq!(parse_protocols(text), BTreeMap::new());
        }
        // Fewer numbers than names.
        let counters = parse_protocols(b"Udp: RcvbufErrors InDatagrams\nUdp: 1\n");
        assert_eq!(of(&counters), [("Udp.RcvbufErrors", 1)]);
    }

    #[test]
    fn others_have_a_counter_on_each_line() {
        let counters =
            parse_snmp6(b"Ip6InMcastPkts 5\nUdp6RcvbufErrors   \t3\nUdpLite6RcvbufErrors 9\n");
        assert_eq!(of(&counters), [("Udp6.RcvbufErrors", 3)]);
        let counters = parse_snmp6(b"Ip6ReasmFails \t7\nIp6OutNoRoutes 2\nIcmp6InMsgs 4\n");
        assert_eq!(of(&counters), [("Ip6.OutNoRoutes", 2), ("Ip6.ReasmFails", 7)]);
        let counters = parse_vmstat(b"nr_free_pages 1\ncompact_stall 12\nnuma_hint_faults x\nbad");
        assert_eq!(of(&counters), [("vm.compact_stall", 12)]);
    }
}
