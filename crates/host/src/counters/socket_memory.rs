//! The memory that sockets hold, and all memory: what `net.ipv4.tcp_mem` and `udp_mem` are compared with.
//!
//! Input: `/proc/net/sockstat` (`sockstat_seq_show` of net/ipv4/proc.c) and `/proc/meminfo`. Output: gauges: `sockstat.TCP.mem`
//! and `sockstat.UDP.mem` in pages, of all network namespaces; `memory.total` and, of this host, `memory.page` in bytes.

use crate::Root;
use std::collections::BTreeMap;

const SOCKSTAT: &str = "/proc/net/sockstat";
const PROTOCOLS: [&str; 2] = ["TCP", "UDP"];

/// Reads the gauges that there are.
pub(super) fn read(root: &Root) -> BTreeMap<String, u64> {
    let sockstat = root.text(SOCKSTAT).unwrap_or_default();
    let pages = |name: &str| Some((format!("sockstat.{name}.mem"), pages_of(&sockstat, name)?));
    let mut gauges: BTreeMap<String, u64> = PROTOCOLS.into_iter().filter_map(pages).collect();
    let meminfo = root.text("/proc/meminfo").unwrap_or_default();
    gauges.extend(total(&meminfo).map(|bytes| ("memory.total".to_owned(), bytes)));
    if root.is_live() {
        gauges.insert("memory.page".to_owned(), rustix::param::page_size() as u64);
    }
    gauges
}

/// Pages that the sockets of TCP or UDP hold.
pub(crate) fn socket_pages(root: &Root, protocol: &str) -> Option<u64> {
    pages_of(&root.text(SOCKSTAT).ok()?, protocol)
}

/// `TCP: inuse 7 orphan 0 tw 2 alloc 9 mem 3`.
fn pages_of(sockstat: &str, protocol: &str) -> Option<u64> {
    let line = sockstat.lines().find_map(|line| line.strip_prefix(protocol)?.strip_prefix(':'))?;
    let mut words = line.split_ascii_whitespace().skip_while(|word| *word != "mem").skip(1);
    words.next()?.parse().ok()
}

/// `MemTotal:       24567 kB`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_protocol_has_its_line() {
        let text = "sockets: used 12\nTCP: inuse 7 orphan 0 tw 2 alloc 9 mem 3\nUDP: inuse 4 mem 258\n\
                    UDPLITE: inuse 0\nRAW: inuse 0\nFRAG: inuse 0 memory 0\n";
        assert_eq!((pages_of(text, "TCP"), pages_of(text, "UDP")), (Some(3), Some(258)));
        for text in ["", "TCP:", "TCP: mem", "TCP: mem x", "TCPX: mem 3"] {
            assert_eq!(pages_of(text, "TCP"), None, "{text}");
        }
        assert_eq!(total("MemFree: 3 kB\nMemTotal:   16 kB\n"), Some(16_384));
        assert_eq!(total("MemTotal: 99999999999999999999 kB\n"), None);
    }
}
