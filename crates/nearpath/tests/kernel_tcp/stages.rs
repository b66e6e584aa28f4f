//! How long data waits to be read, against `measure stages` in the same time: another instrument, which follows each
//! packet by its sk_buff, through the wake-up of its reader, to the copy of its data. This one follows sequence numbers.

use crate::scenes::{Flood, has_two_cpus, have_priority, stay_on};
use crate::{begin_with, can_run, connect, ended, ended_with, listen};
use nearpath_model::Measurement;
use nearpath_model::tcp::TcpTimes;
use nearpath_testing::veth::{Side, VethPair};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const MESSAGES: u32 = 200;

/// Sends messages, one every so many ms, that `read` receives; the waits of both instruments. (The stages end where TCP
/// merges a segment into an earlier one: each has to be read before the next one arrives.)
fn waits(
    pair: &VethPair,
    every_ms: u64,
    mut read: impl FnMut(&mut TcpStream, &mut [u8], u32) + Send + 'static,
) -> (Measurement, TcpTimes) {
    let listener = listen(pair);
    let (mut client, mut server) = connect(pair, &listener);
    client.set_nodelay(true).unwrap();
    let number = server.local_addr().unwrap().port();
    let port = number.to_string();
    let both = ["--port", &port, "--max-overhead", "none"];
    let stages =
        begin_with(pair, Side::Server, "stages", &[&both[..], &["--direction", "rx"]].concat());
    let tcp = begin_with(pair, Side::Server, "tcp", &[&both[..], &["--detail", "full"]].concat());
    let reader = std::thread::spawn(move || {
        let mut message = [0; 1000];
        have_priority();
        (0..MESSAGES).for_each(|round| read(&mut server, &mut message, round));
        server
    });
    for _ in 0..MESSAGES {
        client.write_all(&[7; 1000]).unwrap();
        std::thread::sleep(Duration::from_millis(every_ms));
    }
    let _server = reader.join().unwrap();
    let (stages, tcp): (Measurement, _) = (ended_with(stages), ended(tcp));
    let connection = tcp.connections.iter().find(|c| c.sport == number).unwrap();
    (stages, connection.samples.clone().unwrap().read_wait)
}

/// From the arrival of a segment at its socket to the copy of its data, of packets for which a reader that waits is woken:
/// the sum of the spans' medians, of which one is nearly all, in nanoseconds; and the number of packets.
fn of_stages(stages: &Measurement) -> (u64, u64) {
    const PATH: [&str; 5] = [
        "tcp_rcv_established",
        "sk_data_ready",
        "sched_waking",
        "sched_switch",
        "skb_copy_datagram",
    ];
    let span = |ends: &[&str]| {
        let found = stages.spans.iter().find(|span| [&*span.from, &*span.to] == *ends);
        found.unwrap_or_else(|| panic!("{ends:?}: {:?}", stages.spans))
    };
    let spans: Vec<_> = PATH.windows(2).map(span).collect();
    let medians = spans.iter().filter_map(|span| span.p50_ns);
    (medians.sum(), spans.iter().map(|span| span.count).min().unwrap())
}

/// Both follow most messages, and their medians agree within 10%. On a busy machine some messages wait until the next one
/// arrives and are merged with it, the latest ones first.
fn assert_agree(least_ms: f64, scene: impl FnOnce() -> (Measurement, TcpTimes)) {
    let (stages, wait) = scene();
    let ((theirs, followed), ours) = (of_stages(&stages), wait.p50_ns.unwrap());
    assert!(wait.count * 20 >= u64::from(MESSAGES) * 19, "{wait:?}");
    let said = format!("{theirs} ns of {followed} by the stages, {ours} ns");
    assert!(followed * 20 >= u64::from(MESSAGES) * 19, "{said}");
    assert!((ours as f64 / theirs as f64 - 1.0).abs() <= 0.1, "{said}");
    assert!(ours as f64 >= least_ms * 1e6, "the reader is not late: {said}");
}

/// It does something else for 1 to 11 ms.
#[test]
fn a_late_reader_is_as_late_by_the_stages() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() || !nearpath_testing::require_bpf() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    assert_agree(5.0, || {
        waits(&pair, 20, |server, message, round| {
            // The message is there.
            let mut first = [0];
            server.peek(&mut first).unwrap();
            std::thread::sleep(Duration::from_millis(1 + u64::from(round * 7 % 11)));
            server.read_exact(message).unwrap();
        })
    });
}

/// A process that is ended with its test.
struct Hog(Child);

impl Drop for Hog {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A real-time task has its CPU for three quarters of the time, 9 ms of 12.
#[test]
fn a_reader_that_waits_for_its_cpu_is_as_late_by_the_stages() {
    if !nearpath_testing::require_lengthy()
        || !can_run()
        || !has_two_cpus()
        || !nearpath_testing::require_bpf()
    {
        return;
    }
    const HOG: &str = "
import time
print(flush=True)
while True:
    end = time.monotonic() + 0.009
    while time.monotonic() < end: pass
    time.sleep(0.003)
";
    let hog = Command::new("chrt")
        .args(["-f", "10", "taskset", "-c", "1", "python3", "-c", HOG])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut hog) = hog.map(Hog) else {
        nearpath_testing::skip("no chrt(1)");
        return;
    };
    if hog.0.stdout.take().unwrap().read(&mut [0]).unwrap() == 0 {
        nearpath_testing::skip("no real-time tasks here");
        return;
    }
    let pair = VethPair::new(1).unwrap();
    assert_agree(0.2, || {
        waits(&pair, 50, |server, message, round| {
            if round == 0 {
                stay_on(1);
            }
            server.read_exact(message).unwrap();
        })
    });
}

/// Softirqs have its CPU.
#[test]
fn a_reader_behind_softirqs_is_as_late_by_the_stages() {
    if !nearpath_testing::require_lengthy()
        || !can_run()
        || !has_two_cpus()
        || !nearpath_testing::require_bpf()
    {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let flood = Flood::new(&pair);
    assert_agree(0.01, || {
        waits(&pair, 50, |server, message, round| {
            if round == 0 {
                stay_on(1);
            }
            server.read_exact(message).unwrap();
        })
    });
    drop(flood);
}
