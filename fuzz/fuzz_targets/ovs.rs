//! Fuzzes what Open vSwitch answers: its PMD threads as text before the first empty line, the rows of its database as JSON
//! after it; then the check and the plan of both.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_host::workers::{Switch, ovs, ovsdb};
use nearpath_model::{NodeId, Topology};
use nearpath_tune::dpdk::{check_ovs, plan_ovs};
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let (threads, rows) = text.split_once("\n\n").unwrap_or((&text, ""));
    drop(ovs::parse_busy(threads));
    let rows: Vec<Value> = serde_json::from_str(rows).unwrap_or_default();
    let database = ovsdb::parse(&rows).unwrap_or_default();
    let nodes = database.interfaces.keys().cloned().zip((0..2).cycle().map(NodeId)).collect();
    let pmds = Some(ovs::parse_queues(threads));
    let switch = Switch { database, nodes, pmds, unknown: Vec::new() };
    drop(check_ovs(&switch, &Topology::default()));
    drop(plan_ovs(&switch, &Topology::default(), None));
});
