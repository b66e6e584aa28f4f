//! How often no neighbour could be added as their table was full, and packets that waited for one in vain. Input: `/proc/net/stat/{arp,ndisc}_cache`
//! (net/core/neighbour.c `neigh_stat_seq_show`), of the initial network namespace: the tables are those of all. Output:
//! host-wide counters.

use super::per_cpu_table;
use crate::Root;
use crate::netns::text_of_initial_netns;
use std::collections::BTreeMap;

/// Of IPv4, and of IPv6.
const TABLES: [&str; 2] = ["arp_cache", "ndisc_cache"];

/// The statistics that are kept: the last is of packets beyond those that wait for an answer (`unres_qlen_bytes`).
const KEPT: [&str; 2] = ["table_fulls", "unresolved_discards"];

/// Reads the counters, as `arp_cache.table_fulls`.
pub(super) fn read(root: &Root) -> BTreeMap<String, u64> {
    TABLES.iter().flat_map(|table| of_table(root, table)).collect()
}

fn of_table(root: &Root, table: &str) -> BTreeMap<String, u64> {
    let path = format!("/proc/net/stat/{table}");
    let there = |_| text_of_initial_netns(root, &format!("neighbours/{table}"), &path);
    let sums = |text: String| per_cpu_table::sums(text.as_bytes(), table, &KEPT);
    root.text(&path).or_else(there).map(sums).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_testing::trees::{Layout, Machine};

    #[test]
    fn full_tables_are_counted_over_all_cpus() {
        let text = "entries  allocs   table_fulls\n00000080 00000100 0000000a\n00000080 00000001 00000002\n";
        let tree =
            Machine::regular(Layout::default()).file("/proc/net/stat/arp_cache", text).write();
        let counters = read(&Root::tree(tree.path()).unwrap());
        assert_eq!(
            counters.into_iter().collect::<Vec<_>>(),
            [("arp_cache.table_fulls".to_owned(), 12)]
        );
    }
}
