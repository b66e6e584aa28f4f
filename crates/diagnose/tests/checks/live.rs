//! The checks on the machine that runs this test: whatever it is, it has CPUs, and they are
//! diagnosed without a panic, with two readings in time as well as with one.

use nearpath_diagnose::diagnose;
use nearpath_host::{Root, Wanted};
use nearpath_model::Severity;

#[test]
fn this_machine_is_diagnosed() {
    let wanted = Wanted { sockets: true, ..Wanted::default() };
    let earlier = nearpath_host::read(&Root::live(), &wanted).unwrap();
    let host = nearpath_host::read(&Root::live(), &wanted).unwrap();
    let by_facts = diagnose(&host, None, None);
    assert!(by_facts.host.online_cpus > 0);
    assert!(by_facts.findings.iter().all(|finding| finding.severity < Severity::Critical));
    assert!(by_facts.not_checked.iter().any(|note| note.check == "latency_tail"));
    let in_interval = diagnose(&host, Some(&earlier), None);
    assert_eq!(in_interval.host, by_facts.host);
}
