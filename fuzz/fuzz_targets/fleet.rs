//! Fuzzes answers of Prometheus' HTTP API. What is read of one is the same of it twice, and does not differ from itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_monitor::fleet::{difference, rank};

fuzz_target!(|bytes: &[u8]| {
    let Ok(fleet) = rank(bytes, "instance") else { return };
    assert!(fleet.hosts.iter().all(|host| host.cost_s.is_finite() || host.cost_s > 0.0));
    let none = difference(&fleet, &fleet);
    assert_eq!((none.hosts.len(), none.same), (0, fleet.hosts.len()));
});
