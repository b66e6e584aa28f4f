//! The memory that sockets hold, and all memory: what `net.ipv4.tcp_mem` and `udp_mem` are compared with.
//!
//! Input: `/proc/net/sockstat` (`sockstat_seq_show` of net/ipv4/proc.c) and `/proc/meminfo`, `/proc/vmstat`. Output: gauges: `sockstat.TCP.mem`
//! and `sockstat.UDP.mem` in pages, of all network namespaces; `memory.total` and `memory.page` in bytes.

use crate::Root;
use std::collections::BTreeMap;

const SOCKSTAT: &str = "/proc/net/sockstat";
/// Sizes of pages that kernels are built for.
const PAGES: [u64; 3] = [4_096, 16_384, 65_536];
const PROTOCOLS: [&str; 2] = ["TCP", "UDP"];

/// Reads the gauges that there are.
pub(super) fn read(root: &Root) -> BTreeMap<String, u64> {
    let sockstat = root.text(SOCKSTAT).unwrap_or_default();
    let pages = |name: &str| Some((format!("sockstat.{name}.mem"), pages_of(&sockstat, name)?));
    let mut gauges: BTreeMap<String, u64> = PROTOCOLS.into_iter().filter_map(pages).collect();
    let meminfo = root.text("/proc/meminfo").unwrap_or_default();
    let total = bytes_of(&meminfo, "MemTotal:");
    gauges.extend(total.map(|bytes| ("memory.total".to_owned(), bytes)));
    let vmstat = root.text("/proc/vmstat").unwrap_or_default();
    let page = page_size(&meminfo, &vmstat);
    gauges.extend(page.map(|bytes| ("memory.page".to_owned(), bytes)));
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
fn bytes_of(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The size of a page, which no file of a tree has: free memory by free pages, to the nearest size that there is. The two are
/// read one after the other, and sizes are a factor of four apart.
fn page_size(meminfo: &str, vmstat: &str) -> Option<u64> {
    let free = bytes_of(meminfo, "MemFree:")?;
    let pages = vmstat.lines().find_map(|line| line.strip_prefix("nr_free_pages "))?;
    let pages: u64 = pages.trim().parse().ok()?;
    let size = free.checked_div(pages)?;
    PAGES.into_iter().find(|page| (page / 2..page * 2).contains(&size))
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
        let total = |meminfo: &str| bytes_of(meminfo, "MemTotal:");
        assert_eq!(total("MemFree: 3 kB\nMemTotal:   16 kB\n"), Some(16_384));
        assert_eq!(total("MemTotal: 99999999999999999999 kB\n"), None);
    }

    #[test]
    fn pages_have_the_size_that_free_memory_says() {
        let of = |free_kb: u64, pages: u64| {
            page_size(&format!("MemFree: {free_kb} kB\n"), &format!("nr_free_pages {pages}\n"))
        };
        assert_eq!(of(4_000, 1_010), Some(4_096));
        assert_eq!(of(16_000, 1_300), Some(16_384));
        assert_eq!(of(64_000, 1_000), Some(65_536));
        assert_eq!((of(4_000, 0), of(0, 5), of(1 << 40, 1)), (None, None, None));
        // Of this kernel.
        let found = read(&Root::live());
        assert_eq!(found.get("memory.page"), Some(&(rustix::param::page_size() as u64)));
    }
}
