//! The number of series, and the time of a scrape, on large hosts.

use nearpath_host::{Root, Wanted};
use nearpath_model::histogram::upper_ns;
use nearpath_monitor::collect::Facts;
use nearpath_monitor::exposition::{Format, encode};
use nearpath_monitor::store::SERIES_MAX;
use nearpath_monitor::{Id, Store};
use nearpath_testing::trees::{Layout, Machine, Nic};
use std::time::{Duration, Instant};

/// A host with two packages, and its series after two collections.
fn collected(cpus_of_package: u32, nics: u32, queues: u32) -> Store {
    let layout = Layout { packages: 2, cores: cpus_of_package, ..Layout::default() };
    let mut machine = Machine::regular(layout);
    for n in 0..nics {
        let nic = Nic::pci(&format!("eth{n}"), "mlx5_core", &format!("0000:{:02x}:00.0", 0x10 + n));
        machine = machine.nic(nic.on_node(i64::from(n % 2)).queues(queues, 100 + n * queues));
    }
    let tree = machine.write();
    let root = Root::tree(tree.path()).unwrap();
    let host = nearpath_host::read(&root, &Wanted::default()).unwrap();
    let (mut store, mut facts) = (Store::default(), Facts::default());
    facts.add(&mut store, &host);
    facts.add(&mut store, &host);
    store
}

/// As many series of the instruments as a host with traffic has: paths and spans of coarse stages, distances,
/// listeners, reasons, processes, findings.
fn observed(store: &mut Store) {
    let distances = ["same_cpu", "same_core", "same_llc", "same_node", "other_node", "unknown"];
    let buckets: Vec<(u64, u64)> = (100..260).map(|number| (upper_ns(number), 7)).collect();
    for path in ["receive", "forward", "transmit", "kernel_transmit"] {
        store.observe(Id::PathLatency, &[path], &buckets, 1_000);
        store.set_max(Id::PathLatencyMax, &[path], 1.0);
    }
    for span in 0..12 {
        let labels = ["rx", &format!("from{span}"), &format!("to{span}")];
        store.observe(Id::SpanLatency, &labels, &buckets, 1_000);
        store.set_max(Id::SpanLatencyMax, &labels, 1.0);
        for distance in ["same_cpu", "same_llc", "same_node", "other_node"] {
            store.count(Id::SpanHops, &[labels[0], labels[1], labels[2], distance], 1);
        }
    }
    for (direction, distance) in ["rx", "tx"].iter().flat_map(|d| distances.map(|to| (*d, to))) {
        store.count(Id::LocalityPackets, &[direction, distance], 1);
    }
    for n in 0..8 {
        let name = format!("{n}");
        for distance in distances {
            store.count(Id::Accepts, &[&name, distance], 1);
        }
        store.add(Id::LateSeconds, &[&name], 1.0);
        store.count(Id::Drops, &[&name, "eth0"], 1);
        store.set(Id::FindingActive, &[&name, "warning", ""], 1.0);
        store.set(Id::FindingCost, &[&name, ""], 1.0);
        store.set(Id::ProcessMemory, &[&name, "0"], 1.0);
        store.set(Id::ProcessMemory, &[&name, "1"], 1.0);
        store.set(Id::ProcessRemoteMemory, &[&name], 1.0);
        store.set(Id::InstrumentUp, &[&name], 1.0);
        store.add(Id::Observed, &[&name], 1.0);
        store.count(Id::EventsLost, &[&name], 1);
    }
}

/// The figures of docs/monitor.md.
#[allow(clippy::print_stderr, reason = "figures for people")]
fn tell(text: &str) {
    eprintln!("{text}");
}

#[test]
fn a_usual_host_has_at_most_500_series() {
    let mut store = collected(32, 2, 32);
    let facts = store.snapshot().len();
    // Interrupts and their locality of 64 queues at least.
    assert!((128..200).contains(&facts), "{facts}");
    observed(&mut store);
    let all = store.snapshot().len();
    assert!(all <= 500, "{all}");
}

#[test]
fn a_huge_host_is_scraped_within_its_limits() {
    // What there is of CPUs does not change what is exported, and takes long to write.
    let cpus_of_package = if nearpath_testing::lengthy() { 512 } else { 8 };
    let mut store = collected(cpus_of_package, 2, 512);
    observed(&mut store);
    let snapshot = store.snapshot();
    assert!(snapshot.len() > SERIES_MAX / 2, "{}", snapshot.len());
    assert!(snapshot.len() <= SERIES_MAX, "{}", snapshot.len());
    // What had no room is counted; metrics that came first have theirs.
    assert!(snapshot.number(Id::LeftOut, &["nearpath_queue_irq_local"]).is_some());
    for format in Format::ALL {
        // The fastest of a few: the machine may be busy.
        let times = (0..5).map(|_| {
            let began = Instant::now();
            assert!(encode(&snapshot, format).len() > 10_000);
            began.elapsed()
        });
        let fastest = times.min().unwrap();
        // Unoptimised protobuf takes some fifty times as long.
        tell(&format!("{} series as {format:?}: {fastest:?}", snapshot.len()));
        let limit = Duration::from_millis(if cfg!(debug_assertions) { 1_000 } else { 100 });
        assert!(fastest < limit, "{format:?} {fastest:?}");
    }
}

#[test]
fn interfaces_that_come_and_go_for_a_day_leave_nothing() {
    let mut store = Store::default();
    let mut most = 0;
    // A container each 20 s, with a name of its own, for 24 hours.
    for n in 0..4_320u64 {
        store.advance(Duration::from_secs(20 * n));
        store.count(Id::Drops, &["NO_SOCKET", &format!("veth{n:x}")], 1);
        store.set_max(Id::SpanLatencyMax, &["rx", "a", &format!("b{n}")], 1.0);
        most = most.max(store.snapshot().len());
    }
    // Ten minutes of each.
    assert!(most <= 60, "{most}");
}
