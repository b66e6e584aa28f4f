//! The instrument `drops` on this kernel: each kind of drop is caused a known number of times. The result must
//! match this number and the kernel's counters, and must name the reason, the device, the stage and the flow. The
//! references are the sender's and the receiver's own counts and the kernel's counters, read by code of this
//! test.

#[path = "../common/mod.rs"]
mod common;
mod raw;
mod scenes;

use common::can_run;
use nearpath_host::Root;
use nearpath_instruments::drops::{Drops, Options};
use nearpath_instruments::{Device, Filter, Instrument, stages};
use nearpath_model::drops::{Drop, DropMeasurement, DropPer, DropStage, Shown};
use nearpath_model::{Direction, Protocol};
use nearpath_testing::counted;
use nearpath_testing::veth::{Side, VethPair};
use raw::Packet;
use scenes::{Counter, command, overflow, v4, write_sysctl};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};

/// Packets of a scene.
const MANY: usize = 300;

fn netns(pair: &VethPair, side: Side) -> u32 {
    u32::try_from(pair.inode(side).unwrap()).unwrap()
}

/// What is dropped in the namespace of a side while something goes on.
fn measured_with<T: Send>(
    pair: &VethPair,
    side: Side,
    filter: Filter,
    shown: Shown,
    during: impl FnOnce() -> T + Send,
) -> (DropMeasurement, T) {
    let filter = Filter { netns: Some(netns(pair, side)), ..filter };
    let run = |_| {
        let root = Root::live();
        let options = Options { filter, shown, ..Options::default() };
        let mut drops = Drops::new(&root, options);
        drops.start().unwrap();
        let result = during();
        // Readings in between have no side effects.
        drops.read().unwrap();
        Ok((drops.stop().unwrap(), result))
    };
    pair.run(side, run).unwrap()
}

fn measured<T: Send>(
    pair: &VethPair,
    side: Side,
    during: impl FnOnce() -> T + Send,
) -> (DropMeasurement, T) {
    let shown = Shown { per: None, top: 10 };
    measured_with(pair, side, Filter::default(), shown, during)
}

/// The drops of a reason; the namespace has others, of neighbour discovery.
fn of<'a>(m: &'a DropMeasurement, reason: &str) -> Option<&'a Drop> {
    let mut found = m.drops.iter().filter(|drop| drop.reason.as_deref() == Some(reason));
    let first = found.next();
    assert!(found.next().is_none(), "one place each: {m:#?}");
    first
}

fn packets(m: &DropMeasurement, reason: &str) -> u64 {
    m.drops.iter().filter(|d| d.reason.as_deref() == Some(reason)).map(|d| d.packets).sum()
}

/// Whether the instrument's value of a counter matches this test's.
fn agrees(m: &DropMeasurement, counter: &str, rose: u64) -> Result<(), String> {
    let check = m.counters.iter().find(|check| check.counter == counter);
    match check {
        Some(check) if check.agrees == Some(true) && check.seen == Some(rose) => {
            assert!((check.least..=check.most).contains(&rose), "{check:?}");
            Ok(())
        }
        _ => Err(format!("{counter} rose by {rose}: {check:?} in {m:#?}")),
    }
}

fn exactly(m: &DropMeasurement, reason: &str, right: u64) -> Result<(), String> {
    let found = packets(m, reason);
    if found == right { Ok(()) } else { Err(format!("{found} {reason}, not {right}: {m:#?}")) }
}

#[test]
fn a_full_receive_buffer_is_named_with_its_port_and_device() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    for (v6, counter) in [(false, "Udp.RcvbufErrors"), (true, "Udp6.RcvbufErrors")] {
        counted(|| {
            let count = Counter::of(&pair, Side::Server, counter);
            let (m, scene) = measured(&pair, Side::Server, || overflow(&pair, v6, MANY));
            let rose = count.rose();
            assert_eq!(rose, scene.sent - scene.received, "the references of this test");
            assert!(rose > 100, "{rose}");
            exactly(&m, "SOCKET_RCVBUFF", rose)?;
            agrees(&m, counter, rose)?;
            let drop = of(&m, "SOCKET_RCVBUFF").unwrap();
            assert_eq!(drop.device.as_deref(), Some("np1"), "{drop:?}");
            assert_eq!(drop.netns, Some(netns(&pair, Side::Server)));
            assert_eq!((drop.protocol.as_str(), drop.stage), ("UDP", DropStage::Udp));
            assert!(drop.meaning.as_ref().unwrap().contains("reader is too slow"));
            let main = m.main.as_ref().unwrap();
            assert_eq!((main.reason.as_str(), main.port), ("SOCKET_RCVBUFF", Some(scene.port)));
            let flow = &m.flows[0];
            assert!(flow.flow.ends_with(&format!(":{}", scene.port)), "{flow:?}");
            if flow.packets == rose { Ok(()) } else { Err(format!("{m:#?}")) }
        });
    }
}

#[test]
fn datagrams_without_a_socket_or_with_a_bad_checksum() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (client, server) = (v4(Side::Client), v4(Side::Server));
    counted(|| {
        let ports = Counter::of(&pair, Side::Server, "Udp.NoPorts");
        let damaged = Counter::of(&pair, Side::Server, "Udp.InCsumErrors");
        let protocols = Counter::of(&pair, Side::Server, "Ip.InUnknownProtos");
        let (m, ()) = measured(&pair, Side::Server, || {
            let send = |_| {
                Packet::udp(client, server, 9, 0).send(20)?;
                Packet::udp(client, server, 9, 1).send(30)?;
                let unknown = Packet { protocol: 253, ..Packet::udp(client, server, 9, 0) };
                unknown.send(40)
            };
            pair.run(Side::Client, send).unwrap();
        });
        let rose = (ports.rose(), damaged.rose(), protocols.rose());
        assert_eq!(rose, (20, 30, 40), "the references of this test");
        exactly(&m, "NO_SOCKET", 20)?;
        exactly(&m, "UDP_CSUM", 30)?;
        exactly(&m, "IP_NOPROTO", 40)?;
        agrees(&m, "Udp.NoPorts", 20)?;
        agrees(&m, "Udp.InCsumErrors", 30)?;
        agrees(&m, "Ip.InUnknownProtos", 40)?;
        assert_eq!(of(&m, "IP_NOPROTO").unwrap().protocol, "protocol 253");
        assert_eq!(of(&m, "UDP_CSUM").unwrap().device.as_deref(), Some("np1"));
        Ok(())
    });
}

#[test]
fn packets_that_routing_refuses() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (client, server) = (v4(Side::Client), v4(Side::Server));
    let (away, nowhere) = (Ipv4Addr::new(10, 98, 0, 9), Ipv4Addr::new(10, 97, 0, 9));
    pair.run(Side::Client, |_| {
        command("ip", &["route", "add", "10.96.0.0/14", "via", &server.to_string()])
    })
    .unwrap();
    pair.run(Side::Server, |_| {
        write_sysctl("net/ipv4/ip_forward", "1")?;
        write_sysctl("net/ipv4/conf/all/rp_filter", "1")?;
        write_sysctl("net/ipv4/conf/np1/rp_filter", "1")?;
        command("ip", &["route", "add", "10.98.0.0/16", "via", &client.to_string()])
    })
    .unwrap();
    counted(|| {
        let names = ["TcpExt.IPReversePathFilter", "Ip.InHdrErrors", "IpExt.InNoRoutes"];
        let counts = names.map(|name| Counter::of(&pair, Side::Server, name));
        let (m, ()) = measured(&pair, Side::Server, || {
            let send = |_| {
                // The answer to a stranger would go nowhere.
                Packet::udp(Ipv4Addr::new(10, 50, 0, 1), server, 9, 0).send(20)?;
                Packet { ttl: 1, ..Packet::udp(client, away, 9, 0) }.send(30)?;
                Packet::udp(client, nowhere, 9, 0).send(40)
            };
            pair.run(Side::Client, send).unwrap();
        });
        let rose = counts.map(|count| count.rose());
        assert_eq!(rose, [20, 30, 40], "the references of this test");
        exactly(&m, "IP_RPFILTER", 20)?;
        exactly(&m, "IP_INHDR", 30)?;
        for (name, rose) in names.into_iter().zip(rose) {
            agrees(&m, name, rose)?;
        }
        assert_eq!(of(&m, "IP_RPFILTER").unwrap().stage, DropStage::Ip);
        Ok(())
    });
}

#[test]
fn a_shaper_drops_at_its_device() {
    if !can_run() || !nearpath_testing::require_program("tc") {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let receiver = pair.run(Side::Server, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    let to = receiver.local_addr().unwrap();
    pair.run(Side::Client, |_| {
        let shaper = ["tbf", "rate", "1mbit", "burst", "2000", "limit", "3000"];
        command("tc", &[&["qdisc", "replace", "dev", "np0", "root"][..], &shaper].concat())
    })
    .unwrap();
    counted(|| {
        let before = scenes::qdisc_drops(&pair, Side::Client);
        let (m, ()) = measured(&pair, Side::Client, || {
            let send = |side: Side| {
                let socket = UdpSocket::bind((side.ipv4(), 0))?;
                for _ in 0..MANY {
                    // Dropped locally, the call may say so.
                    let _ = socket.send_to(&[0; 200], to);
                }
                Ok(())
            };
            pair.run(Side::Client, send).unwrap();
        });
        let rose = scenes::qdisc_drops(&pair, Side::Client) - before;
        assert!(rose > 100, "the reference of this test: {rose}");
        let seen: u64 = m
            .drops
            .iter()
            .filter(|drop| drop.stage == DropStage::Qdisc)
            .inspect(|drop| assert_eq!(drop.device.as_deref(), Some("np0"), "{drop:?}"))
            .map(|drop| drop.packets)
            .sum();
        agrees(&m, "qdisc tbf", rose)?;
        let check = m.counters.iter().find(|check| check.counter == "qdisc tbf").unwrap();
        assert_eq!(check.device.as_deref(), Some("np0"));
        let flow = &m.flows[0];
        assert!(flow.flow.ends_with(&to.to_string()), "{flow:?}");
        if seen == rose { Ok(()) } else { Err(format!("{seen}, not {rose}: {m:#?}")) }
    });
}

/// TCP takes the device off a segment, and the socket's queues use its place for something else.
#[test]
fn segments_for_a_closed_socket_keep_their_device() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (m, port) = measured(&pair, Side::Server, || {
        let listener = pair.run(Side::Server, |side| TcpListener::bind((side.ipv4(), 0))).unwrap();
        let to = listener.local_addr().unwrap();
        for _ in 0..5 {
            let client = pair.run(Side::Client, |_| TcpStream::connect(to)).unwrap();
            let (server, _) = listener.accept().unwrap();
            drop_with_data(client, server);
        }
        to.port()
    });
    let segments: Vec<&Drop> = m.drops.iter().filter(|drop| drop.protocol == "TCP").collect();
    assert!(!segments.is_empty(), "{m:#?}");
    for drop in segments {
        assert_eq!(drop.device.as_deref(), Some("np1"), "{drop:?}");
        assert_eq!(drop.netns, Some(netns(&pair, Side::Server)), "{drop:?}");
        assert_eq!(drop.stage, DropStage::Tcp, "{drop:?}");
    }
    let to_port = format!(":{port}");
    assert!(m.flows.iter().any(|flow| flow.flow.ends_with(&to_port)), "{m:#?}");
}

/// The server closes, and the client sends once more.
fn drop_with_data(mut client: TcpStream, server: TcpStream) {
    use std::io::{Read, Write};
    drop(server);
    // It has received the reset.
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    client.write_all(&[0; 100]).unwrap();
    // Answered by a reset, which comes at once over veth.
    nearpath_testing::wait_for("a reset", || client.take_error().ok().flatten());
}

#[test]
fn filters_choose_packets_and_counters_stay_whole() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (client, server) = (v4(Side::Client), v4(Side::Server));
    let ifindex = scenes::ifindex(&pair, Side::Server);
    let device = |ifindex| {
        Some(Device { name: "np1".to_owned(), ifindex, netns: None, ..Device::default() })
    };
    let net = |address: Ipv4Addr| format!("{address}/32").parse().ok();
    let all = Filter::default;
    // Of 20 packets to port 9 and 30 to port 10.
    let cases = [
        (all(), 50),
        (Filter { dport: Some(9), ..all() }, 20),
        (Filter { port: Some(10), protocol: Some(Protocol::Udp), ..all() }, 30),
        (Filter { protocol: Some(Protocol::Tcp), ..all() }, 0),
        (Filter { src: net(client), ..all() }, 50),
        (Filter { dst: net(client), ..all() }, 0),
        (Filter { device: device(ifindex), ..all() }, 50),
        (Filter { device: device(ifindex + 1), ..all() }, 0),
        (Filter { direction: Some(Direction::Rx), ..all() }, 50),
        (Filter { direction: Some(Direction::Tx), ..all() }, 0),
    ];
    for (filter, right) in cases {
        counted(|| {
            let shown = Shown { per: Some(DropPer::Flow), top: 1 };
            let (m, ()) = measured_with(&pair, Side::Server, filter.clone(), shown, || {
                let send = |_| {
                    Packet::udp(client, server, 9, 0).send(20)?;
                    Packet::udp(client, server, 10, 0).send(30)
                };
                pair.run(Side::Client, send).unwrap();
            });
            exactly(&m, "NO_SOCKET", right)?;
            // The counter knows no filter.
            agrees(&m, "Udp.NoPorts", 50)?;
            assert!(m.flows.len() <= 1);
            assert_eq!(m.groups.iter().map(|group| group.packets).sum::<u64>(), m.packets);
            assert_eq!(m.drops.iter().map(|drop| drop.packets).sum::<u64>(), m.packets);
            Ok(())
        });
    }
}

/// Datagrams that fit into a socket's buffer.
const MERGED: usize = 100;
/// Packets of a flood, and the time that is to pass between two that are described.
const FLOOD: usize = 200_000;
const LEAST_GAP_US: f64 = 50.0;
/// What the namespace loses by itself.
const OF_OTHERS: u64 = 60;
/// Packets after the flood.
const TRICKLE: u64 = 20;
/// Cost of one, as the instrument assumes.
const DESCRIBED_US: f64 = 0.7;

/// In a flood one of many drops is looked at: the sum stays, the shares of the reasons do within the error of the sample
/// (with n looked at and one in four damaged, six standard deviations of sqrt(3/16 n) are left for it), and of a trickle
/// after it each is looked at again.
#[test]
fn of_a_flood_some_are_looked_at() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (client, server) = (v4(Side::Client), v4(Side::Server));
    let filter = Filter { netns: Some(netns(&pair, Side::Server)), ..Filter::default() };
    let measure = |_| {
        let root = Root::live();
        let limit = Some(DESCRIBED_US / LEAST_GAP_US);
        let mut drops = Drops::new(&root, Options { filter, limit, ..Options::default() });
        drops.start().unwrap();
        let begun = std::time::Instant::now();
        let flood = |_| {
            // One in four is damaged, in turn: no fixed gap between two that are looked at would see both.
            for _ in 0..FLOOD / 40 {
                Packet::udp(client, server, 9, 0).send(30)?;
                Packet::udp(client, server, 9, 1).send(10)?;
            }
            Ok(())
        };
        pair.run(Side::Client, flood).unwrap();
        let took_us = begun.elapsed().as_secs_f64() * 1e6;
        let flood = drops.read().unwrap();
        let trickle = |_| {
            for _ in 0..TRICKLE {
                std::thread::sleep(std::time::Duration::from_millis(300));
                Packet::udp(client, server, 9, 0).send(1)?;
            }
            Ok(())
        };
        pair.run(Side::Client, trickle).unwrap();
        Ok((flood, took_us, drops.stop().unwrap()))
    };
    let (flood, took_us, after) = pair.run(Side::Server, measure).unwrap();
    let all = |m: &DropMeasurement| packets(m, "NO_SOCKET") + packets(m, "UDP_CSUM");
    let looked_at = (all(&flood) - flood.extrapolated.min(all(&flood))) as f64;
    let most = took_us / LEAST_GAP_US;
    assert!(looked_at <= 2.0 * most + 500.0, "{looked_at} of at most {most}");
    assert!(flood.extrapolated > FLOOD as u64 / 2, "{flood:#?}");
    // The last ones of each CPU wait for the one that stands for them.
    let missing = (FLOOD as u64).saturating_sub(all(&flood));
    assert!(missing <= 2 * 4_096, "{missing}");
    let damaged = packets(&flood, "UDP_CSUM") as f64 / all(&flood) as f64;
    let error = 6.0 * (3.0 / 16.0 / looked_at).sqrt() + missing as f64 / FLOOD as f64;
    assert!((damaged - 0.25).abs() <= error, "{damaged} ± {error}");
    assert!(flood.counters.iter().all(|check| check.agrees.is_none()), "{flood:#?}");
    // Each of the trickle, unless a drop of neighbour discovery was right before it; with those, and with the flood's last.
    let more = after.packets - flood.packets;
    assert!((TRICKLE - 5..TRICKLE + OF_OTHERS + missing).contains(&more), "{more}");
    let least = FLOOD as u64 + TRICKLE - missing - OF_OTHERS;
    let most = FLOOD as u64 + TRICKLE + OF_OTHERS;
    assert!((least..=most).contains(&after.packets), "{} of {least} to {most}", after.packets);
}

#[test]
fn delivered_packets_are_not_drops() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let sockets = common::acquainted_pair(&pair, false);
    let (m, ()) = measured(&pair, Side::Server, || common::ping_pong(&sockets, 500));
    let datagrams = m.drops.iter().filter(|drop| drop.protocol == "UDP").count();
    assert_eq!(datagrams, 0, "{m:#?}");
    assert!(m.counters.iter().all(|check| check.agrees != Some(false)), "{m:#?}");
}

/// The kernel frees the parts of a packet that GRO merged as if it dropped them; none was lost.
#[test]
fn parts_of_merged_packets_are_not_drops() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let device = Side::Server.device();
    pair.run(Side::Server, |_| {
        command("ethtool", &["-K", device, "gro", "on", "rx-udp-gro-forwarding", "on"])?;
        // They wait for each other; /sys is of the namespace that it was mounted in.
        let set = format!(
            "mount -t sysfs sysfs /sys && echo 2000000 >/sys/class/net/{device}/gro_flush_timeout"
        );
        command("unshare", &["--mount", "sh", "-c", &set])
    })
    .unwrap();
    let server = pair.run(Side::Server, |side| UdpSocket::bind((side.ipv4(), 9_000))).unwrap();
    server.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
    let (m, received) = measured(&pair, Side::Server, || {
        let send = |_| {
            let socket = UdpSocket::bind((v4(Side::Client), 0))?;
            socket.connect((v4(Side::Server), 9_000))?;
            for _ in 0..MERGED {
                socket.send(&[7; 500])?;
            }
            Ok(())
        };
        pair.run(Side::Client, send).unwrap();
        (0..MERGED).take_while(|_| server.recv(&mut [0; 600]).is_ok()).count()
    });
    assert_eq!(received, MERGED, "the reference of this test");
    let datagrams: Vec<_> = m.drops.iter().filter(|drop| drop.protocol == "UDP").collect();
    assert!(datagrams.is_empty(), "{datagrams:#?}");
    assert!(m.not_packets >= MERGED as u64 / 4, "they were merged: {}", m.not_packets);
    assert!(m.all_flows.iter().all(|flow| !flow.flow.starts_with("UDP")), "{:#?}", m.all_flows);
}

/// `stages` reports the fate of the packets that it counts as dropped.
#[test]
fn followed_packets_are_dropped_after_their_last_stage() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    counted(|| {
        let filter = Filter {
            netns: Some(netns(&pair, Side::Server)),
            protocol: Some(Protocol::Udp),
            ..Filter::default()
        };
        let options = stages::Options { filter, ..stages::Options::default() };
        let mut stages = stages::Stages::new(&common::possible_cpus(), options);
        stages.start().unwrap();
        let scene = overflow(&pair, false, MANY);
        // Resolving names takes too long while packets are observed.
        let under_way = stages.read().unwrap();
        let m = stages.stop().unwrap();
        assert_eq!((under_way.packets.dropped, under_way.drops), (m.packets.dropped, vec![]));
        let lost = scene.sent - scene.received;
        assert!(lost > 100, "{lost}");
        let sum: u64 = m.drops.iter().map(|drop| drop.packets).sum();
        assert_eq!(sum, m.packets.dropped, "all that are dropped: {m:#?}");
        let of = |reason: &str| m.drops.iter().find(|drop| drop.reason.as_deref() == Some(reason));
        let Some(drop) = of("SOCKET_RCVBUFF") else { return Err(format!("{:#?}", m.drops)) };
        assert_eq!(drop.direction, Direction::Rx);
        assert_eq!(drop.device.as_deref(), Some("np1"));
        assert_eq!(drop.netns, Some(netns(&pair, Side::Server)));
        assert!(["netif_receive_skb", "udp_rcv"].contains(&drop.after.as_str()), "{drop:?}");
        if drop.packets == lost { Ok(()) } else { Err(format!("{lost}: {:#?}", m.drops)) }
    });
}

/// A request for a connection that finds the accept queue full is freed as if it had been delivered: only the counter
/// shows it.
#[test]
fn a_full_accept_queue_shows_in_its_counter() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let names = ["TcpExt.ListenOverflows", "TcpExt.ListenDrops"];
    let counts = names.map(|name| Counter::of(&pair, Side::Server, name));
    let (m, ()) = measured(&pair, Side::Server, || {
        let listen = |side: Side| {
            let listener = TcpListener::bind((side.ipv4(), 0))?;
            rustix::net::listen(&listener, 1)?;
            Ok(listener)
        };
        let listener = pair.run(Side::Server, listen).unwrap();
        let to = listener.local_addr().unwrap();
        // Of these two are taken; the others get no answer, and retransmit after a second.
        let patience = std::time::Duration::from_millis(50);
        let connect = |_| Ok((0..6).map(|_| TcpStream::connect_timeout(&to, patience)).collect());
        let connections: Vec<std::io::Result<TcpStream>> = pair.run(Side::Client, connect).unwrap();
        assert!(connections.iter().any(Result::is_err), "{connections:?}");
    });
    for (name, count) in names.into_iter().zip(&counts) {
        let (rose, check) = (count.rose(), m.counters.iter().find(|c| c.counter == name));
        assert!(rose > 0, "the reference of this test");
        let check = check.unwrap_or_else(|| panic!("{name} rose by {rose}: {m:#?}"));
        assert!((check.least..=check.most).contains(&rose), "{rose}: {check:?}");
        assert_eq!((check.seen, check.agrees), (None, None), "{check:?}");
    }
}

/// Dropped by a tc filter, not by the network stack itself.
#[test]
fn a_tc_filter_drops_on_ingress() {
    if !can_run() || !nearpath_testing::require_program("tc") {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let filter = |_| {
        command("tc", &["qdisc", "add", "dev", "np1", "clsact"])?;
        let rule = ["matchall", "action", "drop"];
        command("tc", &[&["filter", "add", "dev", "np1", "ingress"][..], &rule].concat())
    };
    if let Err(error) = pair.run(Side::Server, filter) {
        nearpath_testing::skip(&format!("no tc filters: {error}"));
        return;
    }
    let (client, server) = (v4(Side::Client), v4(Side::Server));
    counted(|| {
        // Known without asking, which the filter would drop.
        let neighbour = |side: Side| {
            let mac = std::process::Command::new("ip")
                .args(["-j", "link", "show", side.device()])
                .output()?;
            let link: serde_json::Value = serde_json::from_slice(&mac.stdout)?;
            Ok(link[0]["address"].as_str().unwrap_or_default().to_owned())
        };
        let mac = pair.run(Side::Server, neighbour).unwrap();
        let (m, ()) = measured(&pair, Side::Server, || {
            let send = |_| {
                let to = server.to_string();
                command("ip", &["neigh", "replace", &to, "lladdr", &mac, "dev", "np0"])?;
                Packet::udp(client, server, 9, 0).send(20)
            };
            pair.run(Side::Client, send).unwrap();
        });
        let udp: Vec<&Drop> = m.drops.iter().filter(|drop| drop.protocol == "UDP").collect();
        let [drop] = udp.as_slice() else { return Err(format!("{m:#?}")) };
        assert_eq!((drop.reason.as_deref(), drop.stage), (Some("TC_INGRESS"), DropStage::Tc));
        assert_eq!(drop.device.as_deref(), Some("np1"));
        if drop.packets == 20 { Ok(()) } else { Err(format!("{m:#?}")) }
    });
}
