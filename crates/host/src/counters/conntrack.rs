//! The connection tracking table: its usage, and its drops. Input:
//! `/proc/sys/net/netfilter/nf_conntrack_{count,max}` and `/proc/net/stat/nf_conntrack`
//! (net/netfilter/nf_conntrack_standalone.c `ct_cpu_seq_show`). Output: host-wide counters. A host without
//! connection tracking has neither the files nor the counters.

use super::per_cpu_table;
use crate::Root;
use std::collections::BTreeMap;

/// The statistics that are kept, summed over CPUs.
const KEPT: [&str; 5] = ["drop", "early_drop", "insert_failed", "clashres", "chainlength"];
/// Columns whose names are not those of the counters, which `conntrack -S` has.
const NAMES: [(&str, &str); 2] = [
    ("conntrack.clashres", "conntrack.clash_resolve"),
    ("conntrack.chainlength", "conntrack.chaintoolong"),
];

/// Reads the counters, as `conntrack.count`, `conntrack.max`, `conntrack.drop`.
pub(super) fn read(root: &Root) -> BTreeMap<String, u64> {
    let mut counters = BTreeMap::new();
    for name in ["count", "max"] {
        let value = root.text(&format!("/proc/sys/net/netfilter/nf_conntrack_{name}"));
        let value = value.ok().and_then(|text| text.parse().ok());
        counters.extend(value.map(|value| (format!("conntrack.{name}"), value)));
    }
    if let Ok(bytes) = root.read("/proc/net/stat/nf_conntrack") {
        counters.extend(per_cpu_table::sums(&bytes, "conntrack", &KEPT));
    }
    for (column, name) in NAMES {
        let count = counters.remove(column);
        counters.extend(count.map(|count| (name.to_owned(), count)));
    }
    counters
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_testing::trees::{Layout, Machine};

    /// The header of Linux 6.1.
    #[test]
    fn columns_have_the_names_of_their_counters() {
        let text = "entries  clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop \
                    icmp_error  expect_new expect_create expect_delete search_restart\n\
                    00000010  00000003 0 0 0000000c 0 0 00000002 0 00000001 0000000a 00000002 0 0 0 0 0\n";
        let machine = Machine::regular(Layout::default());
        let tree = machine.file("/proc/net/stat/nf_conntrack", text).write();
        let found = read(&Root::tree(tree.path()).unwrap());
        let of = |name: &str| found.get(&format!("conntrack.{name}")).copied();
        assert_eq!((of("clash_resolve"), of("chaintoolong")), (Some(3), Some(2)));
        assert_eq!((of("insert_failed"), of("drop"), of("clashres")), (Some(1), Some(10), None));
    }
}
