//! The counters of a network namespace's protocols, under their names in nstat(8): `TcpRetransSegs`,
//! `TcpExtListenDrops`, `Ip6InDiscards` (net/ipv4/proc.c, net/ipv6/proc.c).

use crate::{ReadError, Root};
use std::collections::BTreeMap;

/// Reads the counters; gauges and constants are left out.
///
/// # Errors
/// `/proc/net/netstat` or `/proc/net/snmp` cannot be read. A kernel without IPv6 is no error.
pub fn read_nstat(root: &Root) -> Result<BTreeMap<String, u64>, ReadError> {
    let mut counters = BTreeMap::new();
    for path in ["/proc/net/snmp", "/proc/net/netstat"] {
        counters.extend(parse_pairs(&root.read(path)?));
    }
    match root.read("/proc/net/snmp6") {
        Ok(bytes) => counters.extend(parse_lines(&bytes)),
        Err(error) if error.absent => {}
        Err(error) => return Err(error),
    }
    Ok(counters)
}

/// Whether it is no constant or gauge (RFC 4022, RFC 4293).
fn is_counter(protocol: &str, name: &str) -> bool {
    match protocol {
        "Tcp" => !["RtoAlgorithm", "RtoMin", "RtoMax", "MaxConn", "CurrEstab"].contains(&name),
        "Ip" => !["Forwarding", "DefaultTTL"].contains(&name),
        "MPTcpExt" => name != "MPCurrEstab",
        _ => true,
    }
}

/// Lines of names and of numbers, alternately: `Tcp: ActiveOpens …`, `Tcp: 5 …`.
pub fn parse_pairs(bytes: &[u8]) -> BTreeMap<String, u64> {
    let text = String::from_utf8_lossy(bytes);
    let mut counters = BTreeMap::new();
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let both = names.split_once(':').zip(values.split_once(':'));
        let Some(((protocol, names), (same, values))) = both else { break };
        if protocol != same {
            break;
        }
        let pairs = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
        for (name, value) in pairs.filter(|(name, _)| is_counter(protocol, name)) {
            if let Ok(value) = value.parse() {
                counters.insert(format!("{protocol}{name}"), value);
            }
        }
    }
    counters
}

/// A name and a number per line: `Ip6InDiscards 0`.
fn parse_lines(bytes: &[u8]) -> BTreeMap<String, u64> {
    let text = String::from_utf8_lossy(bytes);
    let counter = |line: &str| {
        let (name, value) = line.split_once(|c: char| c.is_ascii_whitespace())?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(counter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_nstat() {
        let text = b"Ip: Forwarding InDiscards\nIp: 1 3\n\
            Tcp: RtoAlgorithm MaxConn ActiveOpens CurrEstab RetransSegs\nTcp: 1 -1 7 2 9\n\
            Icmp: InMsgs\nIcmp: 4\n";
        let counters: Vec<_> = parse_pairs(text).into_iter().collect();
        let wanted =
            [("IcmpInMsgs", 4), ("IpInDiscards", 3), ("TcpActiveOpens", 7), ("TcpRetransSegs", 9)];
        assert_eq!(counters, wanted.map(|(name, value)| (name.to_owned(), value)));
        let text = b"Ip6InDiscards   \t5\nUdp6InErrors 1\nbroken\n";
        let wanted = [("Ip6InDiscards", 5), ("Udp6InErrors", 1)];
        let wanted = wanted.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(parse_lines(text), BTreeMap::from(wanted));
    }

    #[test]
    fn broken_files_end_the_reading() {
        for text in [&b""[..], b"Tcp: A", b"Tcp: A\nUdp: 1\n", b"x\ny\n", b"Tcp: A B\nTcp: x\n\xff"]
        {
            assert_eq!(parse_pairs(text), BTreeMap::new(), "{text:?}");
        }
    }

    #[test]
    fn this_kernels_counters_are_read() {
        let counters = read_nstat(&Root::live()).unwrap();
        assert!(counters.contains_key("TcpExtListenOverflows"), "{counters:?}");
        assert!(counters.contains_key("TcpRetransSegs") && !counters.contains_key("TcpCurrEstab"));
    }
}
