//! What processes that poll report: Open vSwitch's tables and database, DPVS's tool.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_host::workers::{dpip, ovs, ovsdb};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let _ = ovs::parse_queues(&text);
    let _ = ovs::parse_busy(&text);
    let _ = ovs::parse_counts(&text);
    let _ = dpip::parse(&text);
    if let Ok(results) = serde_json::from_slice::<Vec<serde_json::Value>>(data) {
        let _ = ovsdb::parse(&results);
    }
});
