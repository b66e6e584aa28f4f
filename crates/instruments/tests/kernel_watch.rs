//! The watch: it counts every packet that a reader receives, with the time that it took, also while the overhead limit has
//! the stages paused. The judge is the application: what its reader received, and how long that took from the time of
//! sending that is in each datagram.

mod common;

use common::{can_run, has_two_cpus, pin, possible_cpus, udp_pair};
use nearpath_instruments::stages::{Options, SKB_TSTAMP, Stages};
use nearpath_instruments::{Filter, Grouping, Instrument, Sort};
use nearpath_model::histogram::bucket;
use nearpath_model::{Direction, Measurement, PathKind, PathLatency, Per};
use nearpath_testing::counted;
use nearpath_testing::veth::{Side, VethPair};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const PACKETS: u64 = 4000;
/// A reader that polls may take a datagram before its socket has signalled it, so that its stamp is not seen.
const UNSEEN: u64 = PACKETS / 100;

/// What is received on this port.
fn options(port: u16) -> Options {
    let direction = Some(Direction::Rx);
    Options {
        filter: Filter { dport: Some(port), direction, ..Filter::default() },
        watch: true,
        causes: true,
        outliers: 1000,
        ..Options::default()
    }
}

/// Measures while the stages are paused.
fn watched(options: Options, traffic: impl FnOnce()) -> Measurement {
    let mut stages = Stages::new(&possible_cpus(), options);
    stages.start().unwrap();
    stages.pause(Duration::ZERO, Duration::ZERO, &|_| true);
    traffic();
    stages.stop().unwrap()
}

fn path(m: &Measurement) -> &PathLatency {
    m.paths.iter().find(|path| path.kind == PathKind::Watch).expect("packets were watched")
}

/// Whether it counted so many, all but some with a stamp.
fn is_all(m: &Measurement, packets: u64, unseen: u64) -> Result<(), String> {
    let watch = m.watch.as_ref().expect("it was asked for");
    assert_eq!(watch.not_watched, None);
    let all = watch.packets + watch.unstamped;
    if all != packets || watch.unstamped > unseen {
        return Err(format!("{packets} packets were received: {watch:?}"));
    }
    assert_eq!(m.packets.started, 0, "the stages are paused");
    let path = path(m);
    assert_eq!((path.count, path.from.as_str()), (watch.packets, SKB_TSTAMP));
    Ok(())
}

/// So many datagrams, each of which is read before the next is sent, by a thread on another CPU.
fn one_by_one((client, server): &(UdpSocket, UdpSocket)) {
    std::thread::scope(|scope| {
        let (taken, is_taken) = std::sync::mpsc::channel();
        scope.spawn(move || {
            pin(1);
            for _ in 0..PACKETS {
                server.recv(&mut [0; 64]).unwrap();
                taken.send(()).unwrap();
            }
        });
        pin(0);
        for _ in 0..PACKETS {
            client.send(b"datagram").unwrap();
            is_taken.recv().unwrap();
        }
    });
}

#[test]
fn every_datagram_is_counted() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    for v6 in [false, true] {
        let sockets = udp_pair(&pair, v6);
        common::ping_pong(&sockets, 2);
        let port = sockets.1.local_addr().unwrap().port();
        counted(|| {
            let one_by_one = || std::thread::scope(|s| s.spawn(|| one_by_one(&sockets)).join());
            let m = watched(options(port), || one_by_one().unwrap());
            is_all(&m, PACKETS, UNSEEN)
        });
    }
}

#[test]
fn datagrams_that_queue_up_are_counted() {
    if !can_run() {
        return;
    }
    const AT_ONCE: u64 = 50;
    let pair = VethPair::new(1).unwrap();
    let (client, server) = udp_pair(&pair, false);
    common::ping_pong(&(client.try_clone().unwrap(), server.try_clone().unwrap()), 2);
    let port = server.local_addr().unwrap().port();
    counted(|| {
        let m = watched(options(port), || {
            for _ in 0..PACKETS / AT_ONCE {
                (0..AT_ONCE).for_each(|_| assert_eq!(client.send(b"datagram").unwrap(), 8));
                // The first is peeked at before.
                server.peek(&mut [0; 64]).unwrap();
                (0..AT_ONCE).for_each(|_| assert_eq!(server.recv(&mut [0; 64]).unwrap(), 8));
            }
        });
        is_all(&m, PACKETS, 0)
    });
}

#[test]
fn every_tcp_segment_is_counted_once() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    for v6 in [false, true] {
        let address = |side: Side| if v6 { side.ipv6() } else { side.ipv4() };
        let listener = pair.run(Side::Server, |s| TcpListener::bind((address(s), 0))).unwrap();
        let to = listener.local_addr().unwrap();
        let mut client = pair.run(Side::Client, |_| TcpStream::connect(to)).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.set_nodelay(true).unwrap();
        counted(|| {
            let m = watched(options(to.port()), || {
                let mut buffer = [0; 100];
                for _ in 0..PACKETS {
                    client.write_all(&[1; 100]).unwrap();
                    // It is peeked at, and then read in two parts.
                    server.peek(&mut buffer).unwrap();
                    server.read_exact(&mut buffer[..40]).unwrap();
                    server.read_exact(&mut buffer[40..]).unwrap();
                }
            });
            is_all(&m, PACKETS, 0)
        });
    }
}

fn real_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_nanos()).unwrap()
}

#[test]
fn latencies_are_those_of_the_application() {
    if !can_run() {
        return;
    }
    const ROUNDS: u64 = 60;
    let pair = VethPair::new(1).unwrap();
    let (client, server) = udp_pair(&pair, false);
    common::ping_pong(&(client.try_clone().unwrap(), server.try_clone().unwrap()), 2);
    let port = server.local_addr().unwrap().port();
    let mut waited = Vec::new();
    counted(|| {
        waited.clear();
        let m = watched(options(port), || {
            for round in 0..ROUNDS {
                for _ in 0..5 {
                    client.send(&real_ns().to_ne_bytes()).unwrap();
                }
                // 0.2 to 9.6 ms.
                std::thread::sleep(Duration::from_micros(200 + 800 * (round % 12)));
                for _ in 0..5 {
                    let mut sent = [0; 8];
                    server.recv(&mut sent).unwrap();
                    waited.push(real_ns() - u64::from_ne_bytes(sent));
                }
            }
        });
        is_all(&m, 5 * ROUNDS, 0)?;
        let watch = m.watch.as_ref().unwrap();
        let late = waited.iter().filter(|&&ns| ns > watch.late_ns).count() as u64;
        // One is on the other side of the limit if its call took so long.
        assert!(watch.late.abs_diff(late) <= 2, "{} late, {watch:?}", late);
        waited.sort_unstable();
        let path = path(&m);
        for (name, ns, quantile) in [("p50", path.p50_ns, 0.5), ("p90", path.p90_ns, 0.9)] {
            let application = waited[(waited.len() as f64 * quantile) as usize];
            let apart = bucket(ns.unwrap()).abs_diff(bucket(application));
            assert!(apart <= 2, "{name} {ns:?}, of the application {application}");
        }
        let longest = *waited.last().unwrap();
        assert!(path.max_ns <= Some(longest), "{:?} of {longest}", path.max_ns);
        assert!(path.max_ns.unwrap() * 21 / 20 >= longest, "{:?} of {longest}", path.max_ns);
        Ok(())
    });
}

#[test]
fn packets_are_watched_by_process_and_by_flow() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (client, server) = udp_pair(&pair, false);
    common::ping_pong(&(client.try_clone().unwrap(), server.try_clone().unwrap()), 2);
    let port = server.local_addr().unwrap().port();
    for per in [Per::Process, Per::Flow, Per::Cpu] {
        counted(|| {
            let groups = Some(Grouping { per, sort: Sort::Packets, top: 5 });
            let m = watched(Options { groups, ..options(port) }, || {
                for _ in 0..100 {
                    client.send(b"datagram").unwrap();
                    server.recv(&mut [0; 64]).unwrap();
                }
            });
            is_all(&m, 100, 0)?;
            let of_watch = |kind: &&PathLatency| kind.kind == PathKind::Watch;
            let counts: Vec<u64> = m
                .groups
                .iter()
                .flat_map(|g| g.paths.iter().filter(of_watch))
                .map(|p| p.count)
                .collect();
            assert_eq!(counts.iter().sum::<u64>(), 100, "{per:?}: {:?}", m.groups);
            if per != Per::Cpu {
                assert_eq!(counts, [100], "{per:?}");
            }
            Ok(())
        });
    }
}
