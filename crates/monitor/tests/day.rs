//! A day of the daemon in a minute: its own thread's ticks on a clock that is faster, while interfaces, namespaces and virtual
//! machines come and go. Memory is what the allocator counts, and stays as it is after some hours; so do the series.

use nearpath_host::Root;
use nearpath_model::accepts::{AcceptMeasurement, DistanceCounts, Listener};
use nearpath_model::histogram::bucket;
use nearpath_model::vm::{MeasuredVm, VmMeasurement, VmQueue, VmSpan, VmSpanKind};
use nearpath_monitor::exposition::Format;
use nearpath_monitor::runner::{Clock, Config, Context, Monitored, Source, Stop, Ticks};
use nearpath_monitor::{Id, collect};
use nearpath_testing::trees::{Layout, Machine, Nic};
use std::alloc::{GlobalAlloc, Layout as Size, System};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// Counts the bytes that are allocated.
struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);

fn count(bytes: usize, sign: i64) {
    LIVE.fetch_add(sign * i64::try_from(bytes).unwrap_or(i64::MAX), Ordering::Relaxed);
}

// SAFETY: all is left to the system's allocator; the counter does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, size: Size) -> *mut u8 {
        count(size.size(), 1);
        // SAFETY: as this function's.
        unsafe { System.alloc(size) }
    }
    unsafe fn dealloc(&self, at: *mut u8, size: Size) {
        count(size.size(), -1);
        // SAFETY: as this function's.
        unsafe { System.dealloc(at, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DAY_S: u64 = 24 * 3600;
/// By then all series of ten minutes, and all that is kept at all, are there.
const SETTLED_S: u64 = 3 * 3600;
const SETTLED: usize = 10;

/// An interface of a tree that gets another name, as one that was removed and another that came.
struct Port<'a> {
    tree: &'a Path,
    name: String,
}

impl Port<'_> {
    fn dir(&self) -> std::path::PathBuf {
        self.tree.join("sys/devices/pci0000:20/0000:20:00.0/net").join(&self.name)
    }

    fn replace(&mut self, name: String) {
        let (old, link) = (self.dir(), self.tree.join("sys/class/net").join(&self.name));
        self.name = name;
        std::fs::rename(old, self.dir()).unwrap();
        std::fs::remove_file(link).unwrap();
        let target = format!("../../devices/pci0000:20/0000:20:00.0/net/{}", self.name);
        let link = self.tree.join("sys/class/net").join(&self.name);
        std::os::unix::fs::symlink(target, link).unwrap();
    }
}

fn config(interval: Duration) -> Config {
    Config {
        listen: ([127, 0, 0, 1], 0).into(),
        insecure: false,
        web_config: None,
        interval,
        findings: interval,
        limit: None,
        sources: BTreeSet::from([Source::Facts, Source::Memory, Source::Workers, Source::Findings]),
        record: None,
        report: None,
        btf_file: None,
        version: "1".to_owned(),
    }
}

/// What a listener in a namespace of its own has accepted, and a virtual machine got, since the tick before.
fn observed(monitored: &Monitored, number: u64) {
    let places = DistanceCounts { same_cpu: 3, ..DistanceCounts::default() };
    let netns = u32::try_from(number).unwrap();
    let local = format!("10.0.{}.{}:80", number / 200, number % 200);
    let listeners = vec![Listener { local, netns, places, workers: Vec::new() }];
    let accepts = AcceptMeasurement { listeners, ..AcceptMeasurement::default() };
    collect::accepts(&mut monitored.store(), &accepts, None);
    let span = VmSpan::new(VmSpanKind::Whole, &[(bucket(20_000), 9)], 20_000);
    let queue = VmQueue { spans: span.into_iter().collect(), ..VmQueue::default() };
    let name = Some(format!("vm{number}"));
    let vm = MeasuredVm { name, queues: vec![queue], ..MeasuredVm::default() };
    let vms = VmMeasurement { vms: vec![vm], ..VmMeasurement::default() };
    collect::vms(&mut monitored.store(), &vms, None);
}

/// The figures of docs/monitor.md.
#[allow(clippy::print_stderr, reason = "figures for people")]
fn tell(text: &str) {
    eprintln!("{text}");
}

#[test]
fn a_day_leaves_neither_memory_nor_series() {
    // Something comes and goes each minute of the day, or at each tick if these are longer.
    let tick_s = if nearpath_testing::lengthy() { 10 } else { 360 };
    let layout = Layout { packages: 2, cores: 2, ..Layout::default() };
    let nic =
        |name: &str, bus: &str, irq| Nic::pci(name, "mlx5_core", bus).on_node(0).queues(4, irq);
    let machine = Machine::regular(layout).nic(nic("eth0", "0000:10:00.0", 100));
    let tree = machine.nic(nic("port0", "0000:20:00.0", 200)).write();
    let mut port = Port { tree: tree.path(), name: "port0".to_owned() };

    let seconds = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&seconds);
    let clock = Clock::of(move || Duration::from_secs(clock.load(Ordering::Relaxed)));
    let config = config(Duration::from_secs(tick_s));
    let monitored = Monitored::new(config.interval).with_clock(clock);
    let (stop, root) = (Stop::new().unwrap(), Root::tree(tree.path()).unwrap());
    let host = nearpath_host::read(&root, &nearpath_host::Wanted::default()).unwrap();
    let say = |_: &str| {};
    let context = Context {
        config: &config,
        topology: &host.topology,
        monitored: &monitored,
        stop: &stop,
        say: &say,
    };
    let mut ticks = Ticks::of(context, root);

    let (mut early, mut late) = ((0, 0), (0, 0));
    for now_s in (0..DAY_S).step_by(usize::try_from(tick_s).unwrap()) {
        seconds.store(now_s, Ordering::Relaxed);
        if now_s % 60 == 0 {
            let number = now_s / 60;
            port.replace(format!("port{number}"));
            observed(&monitored, number);
        }
        ticks.tick();
        // Two scrapers.
        let exposition = monitored.exposition();
        assert!(!exposition.encoded(Format::Protobuf).is_empty());
        assert!(!exposition.encoded(Format::Text).is_empty());
        drop(exposition);
        let series = monitored.store().snapshot();
        let is_there = series.number(Id::QueueIrqLocal, &[&port.name, "0"]).is_some();
        assert!(is_there, "{} at {now_s} s", port.name);
        let figures = (LIVE.load(Ordering::Relaxed), series.len());
        drop(series);
        let most = if now_s < SETTLED_S { &mut early } else { &mut late };
        *most = (most.0.max(figures.0), most.1.max(figures.1));
    }
    let (early, late) = ((early.0 / 1024, early.1), (late.0 / 1024, late.1));
    tell(&format!("most KiB and series: {early:?} in the first hours, then {late:?}"));
    assert!(early.1 > SETTLED, "{early:?}");
    assert!(late.1 <= early.1, "series: {early:?}, then {late:?}");
    // A name of 1,440 may be longer than the first ones.
    assert!(late.0 <= early.0 + 64, "KiB: {early:?}, then {late:?}");
}
