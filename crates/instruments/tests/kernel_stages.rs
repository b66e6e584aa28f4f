//! The instrument `stages` on this kernel: packets that the test itself sends over a veth pair,
//! so that every count is known beforehand.

mod common;

use common::{
    SOCKETS, acquainted_pair, can_run, cpus_of_nodes, exactly, has_two_cpus, one_each, pin,
    ping_pong, possible_cpus, udp_pair,
};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Device, Filter, Instrument, InstrumentError};
use nearpath_model::{CpuId, CpuSet, Direction, Measurement, Protocol, Span};
use nearpath_testing::counted;
use nearpath_testing::veth::{Side, VethPair};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const ROUNDS: u64 = 500;

fn options(filter: Filter) -> Options {
    Options { filter, ..Options::default() }
}

/// Measures while `work` runs; the instrument has stopped by its end.
fn measure(options: Options, work: impl FnOnce()) -> Measurement {
    let mut stages = Stages::new(&possible_cpus(), options);
    stages.start().unwrap();
    work();
    stages.stop().unwrap()
}

/// Measures until all packets were seen to be received.
fn measure_whole(filter: &Filter, received: u64, work: impl Fn()) -> Option<Measurement> {
    counted(|| {
        let m = measure(options(filter.clone()), &work);
        assert_accounts_balance(&m);
        exactly(arrived(&m, Direction::Rx, "netif_receive_skb"), received, &m)?;
        Ok(m)
    })
}

fn span<'a>(m: &'a Measurement, direction: Direction, from: &str, to: &str) -> Option<&'a Span> {
    m.spans.iter().find(|s| s.direction == direction && s.from == from && s.to == to)
}

/// Packets that reached a stage, by any path.
fn arrived(m: &Measurement, direction: Direction, to: &str) -> u64 {
    m.spans.iter().filter(|s| s.direction == direction && s.to == to).map(|s| s.count).sum()
}

fn assert_accounts_balance(m: &Measurement) {
    let p = m.packets;
    assert_eq!(p.started, p.completed + p.dropped + p.abandoned + p.collided, "{p:?}");
    assert_eq!(m.events_lost, 0);
    for span in &m.spans {
        assert_eq!(span.count, span.buckets.iter().map(|b| b.1).sum::<u64>());
        assert_eq!(span.count, span.places.iter().map(|p| p.count).sum::<u64>());
        assert!(span.min_ns <= span.p50_ns.or(span.max_ns) && span.p50_ns <= span.max_ns);
    }
}

#[test]
fn every_datagram_is_followed_from_send_to_receive() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    for v6 in [false, true] {
        let sockets = acquainted_pair(&pair, v6);
        let port = sockets.1.local_addr().unwrap().port();
        let filter =
            Filter { protocol: Some(Protocol::Udp), port: Some(port), ..Filter::default() };
        let packets = 2 * ROUNDS;
        let Some(m) = measure_whole(&filter, packets, || ping_pong(&sockets, ROUNDS)) else {
            return;
        };
        // Each datagram is one packet sent and one received.
        assert_eq!(m.packets.started, 2 * packets);
        assert_eq!((m.packets.dropped, m.packets.collided), (0, 0));
        let lacks = |stage: &str| m.not_observable.iter().any(|n| n.stage == stage);
        for (direction, stage) in [
            (Direction::Tx, "net_dev_queue"),
            (Direction::Tx, "net_dev_start_xmit"),
            (Direction::Tx, "netif_rx"),
            (Direction::Rx, "netif_receive_skb"),
            (Direction::Rx, "sk_data_ready"),
        ] {
            if !lacks(stage) {
                assert_eq!(arrived(&m, direction, stage), packets, "{direction:?} {stage}");
            }
        }
        if !lacks("sock_recv") && !lacks("sk_data_ready") {
            // The first may have come when the socket was new to the table; none else is missed.
            assert!(arrived(&m, Direction::Rx, "sock_recv") >= packets - 4, "{:?}", m.spans);
            assert!(m.packets.completed >= 2 * packets - 4, "{:?}", m.packets);
        }
        // The readers sleep between datagrams, so nearly each wakes one. On a busy machine both share a CPU: the server
        // then runs as soon as it is woken, and answers before the client has come to sleep.
        let woken = arrived(&m, Direction::Rx, "sched_switch");
        assert!(woken >= packets / 2 - 4, "{woken} of {packets}");
    }
}

#[test]
fn tcp_segments_are_followed_and_bare_acks_end_in_tcp() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = pair.run(Side::Server, |s| TcpListener::bind((s.ipv4(), 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let connect = |_| TcpStream::connect(address);
    let mut client = pair.run(Side::Client, connect).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let filter = Filter {
        protocol: Some(Protocol::Tcp),
        host: Some(address.ip().into()),
        port: Some(address.port()),
        ..Filter::default()
    };
    let m = measure(options(filter), || {
        let mut buffer = [0; 64];
        for _ in 0..ROUNDS {
            client.write_all(&[1; 64]).unwrap();
            server.read_exact(&mut buffer).unwrap();
            server.write_all(&buffer).unwrap();
            client.read_exact(&mut buffer).unwrap();
        }
    });
    assert_accounts_balance(&m);
    // Every segment carries data, and is copied to its reader, once.
    let copied = arrived(&m, Direction::Rx, "skb_copy_datagram");
    assert!((2 * ROUNDS - 2..=2 * ROUNDS).contains(&copied), "{copied}");
    let sent = span(&m, Direction::Tx, "net_dev_start_xmit", "netif_rx").unwrap();
    assert!(sent.count >= 2 * ROUNDS);
    let unfinished = m.packets.started - m.packets.completed;
    assert!(unfinished <= 10, "{:?}", m.packets);
}

#[test]
fn filters_let_only_matching_packets_begin() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (v4, v6) = (acquainted_pair(&pair, false), acquainted_pair(&pair, true));
    let port = v4.1.local_addr().unwrap().port();
    let inode = |side| u32::try_from(pair.inode(side).unwrap()).unwrap();
    let ifindex: u32 = pair
        .run(Side::Server, |_| {
            rustix::net::netdevice::name_to_index(
                rustix::net::socket(
                    rustix::net::AddressFamily::INET,
                    rustix::net::SocketType::DGRAM,
                    None,
                )?,
                "np1",
            )
            .map_err(io::Error::from)
        })
        .unwrap();
    let device = Device {
        name: "np1".to_owned(),
        ifindex,
        netns: Some(inode(Side::Server)),
        ..Device::default()
    };
    let udp = Filter { protocol: Some(Protocol::Udp), ..Filter::default() };
    let net = |text: &str| Some(text.parse().unwrap());
    let both = 2 * ROUNDS;
    // (what, filter, packets received that begin, packets sent that begin) of one conversation
    // in each family, every datagram answered.
    let host = Filter { host: net("10.99.0.0/24"), ..udp.clone() };
    let cases = [
        ("host 4", host, both, both),
        ("host 6", Filter { host: net("fd99::/64"), ..udp.clone() }, both, both),
        ("src", Filter { src: net("10.99.0.1/32"), ..udp.clone() }, ROUNDS, ROUNDS),
        ("dst 6", Filter { dst: net("fd99::1/128"), ..udp.clone() }, ROUNDS, ROUNDS),
        ("dport", Filter { dport: Some(port), ..udp.clone() }, ROUNDS, ROUNDS),
        ("sport", Filter { sport: Some(port), ..udp.clone() }, ROUNDS, ROUNDS),
        ("rx", Filter { direction: Some(Direction::Rx), port: Some(port), ..udp.clone() }, both, 0),
        ("tx", Filter { direction: Some(Direction::Tx), port: Some(port), ..udp.clone() }, 0, both),
        // The server receives and sends ROUNDS of either family.
        ("netns", Filter { netns: Some(inode(Side::Server)), ..udp.clone() }, both, both),
        ("dev", Filter { device: Some(device), ..udp.clone() }, both, both),
        (
            "tcp",
            Filter { protocol: Some(Protocol::Tcp), port: Some(port), ..Filter::default() },
            0,
            0,
        ),
        ("other", Filter { host: net("10.98.0.0/16"), ..udp }, 0, 0),
    ];
    for (what, filter, received, sent) in cases {
        let Some(m) = measure_whole(&filter, received, || {
            ping_pong(&v4, ROUNDS);
            ping_pong(&v6, ROUNDS);
        }) else {
            return;
        };
        assert_eq!(m.packets.started, received + sent, "{what}");
        assert_eq!(arrived(&m, Direction::Tx, "netif_rx"), sent, "{what}");
    }
}

#[test]
fn icmp_is_seen_and_distinguished() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    // A datagram to a closed port is answered by ICMP (RFC 1122, 4.1.3.1).
    for v6 in [false, true] {
        let (client, server) = udp_pair(&pair, v6);
        drop(server);
        let filter = Filter {
            protocol: Some(Protocol::Icmp),
            netns: Some(u32::try_from(pair.inode(Side::Client).unwrap()).unwrap()),
            direction: Some(Direction::Rx),
            src: Some(if v6 { Side::Server.ipv6() } else { Side::Server.ipv4() }.into()),
            ..Filter::default()
        };
        let m = measure(options(filter), || {
            client.send(b"is anybody there?").unwrap();
            assert_eq!(
                client.recv(&mut [0; 8]).unwrap_err().kind(),
                io::ErrorKind::ConnectionRefused
            );
        });
        assert!((1..=3).contains(&m.packets.started), "{:?}", m.packets);
    }
}

#[test]
fn a_sample_keeps_whole_flows() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let flows: Vec<_> = (0..64).map(|_| udp_pair(&pair, false)).collect();
    let filter = Filter {
        protocol: Some(Protocol::Udp),
        host: Some("10.99.0.0/24".parse().unwrap()),
        sample: NonZeroU32::new(4),
        ..Filter::default()
    };
    let rounds = 10;
    let all = 64 * 4 * rounds;
    let sampled = counted(|| {
        let m = measure(options(filter), || flows.iter().for_each(|f| ping_pong(f, rounds)));
        assert_accounts_balance(&m);
        exactly(m.packets.started + m.packets.sampled_out, all, &m)?;
        Ok(m)
    });
    let Some(m) = sampled else { return };
    // A flow is four packets a round: there and back, each sent and received.
    assert_eq!(m.packets.started % (4 * rounds), 0, "{:?}", m.packets);
    // 64 flows at 1/4: fewer than 2 or more than 40 has a chance below one in a million.
    let kept = m.packets.started / (4 * rounds);
    assert!((2..=40).contains(&kept), "{kept}");
}

#[test]
fn rps_is_seen_as_a_change_of_cpu() {
    if !can_run() {
        return;
    }
    if !has_two_cpus() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let sockets = acquainted_pair(&pair, false);
    pair.write(Side::Server, "queues/rx-0/rps_cpus", &CpuSet::from_list("1").unwrap().to_mask())
        .unwrap();
    let filter = Filter {
        protocol: Some(Protocol::Udp),
        dport: Some(sockets.1.local_addr().unwrap().port()),
        direction: Some(Direction::Rx),
        ..Filter::default()
    };
    let Some(m) = measure_whole(&filter, ROUNDS, || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Inherited by the thread that answers.
                pin(0);
                ping_pong(&sockets, ROUNDS);
            });
        });
    }) else {
        return;
    };
    let handed_on: Vec<_> = m.spans.iter().filter(|s| s.from == "netif_rx").collect();
    assert_eq!(handed_on.iter().map(|s| s.count).sum::<u64>(), ROUNDS);
    for span in handed_on {
        assert_eq!(span.other_cpu, Some(1.0), "{span:?}");
        for place in &span.places {
            assert_eq!((place.from_cpu, place.to_cpu), (CpuId(0), CpuId(1)), "{span:?}");
        }
    }
}

#[test]
fn a_full_socket_drops_are_counted() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    counted(|| {
        let (client, server) = udp_pair(&pair, false);
        let filter = Filter {
            dport: Some(server.local_addr().unwrap().port()),
            direction: Some(Direction::Rx),
            ..Filter::default()
        };
        // Nobody reads: the receive buffer (208 KiB by default) takes some, the rest is dropped.
        let m = measure(options(filter), || {
            for _ in 0..2000 {
                client.send(&[0; 1000]).unwrap();
            }
        });
        let mut kept = 0;
        server.set_nonblocking(true).unwrap();
        while server.recv(&mut [0; 2000]).is_ok() {
            kept += 1;
        }
        let p = m.packets;
        exactly((p.started, p.dropped, p.abandoned), (2000, 2000 - kept, kept), &m)
    });
}

#[test]
fn a_packet_socket_does_not_take_packets_from_their_readers() {
    use rustix::net::{AddressFamily, SocketType, eth, socket};
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let sockets = acquainted_pair(&pair, false);
    // Like that of tcpdump: it receives every packet before the packet's own socket does.
    let tap = |_| Ok(socket(AddressFamily::PACKET, SocketType::DGRAM, Some(eth::ALL))?);
    let _tap = pair.run(Side::Server, tap).unwrap();
    let filter = Filter {
        protocol: Some(Protocol::Udp),
        dport: Some(sockets.1.local_addr().unwrap().port()),
        direction: Some(Direction::Rx),
        ..Filter::default()
    };
    counted(|| {
        let m = measure(options(filter), || ping_pong(&sockets, ROUNDS));
        assert_accounts_balance(&m);
        exactly(arrived(&m, Direction::Rx, "netif_receive_skb"), ROUNDS, &m)?;
        let is_missing = |stage| m.not_observable.iter().any(|n| n.stage == stage);
        let read = arrived(&m, Direction::Rx, "sock_recv");
        // The first may have come when the socket was new to the table.
        if is_missing("sock_recv") || is_missing("sk_data_ready") || read >= ROUNDS - 2 {
            return Ok(());
        }
        Err(format!("{read} of {ROUNDS}: {:?}", m.spans))
    });
}

#[test]
fn fast_readers_end_every_datagram() {
    if !nearpath_testing::require_bpf() || !nearpath_testing::require_netns() || !has_two_cpus() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let filter = Filter {
        protocol: Some(Protocol::Udp),
        dport: Some(sockets.1.local_addr().unwrap().port()),
        direction: Some(Direction::Rx),
        ..Filter::default()
    };
    let packets = 40 * ROUNDS;
    // A polling reader takes a datagram before it is signalled; a sleeping one has the next ones in its queue.
    for polls in [true, false] {
        sockets.1.set_nonblocking(polls).unwrap();
        counted(|| {
            let m = measure(options(filter.clone()), || stream(&sockets, packets));
            let p = m.packets;
            exactly(
                (p.started, p.completed + p.abandoned, m.events_lost),
                (packets, packets, 0),
                &m,
            )?;
            if p.abandoned <= packets / 2000 { Ok(()) } else { Err(format!("{p:?}")) }
        });
    }
}

#[test]
fn the_first_datagram_of_each_socket_ends() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (filter, send) = one_each(&pair);
    counted(|| {
        let m = measure(options(filter.clone()), &send);
        exactly((m.packets.started, m.packets.completed), (SOCKETS, SOCKETS), &m)
    });
}

/// This many datagrams from CPU 0 to a reader on CPU 1.
fn stream((client, server): &(UdpSocket, UdpSocket), packets: u64) {
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            while taken.load(Relaxed) < packets {
                taken.fetch_add(u64::from(server.recv(&mut [0; 64]).is_ok()), Relaxed);
            }
        });
        scope.spawn(|| {
            pin(0);
            for sent in 0..packets {
                client.send(b"ping").unwrap();
                // In bursts, which the socket holds.
                while sent % 20 == 0 && taken.load(Relaxed) < sent {
                    std::thread::yield_now();
                }
            }
        });
    });
}

#[test]
fn nothing_remains_in_the_kernel() {
    if !nearpath_testing::require_bpf() {
        return;
    }
    // Programs and maps are freed after a grace period, also those of the test before.
    let ours = || {
        let programs = libbpf_rs::query::ProgInfoIter::default();
        let programs = programs.filter(|p| p.name.to_string_lossy().starts_with("net_dev_queue_"));
        let maps = libbpf_rs::query::MapInfoIter::default();
        programs.count() + maps.filter(|m| m.name.to_string_lossy() == "histograms").count()
    };
    let gone = || {
        let deadline = Instant::now() + Duration::from_secs(20);
        while ours() > 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        ours() == 0
    };
    assert!(gone());
    let mut stages = Stages::new(&possible_cpus(), Options::default());
    assert_eq!(stages.read(), Err(InstrumentError::NotStarted));
    stages.available().unwrap();
    assert_eq!(ours(), 0);
    stages.start().unwrap();
    assert_eq!(ours(), 2);
    // The result is available before the kernel has detached them.
    stages.stop().unwrap();
    assert_eq!(ours(), 2);
    assert_eq!(stages.read(), Err(InstrumentError::NotStarted));
    assert_eq!(stages.stop(), Err(InstrumentError::NotStarted));
    drop(stages);
    assert!(gone());
}

#[test]
fn maps_for_a_thousand_cpus_count_the_same() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let port = sockets.1.local_addr().unwrap().port();
    let filter = Filter { protocol: Some(Protocol::Udp), port: Some(port), ..Filter::default() };
    let measured = counted(|| {
        let mut stages = Stages::new(&cpus_of_nodes(1024, 256), options(filter.clone()));
        stages.start().unwrap();
        ping_pong(&sockets, ROUNDS);
        let m = stages.stop().unwrap();
        assert_accounts_balance(&m);
        exactly(m.packets.started, 4 * ROUNDS, &m)?;
        Ok(m)
    });
    let Some(m) = measured else { return };
    for span in &m.spans {
        assert_eq!((span.other_llc, span.other_node), (Some(0.0), Some(0.0)), "{span:?}");
        assert!(span.places.iter().all(|p| p.from_cpu == CpuId(0)), "{span:?}");
    }
}

#[test]
fn cost_is_reported_and_stages_can_be_skipped() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let sockets = udp_pair(&pair, false);
    let without = Options { without: vec!["sock_send".to_owned()], ..Options::default() };
    let mut stages = Stages::new(&possible_cpus(), without);
    stages.start().unwrap();
    stages.begin_cost_window();
    // For longer than the minimum window of a cost, on machines of any speed.
    ping_pong(&sockets, 10 * ROUNDS);
    stages.end_cost_window();
    let m = stages.stop().unwrap();
    let cost = m.cost.expect("the kernel has run-time statistics");
    assert!(cost.ns_per_packet > cost.ns_per_event && cost.ns_per_event > 0.0, "{cost:?}");
    assert!(cost.cpu_percent > 0.0 && cost.cpu_percent < 200.0, "{cost:?}");
    assert!(m.spans.iter().all(|s| s.from != "sock_send"));
    let left_out = m.not_observable.iter().find(|n| n.stage == "sock_send").unwrap();
    assert!(left_out.reason.contains("--without"));
}
