//! Whole paths on this kernel: which packets have one, of which kind, and that their times are the sum of all
//! spans. (`kernel_reference.rs` compares the times with the kernel's timestamps.)

mod common;

use common::{acquainted_pair, can_run, exactly, ping_pong, possible_cpus};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Grouping, Instrument, Sort};
use nearpath_model::{Detail, Direction, Measurement, PathKind, PathLatency, Per, Protocol};
use nearpath_testing::counted;
use nearpath_testing::veth::{Side, VethPair};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

const ROUNDS: u64 = 300;

fn measure(options: Options, work: impl FnOnce()) -> Measurement {
    let mut stages = Stages::new(&possible_cpus(), options);
    stages.start().unwrap();
    work();
    let m = stages.stop().unwrap();
    assert_consistent(&m);
    m
}

/// Invariants of any measurement.
fn assert_consistent(m: &Measurement) {
    let all: u64 = m.paths.iter().map(|path| path.count).sum();
    assert!(all <= m.packets.completed, "{:?} {:?}", m.paths, m.packets);
    for path in &m.paths {
        assert_eq!(path.count, path.buckets.iter().map(|bucket| bucket.1).sum::<u64>());
        assert!(path.min_ns <= path.p50_ns.or(path.max_ns) && path.p50_ns <= path.max_ns);
        let counts: Vec<u64> = path.above.iter().map(|above| above.count).collect();
        assert!(counts.is_sorted_by(|a, b| a >= b), "{path:?}");
        for above in &path.above {
            // The buckets say the same, but for the one that the time is in.
            let beyond = |factor: f64| {
                let upper = above.ns as f64 * factor;
                let longer = path.buckets.iter().filter(|bucket| bucket.0 as f64 > upper);
                longer.map(|bucket| bucket.1).sum::<u64>()
            };
            assert!((beyond(1.05)..=beyond(1.0)).contains(&above.count), "{path:?}");
        }
    }
}

fn counts(m: &Measurement) -> BTreeMap<PathKind, u64> {
    m.paths.iter().map(|path| (path.kind, path.count)).collect()
}

fn path(m: &Measurement, kind: PathKind) -> &PathLatency {
    m.paths.iter().find(|path| path.kind == kind).unwrap()
}

fn udp(port: u16) -> Filter {
    Filter { protocol: Some(Protocol::Udp), port: Some(port), ..Filter::default() }
}

#[test]
fn datagrams_are_received_and_sent_and_take_as_long_as_their_spans() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    for v6 in [false, true] {
        let sockets = acquainted_pair(&pair, v6);
        let filter = udp(sockets.1.local_addr().unwrap().port());
        counted(|| {
            let m = measure(Options { filter: filter.clone(), ..Options::default() }, || {
                ping_pong(&sockets, ROUNDS);
            });
            let both = [(PathKind::Receive, 2 * ROUNDS), (PathKind::Transmit, 2 * ROUNDS)];
            exactly(counts(&m), both.into(), &m)?;
            for (direction, kind) in
                [(Direction::Rx, PathKind::Receive), (Direction::Tx, PathKind::Transmit)]
            {
                let spans = m.spans.iter().filter(|span| span.direction == direction);
                let spans: u64 = spans.map(|span| span.total_ns).sum();
                let error = path(&m, kind).total_ns as f64 / spans as f64 - 1.0;
                // Either is a sum of middles of buckets, and within 2.2%. One long wait can be most of both.
                exactly(error.abs() < 0.044, true, &m)?;
            }
            Ok(())
        });
    }
}

/// With few hooks paths begin later, and there are as many.
#[test]
fn few_stages_see_the_same_packets() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let filter = udp(sockets.1.local_addr().unwrap().port());
    counted(|| {
        let options =
            Options { filter: filter.clone(), detail: Detail::Coarse, ..Options::default() };
        let m = measure(options, || ping_pong(&sockets, ROUNDS));
        let found: Vec<_> = m.paths.iter().map(|p| (p.kind, p.from.as_str(), p.count)).collect();
        let right = [
            (PathKind::Receive, "net_rx_raise", 2 * ROUNDS),
            (PathKind::Transmit, "net_dev_queue", 2 * ROUNDS),
        ];
        exactly(found, right.into(), &m)
    });
}

/// A late reader makes its packets' paths long, and how many were too long is exact.
#[test]
fn packets_of_a_late_reader_exceed_the_thresholds() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (client, server) = acquainted_pair(&pair, false);
    let filter = Filter {
        direction: Some(Direction::Rx),
        dport: Some(server.local_addr().unwrap().port()),
        ..udp(server.local_addr().unwrap().port())
    };
    let ms = Duration::from_millis;
    let above = vec![ms(30), ms(3)];
    counted(|| {
        let options =
            Options { filter: filter.clone(), above: above.clone(), ..Options::default() };
        // By the reader's own clock, from before the call that sends: a busy machine makes others late, too.
        let mut late = Vec::new();
        let m = measure(options, || {
            for round in 0..200 {
                let begin = Instant::now();
                client.send(b"ping").unwrap();
                // One of ten waits for 4ms, one of fifty for 40.
                match round % 50 {
                    7 => std::thread::sleep(ms(40)),
                    n if n % 10 == 0 => std::thread::sleep(ms(4)),
                    _ => {}
                }
                server.recv(&mut [0; 64]).unwrap();
                late.push(begin.elapsed());
            }
        });
        let path = path(&m, PathKind::Receive);
        exactly(path.count, 200, &m)?;
        let times: Vec<u64> = path.above.iter().map(|above| above.ns).collect();
        exactly(times, vec![3_000_000, 30_000_000], &m)?;
        for (above, least) in path.above.iter().zip([24, 4]) {
            let time = Duration::from_nanos(above.ns);
            let longer = |time: Duration| late.iter().filter(|&&late| late > time).count() as u64;
            let (most, certain) = (longer(time), longer(time.mul_f64(1.1)));
            exactly(certain >= least, true, &m)?;
            exactly((certain..=most).contains(&above.count), true, &m)?;
        }
        // Interpolated within a bucket, so below it by up to a bucket (4.4%).
        exactly(path.p90_ns.unwrap() >= 3_800_000 && path.p99_ns.unwrap() >= 38_000_000, true, &m)
    });
}

#[test]
fn acknowledgements_have_no_receive_path() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = pair.run(Side::Server, |s| TcpListener::bind((s.ipv4(), 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = pair.run(Side::Client, |_| TcpStream::connect(address)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.set_nodelay(true).unwrap();
    let filter =
        Filter { protocol: Some(Protocol::Tcp), port: Some(address.port()), ..Filter::default() };
    counted(|| {
        // In one direction alone, so that each segment is acknowledged by a bare one.
        let m = measure(Options { filter: filter.clone(), ..Options::default() }, || {
            let mut buffer = [0; 64];
            for _ in 0..50 {
                client.write_all(&[1; 64]).unwrap();
                server.read_exact(&mut buffer).unwrap();
                // Longer than an acknowledgement may be delayed.
                std::thread::sleep(Duration::from_millis(45));
            }
        });
        let found = counts(&m);
        exactly(found.get(&PathKind::Receive), Some(&50), &m)?;
        exactly(found.get(&PathKind::Transmit), Some(&50), &m)?;
        // Acknowledgements are received and sent, too; some go with the read call's window update.
        exactly(found.get(&PathKind::KernelTransmit).is_some_and(|&acks| acks >= 40), true, &m)?;
        exactly(m.packets.completed >= 180, true, &m)
    });
}

#[test]
fn forwarded_packets_have_a_forward_path() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    // A second pair of devices behind the server's, and a route to a host there that does not listen.
    pair.run(Side::Server, |_| {
        for command in [
            "ip link add fw0 type veth peer name fw1",
            "ip addr add 10.77.0.1/24 dev fw0",
            "ip link set fw0 up",
            "ip link set fw1 up",
            "ip neigh replace 10.77.0.2 lladdr 02:00:00:00:77:02 dev fw0",
            "sysctl -qw net.ipv4.ip_forward=1",
        ] {
            let mut words = command.split(' ');
            let done = Command::new(words.next().unwrap()).args(words).status()?;
            if !done.success() {
                return Err(io::Error::other(command));
            }
        }
        Ok(())
    })
    .unwrap();
    let (_, server) = acquainted_pair(&pair, false);
    let gateway = server.local_addr().unwrap().ip().to_string();
    let client = pair
        .run(Side::Client, |side| {
            let route = ["route", "add", "10.77.0.0/24", "via", &gateway];
            if !Command::new("ip").args(route).status()?.success() {
                return Err(io::Error::other("ip route failed"));
            }
            UdpSocket::bind((side.ipv4(), 0))
        })
        .unwrap();
    let filter = Filter { dst: Some("10.77.0.2/32".parse().unwrap()), ..udp(7777) };
    counted(|| {
        let m = measure(Options { filter: filter.clone(), ..Options::default() }, || {
            for _ in 0..ROUNDS {
                client.send_to(b"ping", ("10.77.0.2", 7777)).unwrap();
            }
            std::thread::sleep(Duration::from_millis(50));
        });
        // The client sends, the server forwards; the other end does not read.
        let right = [
            (PathKind::Forward, ROUNDS),
            (PathKind::Transmit, ROUNDS),
            (PathKind::KernelTransmit, ROUNDS),
        ];
        exactly(counts(&m), right.into(), &m)
    });
    // If send calls are not observed, everything sent is of one kind.
    counted(|| {
        let without = vec!["sock_send".to_owned()];
        let options = Options { filter: filter.clone(), without, ..Options::default() };
        let m = measure(options, || {
            for _ in 0..ROUNDS {
                client.send_to(b"ping", ("10.77.0.2", 7777)).unwrap();
            }
            std::thread::sleep(Duration::from_millis(50));
        });
        let right = [(PathKind::Forward, ROUNDS), (PathKind::Transmit, 2 * ROUNDS)];
        exactly(counts(&m), right.into(), &m)
    });
}

#[test]
fn dropped_packets_have_no_path() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (client, server) = acquainted_pair(&pair, false);
    let address = server.local_addr().unwrap();
    drop(server);
    let filter = Filter {
        direction: Some(Direction::Rx),
        dport: Some(address.port()),
        ..udp(address.port())
    };
    counted(|| {
        let m = measure(Options { filter: filter.clone(), ..Options::default() }, || {
            for _ in 0..ROUNDS {
                // There is no listener, which the socket is occasionally notified of (ICMP).
                let _ = client.send(b"ping");
            }
            std::thread::sleep(Duration::from_millis(50));
        });
        exactly(m.packets.dropped > ROUNDS / 2, true, &m)?;
        exactly(counts(&m), BTreeMap::new(), &m)
    });
}

#[test]
fn groups_have_paths_that_add_up() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let conversations = [acquainted_pair(&pair, false), acquainted_pair(&pair, false)];
    let netns = u32::try_from(pair.inode(Side::Server).unwrap()).unwrap();
    let filter = Filter { protocol: Some(Protocol::Udp), netns: Some(netns), ..Filter::default() };
    for per in [Per::Flow, Per::Process, Per::Queue, Per::Cpu, Per::Node] {
        counted(|| {
            let groups = Some(Grouping { per, top: 1, sort: Sort::Packets });
            let options = Options { filter: filter.clone(), groups, ..Options::default() };
            let m = measure(options, || {
                ping_pong(&conversations[0], ROUNDS);
                ping_pong(&conversations[1], ROUNDS / 2);
            });
            let all = ROUNDS + ROUNDS / 2;
            let right = [(PathKind::Receive, all), (PathKind::Transmit, all)];
            exactly(counts(&m), right.into(), &m)?;
            for whole in &m.paths {
                let of_kind = |path: &&PathLatency| path.kind == whole.kind;
                let parts = || m.groups.iter().flat_map(|group| &group.paths).filter(of_kind);
                exactly(parts().map(|part| part.count).sum::<u64>(), whole.count, &m)?;
                for (at, above) in whole.above.iter().enumerate() {
                    exactly(parts().map(|part| part.above[at].count).sum(), above.count, &m)?;
                }
            }
            let first = &m.groups[0];
            match per {
                // What the server of the first conversation receives, or what it sends.
                Per::Flow => exactly(first.paths.iter().map(|p| p.count).sum(), ROUNDS, &m),
                // All of it is this process.
                Per::Process => {
                    let own = format!("/{}", std::process::id());
                    exactly(first.name.ends_with(&own), true, &m)?;
                    exactly(first.paths.clone(), m.paths.clone(), &m)
                }
                _ => Ok(()),
            }
        });
    }
}
