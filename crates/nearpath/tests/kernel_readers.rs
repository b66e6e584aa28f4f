//! `nearpath diagnose` on this kernel, of a reader that does not keep up with few packets: it is named, with what it
//! does instead, and so is what its socket drops, although it is in another network namespace.
//!
//! The judge is the reader: the test made it, and its socket counts what it drops.

use nearpath_model::Diagnosis;
use nearpath_testing::veth::{Side, VethPair};
use nearpath_testing::{require_bpf, require_netns};
use std::io::Read;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const NEARPATH: &str = env!("CARGO_BIN_EXE_nearpath");
/// Name of the reader's thread.
const READER: &str = "np-reader";
/// Packets come twice as fast as they are read.
const BETWEEN: Duration = Duration::from_millis(1);
const WORK: Duration = Duration::from_millis(2);

fn compute() {
    let began = Instant::now();
    while began.elapsed() < WORK {
        std::hint::spin_loop();
    }
}

/// Ends the threads, also when a test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What nearpath says while a reader does `work` after each packet, with how many datagrams it has read.
fn diagnosed(work: fn()) -> (Diagnosis, u64) {
    let pair = VethPair::new(1).unwrap();
    let socket = pair.run(Side::Server, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let to = socket.local_addr().unwrap();
    let sender = pair.run(Side::Client, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = End(&ends);
        let read = || {
            let (mut buffer, mut count) = ([0; 100], 0);
            while !ends.load(Ordering::Relaxed) {
                if socket.recv(&mut buffer).is_ok() {
                    count += 1;
                    work();
                }
            }
            count
        };
        let reader =
            thread::Builder::new().name(READER.to_owned()).spawn_scoped(scope, read).unwrap();
        scope.spawn(|| {
            let mut next = Instant::now();
            while !ends.load(Ordering::Relaxed) {
                sender.send_to(&[7; 100], to).unwrap();
                next += BETWEEN;
                thread::sleep(next.saturating_duration_since(Instant::now()));
            }
        });
        let mut command = Command::new(NEARPATH);
        command.args(["diagnose", "--json", "--for", "3s", "--dport", &to.port().to_string()]);
        let mut child = nearpath_testing::begin(&mut command, "measuring for");
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        let status = child.wait().unwrap();
        drop(end);
        assert!(status.success(), "{text}");
        (serde_json::from_str(&text).unwrap(), reader.join().unwrap())
    })
}

fn assert_named(work: fn(), doing: &str) {
    if !(require_netns() && require_bpf()) {
        return;
    }
    let (diagnosis, read) = diagnosed(work);
    let titles: Vec<&str> = diagnosis.findings.iter().map(|found| found.title.as_str()).collect();
    let is_named = |title: &&str| title.contains(READER) && title.contains(doing);
    let budgets = &diagnosis.measurement.as_ref().unwrap().budget_totals;
    assert!(titles.iter().any(is_named), "{titles:?}: {budgets:?}");
    assert!(read > 0);
    // Every packet is late. If explaining them has no bound, a measurement of 3 s takes a minute and more.
    let watch = diagnosis.measurement.as_ref().and_then(|measured| measured.watch.as_ref());
    assert!(watch.is_some_and(|watch| watch.late > 100 && watch.watched_s < 20.0), "{watch:?}");
    let full = diagnosis.findings.iter().find(|finding| finding.check == "socket_buffers");
    let full = full.unwrap_or_else(|| panic!("{:?}", diagnosis.findings));
    assert!(full.title.ends_with("dropped while measured: receive buffer full"), "{full:?}");
    let measured = diagnosis.measurement.unwrap();
    let is_full = |reason: &str| reason == "SOCKET_RCVBUFF";
    let of_reader = |drop: &&nearpath_model::StageDrop| drop.reason.as_deref().is_some_and(is_full);
    let dropped: u64 = measured.drops.iter().filter(of_reader).map(|drop| drop.packets).sum();
    assert!(full.title.starts_with(&format!("{dropped} packets")), "{full:?}");
}

#[test]
fn a_reader_that_is_blocked_is_named_with_where() {
    assert_named(|| thread::sleep(WORK), "blocked in nanosleep");
}

#[test]
fn a_reader_that_computes_is_named_as_busy() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    assert_named(compute, "busy");
}
