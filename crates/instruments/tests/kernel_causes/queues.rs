//! Packets that wait to be sent: in a queueing discipline that shapes, and for a device whose ring is full.

use crate::stream::{OTHER, Stream, VICTIM, lasts, measure, slow, us};
use crate::worker::{Policy, pin, schedule, spin};
use crate::{alone, can_run, summary};
use nearpath_instruments::Filter;
use nearpath_model::{Direction, Measurement, Share, ShareKind};
use nearpath_testing::require_lengthy;
use nearpath_testing::veth::Side;
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;

/// Sets a queueing discipline of the client's device; returns whether the kernel has it.
pub fn set(stream: &Stream, commands: &[&str]) -> bool {
    commands.iter().all(|command| {
        let run = |_| {
            let words = command.split(' ');
            Ok(Command::new("tc").args(words).output()?.status.success())
        };
        stream.pair.run(Side::Client, run).unwrap()
    })
}

fn names(share: &Share, kind: ShareKind, qdisc: &str) -> bool {
    let who = share.who.clone().unwrap_or_default();
    share.share == kind
        && who.qdisc.as_deref() == Some(qdisc)
        && who.device.as_deref() == Some(Side::Client.device())
}

/// The spans in which packets were slow, and how many of them.
fn spans(m: &Measurement) -> BTreeMap<String, usize> {
    let mut spans = BTreeMap::new();
    for outlier in &m.outliers {
        *spans.entry(format!("{} -> {}", outlier.from, outlier.to)).or_default() += 1;
    }
    spans
}

/// Nearly all packets that waited to be sent must name it.
fn assert_named(m: &Measurement, kind: ShareKind, qdisc: &str) {
    let queued =
        || m.outliers.iter().filter(|o| o.from == "net_dev_queue" || o.from == "qdisc_enqueue");
    let named = queued().filter(|o| names(&o.budget[0], kind, qdisc)).count();
    let other: Vec<_> =
        queued().filter(|o| !names(&o.budget[0], kind, qdisc)).take(9).map(summary).collect();
    assert!(queued().count() >= 100, "{:?} {:?} {:?}", spans(m), m.slow, m.packets);
    assert!(named * 20 >= queued().count() * 19, "{named}: {}", other.join("\n"));
}

/// A discipline with a rate below that of the traffic.
fn shaped(qdisc: &str, commands: &[&str]) {
    if !can_run() || !nearpath_testing::require_program("tc") {
        return;
    }
    let _alone = alone();
    let stream = Stream::new();
    if !set(&stream, commands) {
        nearpath_testing::skip(&format!("this kernel has no qdisc {qdisc}"));
        return;
    }
    assert_named(&stream.play(Direction::Tx), ShareKind::Qdisc, qdisc);
}

#[test]
fn a_token_bucket() {
    if !require_lengthy() {
        return;
    }
    shaped("tbf", &["qdisc add dev np0 root tbf rate 1mbit burst 2kb latency 20ms"]);
}

#[test]
fn classes_with_a_rate() {
    if !require_lengthy() {
        return;
    }
    shaped(
        "htb",
        &[
            "qdisc add dev np0 root handle 1: htb default 10",
            "class add dev np0 parent 1: classid 1:10 htb rate 1mbit burst 2kb cburst 2kb",
        ],
    );
}

#[test]
fn pacing() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    shaped("fq", &["qdisc add dev np0 root fq maxrate 1mbit"]);
}

#[test]
fn a_delay() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    shaped("netem", &["qdisc add dev np0 root netem delay 5ms"]);
}

/// The sender may have few packets in flight, and these wait in a queueing discipline: it waits for buffer space.
#[test]
fn a_sender_that_waits_for_buffer_space() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() || !nearpath_testing::require_program("tc") {
        return;
    }
    let _alone = alone();
    let mut stream = Stream::new();
    let tbf = "qdisc add dev np0 root tbf rate 1mbit burst 2kb latency 1s";
    if !set(&stream, &[tbf]) {
        nearpath_testing::skip("this kernel has no qdisc tbf");
        return;
    }
    let client = stream.pair.run(Side::Client, |s| UdpSocket::bind((s.ipv4(), 0))).unwrap();
    client.connect((Side::Server.ipv4(), stream.port)).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&client, 4096).unwrap();
    stream.start("sender", move |over| {
        pin(OTHER);
        schedule(Policy::Fifo(45));
        while !over.load(SeqCst) {
            client.send(&[0; 1000]).unwrap();
        }
    });
    let filter =
        Filter { dport: Some(stream.port), direction: Some(Direction::Tx), ..Filter::default() };
    let m = measure(filter, slow(), || std::thread::sleep(lasts()));
    let is_sender = |share: &Share| {
        share.share == ShareKind::SocketFull
            && share.who.as_ref().is_some_and(|who| {
                who.comm.as_deref() == Some("sender") && who.on.as_deref() == Some("send_buffer")
            })
    };
    let sent = || m.outliers.iter().filter(|o| o.from == "sock_send");
    let other: Vec<_> = sent().filter(|o| !is_sender(&o.budget[0])).take(9).map(summary).collect();
    assert!(sent().count() >= 20, "{:?} {:?}", m.slow, m.packets);
    assert!(other.len() * 20 <= sent().count(), "{}", other.join("\n"));
}

/// A virtual device whose peer is slow to receive stops its queue (since 6.16).
#[test]
fn a_ring_that_is_full() {
    if !can_run() || !nearpath_testing::require_program("tc") {
        return;
    }
    if !has_backpressure() {
        nearpath_testing::skip("a veth device of this kernel drops what its peer does not receive");
        return;
    }
    let _alone = alone();
    a_ring_fills();
}

fn a_ring_fills() {
    let mut stream = Stream::new();
    // It receives by NAPI if it has GRO and its peer does not segment.
    let set_feature = |side: Side, feature: &str, value: &str| {
        let run = |_| {
            let run =
                Command::new("ethtool").args(["-K", side.device(), feature, value]).output()?;
            Ok(run.status.success())
        };
        stream.pair.run(side, run).unwrap()
    };
    if !nearpath_testing::require_program("ethtool") {
        return;
    }
    assert!(set_feature(Side::Server, "gro", "on") && set_feature(Side::Client, "tso", "off"));
    stream.pair.write(Side::Server, "queues/rx-0/rps_cpus", "0").unwrap();
    stream.pair.write(Side::Server, "threaded", "1").unwrap();
    assert!(set(&stream, &["qdisc add dev np0 root pfifo_fast"]));
    keep_from_polling(&mut stream);
    // The send buffer of one holds hardly more packets than the ring.
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let bound = stream.pair.run(Side::Client, |s| UdpSocket::bind((s.ipv4(), 0)));
            let client = bound.unwrap();
            client.connect((Side::Server.ipv4(), stream.port)).unwrap();
            client.set_nonblocking(true).unwrap();
            client
        })
        .collect();
    stream.start("flood", move |over| {
        pin(OTHER);
        while !over.load(SeqCst) {
            // More at once than fits in the ring.
            for client in &clients {
                (0..100).for_each(|_| drop(client.send(&[0; 64])));
            }
            std::thread::sleep(us(10_000));
        }
    });
    let filter =
        Filter { dport: Some(stream.port), direction: Some(Direction::Tx), ..Filter::default() };
    let m = measure(filter, slow(), || std::thread::sleep(lasts()));
    assert_named(&m, ShareKind::DeviceQueue, "pfifo_fast");
}

/// The thread that polls the server's device shares a CPU with one that has priority.
fn keep_from_polling(stream: &mut Stream) {
    let name = format!("napi/{}", Side::Server.device());
    let thread = nearpath_testing::wait_for("the thread that polls", || {
        std::fs::read_dir("/proc").unwrap().flatten().find_map(|process| {
            let comm = std::fs::read_to_string(process.path().join("comm")).ok()?;
            comm.starts_with(&name).then(|| process.file_name().to_str()?.parse().ok())?
        })
    });
    crate::worker::pin_thread(thread, VICTIM);
    stream.start("hog", |over| {
        pin(VICTIM);
        schedule(Policy::Fifo(40));
        while !over.load(SeqCst) {
            spin(us(40_000));
            std::thread::sleep(us(20_000));
        }
    });
}

/// Whether the kernel is 6.16 or later.
fn has_backpressure() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|word| word.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(16))
}
