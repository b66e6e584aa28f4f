//! The connection tracking table: its usage, and its drops. Input:
//! `/proc/sys/net/netfilter/nf_conntrack_{count,max}` and `/proc/net/stat/nf_conntrack`
//! (net/netfilter/nf_conntrack_standalone.c `ct_cpu_seq_show`). Output: host-wide counters. A host without
//! connection tracking has neither the files nor the counters.

use super::per_cpu_table;
use crate::Root;
use std::collections::BTreeMap;

/// The statistics that are kept, summed over CPUs.
const KEPT: [&str; 5] = ["drop", "early_drop", "insert_failed", "clash_resolve", "chaintoolong"];

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
    counters
}
