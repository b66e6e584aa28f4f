//! Counters of a network namespace that changed, with what they mean.
//!
//! Input: the increases, by their names in nstat(8). Output: a table, in the order of [`MEANINGS`].

use super::table::{Table, left, right};
use super::{heading, line};
use std::collections::BTreeMap;

/// What counters mean (Documentation/networking/snmp_counter.rst, net/ipv4/tcp_input.c).
const MEANINGS: &[(&str, &str)] = &[
    ("TcpRetransSegs", "segments retransmitted"),
    ("TcpAttemptFails", "connections that were not established"),
    ("TcpEstabResets", "established connections that were reset"),
    ("TcpOutRsts", "resets sent"),
    ("TcpInErrs", "segments received with an error"),
    ("TcpInCsumErrors", "segments received with a wrong checksum"),
    (
        "TcpExtListenOverflows",
        "connections dropped: the accept queue of a listening socket was full",
    ),
    ("TcpExtListenDrops", "connections dropped by listening sockets for any reason"),
    ("TcpExtTCPReqQFullDrop", "SYNs dropped: the SYN queue was full and SYN cookies are off"),
    ("TcpExtTCPReqQFullDoCookies", "SYN cookies sent: the SYN queue was full"),
    ("TcpExtSyncookiesSent", "SYN cookies sent"),
    ("TcpExtTCPTimeouts", "retransmission timeouts"),
    ("TcpExtTCPSynRetrans", "SYNs and SYN-ACKs retransmitted"),
    ("TcpExtTCPLostRetransmit", "retransmitted segments that were lost again"),
    ("TcpExtTCPFastRetrans", "segments retransmitted after duplicate acknowledgements"),
    ("TcpExtTCPSlowStartRetrans", "segments retransmitted after a timeout"),
    ("TcpExtTCPLossProbes", "tail loss probes sent"),
    ("TcpExtTCPLossProbeRecovery", "losses recovered by a tail loss probe"),
    ("TcpExtTCPSpuriousRTOs", "timeouts that were too early"),
    ("TcpExtTCPDSACKRecv", "retransmissions that were not necessary"),
    ("TcpExtTCPSACKReorder", "reordering found by SACK"),
    ("TcpExtTCPTSReorder", "reordering found by timestamps"),
    ("TcpExtTCPOFOQueue", "segments queued out of order"),
    ("TcpExtTCPOFODrop", "segments out of order dropped: no memory"),
    ("TcpExtTCPRcvCollapsed", "segments merged to save memory of the receive buffer"),
    ("TcpExtPruneCalled", "receive buffers pruned: full"),
    ("TcpExtRcvPruned", "segments dropped: receive buffer full"),
    ("TcpExtTCPRcvQDrop", "segments dropped: no memory for the receive queue"),
    ("TcpExtTCPBacklogDrop", "segments dropped: backlog of a locked socket full"),
    ("TcpExtTCPZeroWindowDrop", "segments dropped: beyond a closed window"),
    ("TcpExtTCPToZeroWindowAdv", "windows closed: the application does not read"),
    ("TcpExtTCPFromZeroWindowAdv", "windows opened again"),
    ("TcpExtTCPWantZeroWindowAdv", "windows that should have been closed"),
    ("TcpExtTCPWinProbe", "probes of closed windows sent"),
    ("TcpExtTCPMemoryPressures", "entries into memory pressure (tcp_mem)"),
    ("TcpExtTCPAbortOnMemory", "connections aborted: no memory"),
    ("TcpExtTCPAbortOnTimeout", "connections aborted: no answer"),
    ("TcpExtTCPAbortOnData", "connections closed by the application with data not sent"),
    ("TcpExtTCPAbortOnClose", "connections closed by the application with data not read"),
    ("TcpExtTCPTimeWaitOverflow", "TIME-WAIT sockets dropped: tcp_max_tw_buckets"),
    ("TcpExtPAWSEstab", "segments dropped: old timestamp"),
    ("TcpExtTCPChallengeACK", "challenge ACKs sent: unexpected SYN or RST"),
    ("TcpExtTCPRetransFail", "retransmissions that could not be sent"),
    ("IpInDiscards", "packets discarded by IPv4: no memory"),
    ("IpOutDiscards", "packets not sent by IPv4"),
    ("IpReasmFails", "IPv4 fragments that could not be reassembled"),
    ("Ip6InDiscards", "packets discarded by IPv6: no memory"),
    ("Ip6OutDiscards", "packets not sent by IPv6"),
    ("Ip6ReasmFails", "IPv6 fragments that could not be reassembled"),
];

/// Prints the counters with a meaning; the others with `verbose`.
pub(super) fn counters(out: &mut String, counters: &BTreeMap<String, u64>, verbose: bool) {
    let known = MEANINGS
        .iter()
        .filter_map(|(name, meaning)| Some((*name, *counters.get(*name)?, Some(*meaning))));
    let is_known = |name: &str| MEANINGS.iter().any(|(known, _)| *known == name);
    let others = counters.iter().filter(|(name, _)| verbose && !is_known(name));
    let rows: Vec<_> =
        known.chain(others.map(|(name, value)| (name.as_str(), *value, None))).collect();
    if rows.is_empty() {
        return;
    }
    line!(*out);
    heading(out, "counters of the namespace that changed");
    let mut table = Table::new(&[left("COUNTER"), right("INCREASE"), left("MEANING").optional()]);
    for (name, value, meaning) in rows {
        table.row([name.to_owned(), value.to_string(), meaning.unwrap_or_default().to_owned()]);
    }
    out.push_str(&table.render());
}
