//! The connection tracking table: its usage, and its drops. Input:
//! `/proc/sys/net/netfilter/nf_conntrack_{count,max}` and `/proc/net/stat/nf_conntrack`
//! (net/netfilter/nf_conntrack_standalone.c `ct_cpu_seq_show`). Output: host-wide counters. A host without
//! connection tracking has neither the files nor the counters.

use crate::Root;
use std::collections::BTreeMap;

/// The statistics that are kept, summed over CPUs.
const KEPT: [&str; 3] = ["drop", "early_drop", "insert_failed"];
/// Maximum number of lines, one per CPU.
const MAX_LINES: usize = 65_536;

/// Reads the counters, as `conntrack.count`, `conntrack.max`, `conntrack.drop`.
pub(super) fn read(root: &Root) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    for name in ["count", "max"] {
        let value = root.text(&format!("/proc/sys/net/netfilter/nf_conntrack_{name}"));
        let value = value.ok().and_then(|text| text.parse().ok());
        counters.extend(value.map(|value| (format!("conntrack.{name}"), value)));
    }
    if let Ok(bytes) = root.read("/proc/net/stat/nf_conntrack") {
        counters.extend(parse_table(&bytes, "conntrack", &KEPT));
    }
    counters
}

/// The sums of some columns of a file of `/proc/net/stat`: a line of names, then a line of hexadecimal numbers per CPU.
pub(super) fn parse_table(bytes: &[u8], table: &str, kept: &[&str]) -> BTreeMap<String, u64> {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let mut sums = BTreeMap::new();
    for line in lines.take(MAX_LINES) {
        for (name, value) in names.iter().zip(line.split_whitespace()) {
            if kept.contains(name)
                && let Ok(value) = u64::from_str_radix(value, 16)
            {
                let sum: &mut u64 = sums.entry(format!("{table}.{name}")).or_default();
                *sum = sum.saturating_add(value);
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_summed_over_cpus() {
        let text = b"entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error  expect_new expect_create expect_delete search_restart\n\
            00000010  00000000 0 0 0000000c 0 0 0 0 00000001 0000000a 00000002 0 0 0 0 0\n\
            00000010  00000000 0 0 00000000 0 0 0 0 00000000 00000006 00000000 0 0 0 0 0\n";
        let sums = parse_table(text, "conntrack", &KEPT);
        assert_eq!(sums["conntrack.drop"], 16);
        assert_eq!((sums["conntrack.early_drop"], sums["conntrack.insert_failed"]), (2, 1));
        assert_eq!(sums.len(), 3);
        assert_eq!(parse_table(b"drop\nx\n", "t", &["drop"]), BTreeMap::new());
        assert_eq!(parse_table(b"", "t", &["drop"]), BTreeMap::new());
    }
}
