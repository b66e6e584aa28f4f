//! Packets that are hard to track, as produced by drivers, devices and programs: they are freed without being
//! observed, several arrive at once, their headers are in pages, they arrive on a stacked device.
//!
//! The references are the devices' counters and the sender's own count.

#[path = "../common/mod.rs"]
mod common;
mod scene;
mod tap;

use common::{acquainted_pair, can_run, exactly, pin, possible_cpus};
use nearpath_instruments::locality::{self, PacketLocality};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Device, Filter, Grouping, Instrument, LowerDevice, Sort};
use nearpath_model::{Detail, Direction, Measurement, Per, Protocol};
use nearpath_testing::counted;
use nearpath_testing::veth::{Side, VethPair};
use scene::{
    Xdp, arrived, ip, namespace, read_many, received_by, segmented_send, send_many, stream_by_many,
    tool,
};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

const ROUNDS: u64 = 200;

fn measure(options: Options, work: impl FnOnce()) -> Measurement {
    let mut stages = Stages::new(&possible_cpus(), options);
    stages.start().unwrap();
    work();
    stages.stop().unwrap()
}

fn datagrams_to(socket: &UdpSocket, direction: Direction) -> Options {
    let filter = Filter {
        protocol: Some(Protocol::Udp),
        dport: Some(socket.local_addr().unwrap().port()),
        direction: Some(direction),
        ..Filter::default()
    };
    Options { filter, ..Options::default() }
}

/// All that the server receives, half of its flows.
fn half_received(pair: &VethPair) -> Filter {
    Filter {
        direction: Some(Direction::Rx),
        netns: Some(namespace(pair, Side::Server)),
        sample: NonZeroU32::new(2),
        ..Filter::default()
    }
}

/// A pair whose server receives as from a NIC: by NAPI, in sk_buffs that are allocated for what has come. Both
/// know each other's link-layer address: ARP has no flow, so that no sample contains it.
fn like_a_nic() -> (VethPair, Xdp) {
    let pair = VethPair::new(1).unwrap();
    let xdp = Xdp::pass(&pair, Side::Server);
    acquainted_pair(&pair, false);
    (pair, xdp)
}

#[test]
fn a_sample_accounts_for_every_segment() {
    if !can_run() {
        return;
    }
    let (pair, _xdp) = like_a_nic();
    let details = [Detail::Coarse, Detail::Path, Detail::Full];
    let each = |detail| {
        let mut received = 0;
        let options = Options { filter: half_received(&pair), detail, ..Options::default() };
        let m = measure(options, || {
            let before = received_by(&pair, Side::Server);
            stream_by_many(&pair);
            received = received_by(&pair, Side::Server) - before;
        });
        assert!(received > 1000 && m.packets.sampled_out > 0, "{received}: {:?}", m.packets);
        exactly(m.packets.started + m.packets.sampled_out, received, &m)
    };
    for detail in details {
        counted(|| each(detail));
    }
}

#[test]
fn locality_accounts_for_every_segment_of_a_sample() {
    if !can_run() {
        return;
    }
    let (pair, _xdp) = like_a_nic();
    counted(|| {
        let options =
            locality::Options { filter: half_received(&pair), ..locality::Options::default() };
        let mut locality = PacketLocality::new(&possible_cpus(), options);
        locality.start().unwrap();
        let before = received_by(&pair, Side::Server);
        stream_by_many(&pair);
        let received = received_by(&pair, Side::Server) - before;
        let p = locality.stop().unwrap().packets;
        let seen = p.started + p.sampled_out;
        if seen == received { Ok(()) } else { Err(format!("{seen} of {received}: {p:?}")) }
    });
}

#[test]
fn each_datagram_of_a_list_is_that_of_its_socket() {
    const SEGMENTS: u64 = 8;
    if !can_run() || !nearpath_testing::require_program("ethtool") {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    // The client segments what it sends, and the server's NAPI gives all segments to the stack as one list.
    pair.run(Side::Client, |_| tool("ethtool", &["-K", "np0", "tx-udp-segmentation", "off"]))
        .unwrap();
    pair.run(Side::Server, |_| tool("ethtool", &["-K", "np1", "gro", "on"])).unwrap();
    let (client, server) = acquainted_pair(&pair, false);
    let options = datagrams_to(&server, Direction::Rx);
    counted(|| {
        let m = measure(options.clone(), || {
            std::thread::scope(|scope| {
                let (sender, receiver) = std::sync::mpsc::channel();
                let server = &server;
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        read_many(server, SEGMENTS);
                        sender.send(()).unwrap();
                    }
                });
                for _ in 0..ROUNDS {
                    segmented_send(&client, SEGMENTS as usize);
                    receiver.recv().unwrap();
                }
            });
        });
        let all = ROUNDS * SEGMENTS;
        exactly(m.packets.started, all, &m)?;
        exactly(arrived(&m, Direction::Rx, "sk_data_ready"), all, &m)?;
        exactly(m.packets.completed, all, &m)
    });
}

#[test]
fn headers_in_pages_are_read() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (tap, server) = tap::Tap::with_reader(&pair);
    let filter = Filter {
        direction: Some(Direction::Rx),
        netns: Some(namespace(&pair, Side::Server)),
        ..Filter::default()
    };
    let groups = Some(Grouping { per: Per::Flow, top: 10, sort: Sort::Packets });
    let flow = tap.flow(&server);
    counted(|| {
        let m = measure(Options { filter: filter.clone(), groups, ..Options::default() }, || {
            for _ in 0..ROUNDS {
                tap.send_in_pages(&server);
                server.recv(&mut [0; 64]).unwrap();
            }
        });
        let of_flow = m.groups.iter().find(|group| group.name == flow).map(|group| group.packets);
        exactly(of_flow, Some(ROUNDS), &m)?;
        exactly(m.packets.completed, m.packets.started, &m)
    });
}

#[test]
fn all_packets_that_a_queue_releases_at_once_are_seen() {
    if !can_run() || !nearpath_testing::require_program("tc") {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    let (client, server) = acquainted_pair(&pair, false);
    // Its timer is late for such small packets, and it then dequeues several (try_bulk_dequeue_skb_slow).
    let tbf = ["qdisc", "add", "dev", "np0", "root", "tbf", "rate", "100mbit", "burst", "2000"];
    pair.run(Side::Client, |_| tool("tc", &[&tbf[..], &["limit", "1000000"]].concat())).unwrap();
    let options = datagrams_to(&server, Direction::Tx);
    counted(|| {
        let m = measure(options.clone(), || {
            for _ in 0..20 {
                send_many(&client, 64);
                read_many(&server, 64);
            }
        });
        exactly(m.packets.started, 20 * 64, &m)?;
        let enqueued = arrived(&m, Direction::Tx, "qdisc_enqueue");
        assert!(enqueued > 0, "{m:#?}");
        exactly(arrived(&m, Direction::Tx, "qdisc_dequeue"), enqueued, &m)
    });
}

#[test]
fn each_message_of_a_call_begins_when_the_one_before_has_left() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (client, server) = acquainted_pair(&pair, false);
    let options = datagrams_to(&server, Direction::Tx);
    let mut wall_ns = 0;
    let m = measure(options, || {
        for _ in 0..20 {
            let begin = Instant::now();
            send_many(&client, 64);
            wall_ns += u64::try_from(begin.elapsed().as_nanos()).unwrap();
        }
    });
    let calls: Vec<_> = m.spans.iter().filter(|span| span.from == "sock_send").collect();
    let seen: u64 = calls.iter().map(|span| span.count).sum();
    assert!(seen >= 20 * 64 - 64, "{m:#?}");
    // One after the other: together they take no longer than the calls.
    let total: u64 = calls.iter().map(|span| span.total_ns).sum();
    assert!(total <= wall_ns * 21 / 20, "{total} of {wall_ns}ns: {m:#?}");
}

#[test]
fn peeked_data_waits_for_its_reader() {
    const WAIT: Duration = Duration::from_millis(3);
    // Before, a segment that was only peeked at cannot be recognized (docs/measuring.md).
    if !can_run() || !nearpath_testing::require_kernel((5, 15), "MSG_PEEK of TCP") {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = pair.run(Side::Server, |s| TcpListener::bind((s.ipv4(), 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = pair.run(Side::Client, |_| TcpStream::connect(address)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.set_nodelay(true).unwrap();
    let filter = Filter {
        protocol: Some(Protocol::Tcp),
        dport: Some(address.port()),
        direction: Some(Direction::Rx),
        ..Filter::default()
    };
    let m = measure(Options { filter, ..Options::default() }, || {
        let mut buffer = [0; 64];
        for _ in 0..50 {
            client.write_all(&[1; 64]).unwrap();
            server.peek(&mut buffer).unwrap();
            std::thread::sleep(WAIT);
            server.read_exact(&mut buffer).unwrap();
            server.write_all(b"a").unwrap();
            client.read_exact(&mut buffer[..1]).unwrap();
        }
    });
    let copied = || m.spans.iter().filter(|span| span.to == "skb_copy_datagram");
    assert_eq!(copied().map(|span| span.count).sum::<u64>(), 50, "{m:#?}");
    let wait_ns = u64::try_from(WAIT.as_nanos()).unwrap();
    assert!(copied().all(|span| span.min_ns >= Some(wait_ns)), "{m:#?}");
}

/// A macvlan on a side's device, with its own address; returns its index and its Ethernet address.
fn macvlan(pair: &VethPair, side: Side, address: &str) -> (u32, [u8; 6]) {
    pair.run(side, |side| {
        let below = side.device();
        ip(&["link", "add", "mv0", "link", below, "type", "macvlan", "mode", "bridge"])?;
        ip(&["addr", "add", address, "dev", "mv0"])?;
        ip(&["link", "set", "mv0", "up"])?;
        Ok((scene::ifindex("mv0")?, scene::ethernet_address("mv0")?))
    })
    .unwrap()
}

#[test]
fn packets_of_an_upper_device_differ_from_those_of_the_lower_device() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (upper, address) = macvlan(&pair, Side::Server, "10.97.0.2/24");
    let text: Vec<String> = address.iter().map(|byte| format!("{byte:02x}")).collect();
    pair.run(Side::Client, |_| {
        ip(&["addr", "add", "10.97.0.1/24", "dev", "np0"])?;
        // The device below would answer for it, too.
        ip(&["neigh", "add", "10.97.0.2", "lladdr", &text.join(":"), "dev", "np0"])
    })
    .unwrap();
    let below = pair.run(Side::Server, |_| scene::ifindex("np1")).unwrap();
    let (to_lower, lower_reader) = acquainted_pair(&pair, false);
    let bind = |at: &str| UdpSocket::bind(at);
    let reader = pair.run(Side::Server, |_| bind("10.97.0.2:0")).unwrap();
    let client = pair.run(Side::Client, |_| bind("10.97.0.1:0")).unwrap();
    client.connect(reader.local_addr().unwrap()).unwrap();
    let exchange = || {
        for _ in 0..ROUNDS {
            client.send(b"to the upper").unwrap();
            reader.recv(&mut [0; 64]).unwrap();
            to_lower.send(b"to the lower").unwrap();
            lower_reader.recv(&mut [0; 64]).unwrap();
        }
    };
    exchange();
    let device = |lower| Device {
        name: "mv0".to_owned(),
        ifindex: upper,
        netns: Some(namespace(&pair, Side::Server)),
        lower,
    };
    let filter = |lower| Filter {
        protocol: Some(Protocol::Udp),
        device: Some(device(lower)),
        ..Filter::default()
    };
    let by = |address| LowerDevice { ifindex: below, address, ..LowerDevice::default() };
    for (lower, expected) in [
        (vec![by(Some(address))], ROUNDS),
        (vec![by(None)], 2 * ROUNDS),
        (vec![LowerDevice { vlans: vec![100], ..by(None) }], 0),
        (vec![], 0),
    ] {
        counted(|| {
            let options = Options { filter: filter(lower.clone()), ..Options::default() };
            let m = measure(options, exchange);
            exactly((m.packets.started, m.packets.completed), (expected, expected), &m)
        });
    }
}

#[test]
fn a_packet_that_waits_below_is_not_with_the_driver() {
    if !can_run() || !nearpath_testing::require_program("tc") {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    macvlan(&pair, Side::Client, "10.97.0.1/24");
    pair.run(Side::Server, |_| ip(&["addr", "add", "10.97.0.2/24", "dev", "np1"])).unwrap();
    let tbf = ["qdisc", "add", "dev", "np0", "root", "tbf", "rate", "5mbit", "burst", "2000"];
    pair.run(Side::Client, |_| tool("tc", &[&tbf[..], &["limit", "1000000"]].concat())).unwrap();
    let reader = pair.run(Side::Server, |_| UdpSocket::bind("10.97.0.2:0")).unwrap();
    let client = pair.run(Side::Client, |_| UdpSocket::bind("10.97.0.1:0")).unwrap();
    client.connect(reader.local_addr().unwrap()).unwrap();
    let m = measure(datagrams_to(&reader, Direction::Tx), || {
        for _ in 0..100 {
            client.send(&[0; 500]).unwrap();
        }
        read_many(&reader, 100);
    });
    assert!(arrived(&m, Direction::Tx, "qdisc_dequeue") > 50, "{m:#?}");
    let wrong = m.spans.iter().find(|s| s.to == "net_dev_xmit" && s.from == "qdisc_enqueue");
    assert_eq!(wrong, None);
}

#[test]
fn threads_that_poll_are_followed() {
    if !can_run() || !nearpath_testing::require_program("ethtool") {
        return;
    }
    if !nearpath_testing::require_kernel((5, 12), "NAPI in threads") {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    pair.run(Side::Server, |_| tool("ethtool", &["-K", "np1", "gro", "on"])).unwrap();
    pair.write(Side::Server, "threaded", "1").unwrap();
    let (client, server) = acquainted_pair(&pair, false);
    let options = datagrams_to(&server, Direction::Rx);
    counted(|| {
        let m = measure(options.clone(), || {
            std::thread::scope(|scope| {
                let (sender, receiver) = std::sync::mpsc::channel();
                let client = &client;
                scope.spawn(move || {
                    pin(0);
                    for () in receiver {
                        send_many(client, 4);
                    }
                });
                for _ in 0..ROUNDS {
                    sender.send(()).unwrap();
                    read_many(&server, 4);
                }
                drop(sender);
            });
        });
        let all = 4 * ROUNDS;
        exactly((m.packets.started, m.packets.completed), (all, all), &m)?;
        exactly(arrived(&m, Direction::Rx, "sk_data_ready"), all, &m)
    });
}
