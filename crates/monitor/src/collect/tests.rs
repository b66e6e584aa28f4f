use super::*;
use crate::store::{Snapshot, Value};
use nearpath_model::histogram::{bucket, upper_ns};
use nearpath_model::{Direction, Measurement, PathKind, PathLatency, Share, ShareKind, Span};
use std::sync::Arc;

fn at(ns: u64) -> u64 {
    upper_ns(bucket(ns))
}

fn path(buckets: &[(u64, u64)], max_ns: u64) -> PathLatency {
    let count = buckets.iter().map(|(_, n)| n).sum();
    PathLatency {
        kind: PathKind::Receive,
        from: "netif_rx".to_owned(),
        count,
        min_ns: Some(1),
        p50_ns: None,
        p90_ns: None,
        p99_ns: None,
        p999_ns: None,
        max_ns: Some(max_ns),
        total_ns: buckets.iter().map(|(ns, n)| ns * n).sum(),
        above: Vec::new(),
        other_cpu: None,
        other_llc: None,
        other_node: None,
        buckets: buckets.to_vec(),
    }
}

fn span(count: u64, shares: [Option<f64>; 3]) -> Span {
    Span {
        direction: Direction::Rx,
        from: "a".to_owned(),
        to: "b".to_owned(),
        count,
        min_ns: None,
        p50_ns: None,
        p90_ns: None,
        p99_ns: None,
        p999_ns: None,
        max_ns: None,
        total_ns: 0,
        other_cpu: shares[0],
        other_llc: shares[1],
        other_node: shares[2],
        buckets: vec![(at(1_000), count)],
        places: Vec::new(),
    }
}

fn measured(seconds: f64, path: PathLatency, span: Span, late_ns: u64) -> Measurement {
    let share = Share { share: ShareKind::Runqueue, ns: late_ns, who: None };
    Measurement {
        duration_s: seconds,
        observed_s: Some(seconds / 2.0),
        paths: vec![path],
        spans: vec![span],
        budget_totals: vec![share],
        ..Measurement::default()
    }
}

fn count(snapshot: &Arc<Snapshot>) -> u64 {
    match snapshot.get(Id::PathLatency, &["receive"]) {
        Some(Value::Histogram(buckets)) => buckets.count(),
        _ => 0,
    }
}

#[test]
fn buckets_only_grow_also_over_a_restart_of_the_instrument() {
    let mut store = Store::default();
    let us = at(1_000);
    let first = measured(10.0, path(&[(us, 5)], 1_000), span(4, [Some(0.5), Some(0.25), None]), 50);
    let second = measured(
        20.0,
        path(&[(us, 8), (at(9_000), 1)], 9_000),
        span(8, [Some(0.5), Some(0.25), None]),
        90,
    );
    stages(&mut store, &first, None);
    stages(&mut store, &second, Some(&first));
    assert_eq!(count(&store.snapshot()), 9);
    // It starts again, and counts from zero.
    stages(&mut store, &first, None);
    let all = store.snapshot();
    assert_eq!(count(&all), 14);
    let number = |id, labels: &[&str]| all.number(id, labels).unwrap();
    assert_eq!(number(Id::Observed, &["stages"]), 15.0);
    assert!((number(Id::LateSeconds, &["runqueue"]) - 140e-9).abs() < 1e-15);
    let hops = |distance| all.number(Id::SpanHops, &["rx", "a", "b", distance]);
    assert_eq!(hops("same_cpu"), Some(6.0));
    assert_eq!(
        (hops("same_llc"), hops("same_node"), hops("other_node")),
        (Some(3.0), Some(3.0), None)
    );
    assert_eq!(hops("unknown"), None);
    // The maximum is exact if it is new, and of a bucket otherwise.
    assert_eq!(number(Id::PathLatencyMax, &["receive"]), 9e-6);
}

#[test]
fn a_window_of_stages_has_only_what_is_new() {
    let us = at(1_000);
    let first = measured(10.0, path(&[(us, 5)], 1_000), span(4, [None; 3]), 50);
    let second = measured(20.0, path(&[(us, 8)], 1_000), span(4, [None; 3]), 90);
    let window = stages_between(&second, &first);
    assert_eq!((window.duration_s, window.observed_s), (10.0, Some(5.0)));
    assert_eq!(window.paths[0].count, 3);
    assert!(window.spans.is_empty());
    assert_eq!(window.budget_totals[0].ns, 40);
}

#[test]
fn findings_that_ended_are_zero() {
    use nearpath_model::{Finding, Severity, Subject};
    let mut store = Store::default();
    let mut diagnosis = nearpath_diagnose::diagnose(&Default::default(), None, None);
    let mut finding = Finding::new(Severity::Critical, "x")
        .about([Subject::Cpu(nearpath_model::CpuId(3)), Subject::Nic("eth0".to_owned())]);
    finding.check = "rps_placement".to_owned();
    finding.cost.seconds_per_second = Some(0.25);
    diagnosis.findings = vec![finding];
    findings(&mut store, &diagnosis);
    let labels = ["rps_placement", "critical", "nic eth0"];
    let now = store.snapshot();
    assert_eq!(now.number(Id::FindingActive, &labels), Some(1.0));
    assert_eq!(now.number(Id::FindingCost, &["rps_placement", "nic eth0"]), Some(0.25));
    diagnosis.findings.clear();
    findings(&mut store, &diagnosis);
    assert_eq!(store.snapshot().number(Id::FindingActive, &labels), Some(0.0));
}

#[test]
fn memory_of_small_processes_is_summed() {
    use nearpath_model::NodeId;
    use nearpath_model::memory::{MemoryMeasurement, NodeBytes, ProcessPlacement};
    let process = |n: u64| ProcessPlacement {
        comm: format!("p{}", n / 2),
        nodes: [(NodeId(0), NodeBytes { anon_bytes: n + 1, ..NodeBytes::default() })].into(),
        remote_bytes: Some(n),
        ..ProcessPlacement::default()
    };
    let mut store = Store::default();
    let all = MemoryMeasurement { processes: (0..40).map(process).collect(), ..Default::default() };
    memory(&mut store, &all);
    let snapshot = store.snapshot();
    let bytes = |name| snapshot.number(Id::ProcessMemory, &[name, "0"]);
    assert_eq!(bytes("p19"), Some(79.0));
    assert_eq!((bytes("p4"), bytes("p3")), (Some(19.0), None));
    assert_eq!(bytes("others"), Some(36.0));
    assert_eq!(snapshot.number(Id::ProcessRemoteMemory, &["p19"]), Some(77.0));
    assert_eq!(snapshot.families[Id::ProcessMemory as usize].len(), 17);
}

#[test]
fn listeners_beyond_the_limit_are_others() {
    use nearpath_model::accepts::{AcceptMeasurement, DistanceCounts, Listener};
    let listener = |n: u64| Listener {
        local: format!("10.0.0.1:{n}"),
        netns: 1,
        places: DistanceCounts { accepts: 1, same_cpu: 1, ..Default::default() },
        workers: Vec::new(),
    };
    let mut store = Store::default();
    let all =
        AcceptMeasurement { listeners: (0..100).map(listener).collect(), ..Default::default() };
    accepts(&mut store, &all, None);
    let snapshot = store.snapshot();
    assert_eq!(snapshot.number(Id::Accepts, &["others", "same_cpu"]), Some(68.0));
    assert_eq!(snapshot.families[Id::Accepts as usize].len(), 33);
}

#[test]
fn kernel_counters_start_with_the_daemon_and_survive_what_comes_and_goes() {
    use nearpath_model::{CpuId, Host, SoftnetCpu};
    let line = |cpu, processed| SoftnetCpu {
        cpu: CpuId(cpu),
        processed,
        dropped: 0,
        time_squeeze: 0,
        received_rps: None,
        flow_limit: None,
        backlog: None,
        input_queue: None,
        process_queue: None,
    };
    let host = |softnet| Host { softnet, ..Host::default() };
    let (mut store, mut facts) = (Store::default(), Facts::default());
    // CPU 1 goes away, comes back, and one counter is reset.
    for lines in [
        vec![line(0, 1_000), line(1, 50)],
        vec![line(0, 1_007), line(1, 51)],
        vec![line(0, 1_010)],
        vec![line(0, 4), line(1, 60)],
        vec![line(0, 4), line(1, 61)],
    ] {
        facts.add(&mut store, &host(lines));
    }
    let processed = store.snapshot().number(Id::SoftnetProcessed, &["unknown"]);
    assert_eq!(processed, Some((7 + 1 + 3 + 4 + 1) as f64));
}
