//! The instrument `stages` with fewer hooks: the packets are the same, and so are the times between the
//! remaining stages. The reference is a measurement of the same packets with more hooks.

mod common;

use common::{acquainted_pair, can_run, exactly, ping_pong, possible_cpus};
use libbpf_rs::query::ProgInfoIter;
use nearpath_instruments::stages::{Options, STAGES, Stages};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::{Detail, Direction, Measurement, Protocol};
use nearpath_testing::counted;
use nearpath_testing::veth::{Side, VethPair};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

const ROUNDS: u64 = 500;
const DETAILS: [Detail; 3] = [Detail::Coarse, Detail::Path, Detail::Full];

fn options(filter: &Filter, detail: Detail) -> Options {
    Options { filter: filter.clone(), detail, ..Options::default() }
}

/// Measures the same packets in several ways at once.
fn measure_all(all: Vec<Options>, work: impl FnOnce()) -> Vec<Measurement> {
    let mut running: Vec<Stages> = Vec::new();
    for options in all {
        let mut stages = Stages::new(&possible_cpus(), options);
        stages.start().unwrap();
        running.push(stages);
    }
    work();
    // Attaching the later ones took its time: each began with the same packet.
    running.iter_mut().map(|stages| stages.stop().unwrap()).collect()
}

/// Packets that reached a stage, by any path.
fn arrived(m: &Measurement, direction: Direction, to: &str) -> u64 {
    m.spans.iter().filter(|s| s.direction == direction && s.to == to).map(|s| s.count).sum()
}

/// Nanoseconds of all spans of a direction between two stages, those in between included.
fn between(m: &Measurement, direction: Direction, from: &str, to: &str) -> u64 {
    let place = |name: &str| {
        STAGES.iter().position(|s| s.direction == direction && s.name == name).unwrap()
    };
    let within = place(from)..=place(to);
    let spans = m.spans.iter().filter(|s| s.direction == direction);
    spans
        .filter(|s| within.contains(&place(&s.from)) && within.contains(&place(&s.to)))
        .map(|s| s.total_ns)
        .sum()
}

fn udp_filter(port: u16) -> Filter {
    Filter { protocol: Some(Protocol::Udp), port: Some(port), ..Filter::default() }
}

/// That every span lies between stages which that detail observes.
fn assert_within(m: &Measurement, detail: Detail) {
    assert_eq!(m.detail, Some(detail));
    for span in &m.spans {
        for name in [&span.from, &span.to] {
            assert!(m.observed(name), "{name} with {detail:?}: {:?}", m.stages);
            let of = STAGES.iter().filter(|s| s.name == name);
            assert!(of.map(|s| s.detail).min().unwrap() <= detail, "{name} with {detail:?}");
        }
    }
}

#[test]
fn datagrams_are_counted_alike_with_each_detail() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    for v6 in [false, true] {
        let sockets = acquainted_pair(&pair, v6);
        let filter = udp_filter(sockets.1.local_addr().unwrap().port());
        let packets = 2 * ROUNDS;
        counted(|| {
            let all = DETAILS.map(|detail| options(&filter, detail)).to_vec();
            let measured = measure_all(all, || ping_pong(&sockets, ROUNDS));
            for (m, detail) in measured.iter().zip(DETAILS) {
                assert_within(m, detail);
                exactly(m.packets.started, 2 * packets, m)?;
                exactly(m.packets.completed, 2 * packets, m)?;
                exactly(m.events_lost, 0, m)?;
                for stage in ["sk_data_ready", "sock_recv"] {
                    exactly(arrived(m, Direction::Rx, stage), packets, m)?;
                }
                exactly(arrived(m, Direction::Tx, "net_dev_start_xmit"), packets, m)?;
            }
            Ok(())
        });
    }
}

#[test]
fn the_time_since_net_rx_was_raised_needs_no_look_at_softirqs() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(2).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let filter = udp_filter(sockets.1.local_addr().unwrap().port());
    counted(|| {
        // Other packets, which do not match the filter, raise NET_RX in between.
        let other = acquainted_pair(&pair, true);
        // Each pays for the other's hooks, the second most: so each comes second once.
        let mut times = [0.0; 2];
        for order in [[0, 1], [1, 0]] {
            let all = order.map(|i| options(&filter, [Detail::Coarse, Detail::Path][i]));
            let measured = measure_all(all.to_vec(), || {
                for _ in 0..ROUNDS / 10 {
                    ping_pong(&other, 5);
                    std::thread::sleep(std::time::Duration::from_millis(2));
                    ping_pong(&sockets, 10);
                }
            });
            let count = |m| arrived(m, Direction::Rx, "netif_receive_skb");
            exactly(count(&measured[0]), count(&measured[1]), &measured[0])?;
            for (i, m) in order.into_iter().zip(&measured) {
                times[i] += between(m, Direction::Rx, "net_rx_raise", "netif_receive_skb") as f64;
            }
        }
        let ratio = times[0] / times[1];
        let close = (0.7..1.4).contains(&ratio);
        close.then_some(()).ok_or_else(|| format!("{ratio}: {times:?}"))
    });
}

#[test]
fn segments_and_bare_acks_end_with_few_hooks_too() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = pair.run(Side::Server, |s| TcpListener::bind((s.ipv4(), 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = pair.run(Side::Client, |_| TcpStream::connect(address)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let filter =
        Filter { protocol: Some(Protocol::Tcp), port: Some(address.port()), ..Filter::default() };
    counted(|| {
        let all = DETAILS.map(|detail| options(&filter, detail)).to_vec();
        let measured = measure_all(all, || {
            let mut buffer = [0; 64];
            for _ in 0..ROUNDS {
                client.write_all(&[1; 64]).unwrap();
                server.read_exact(&mut buffer).unwrap();
                server.write_all(&buffer).unwrap();
                client.read_exact(&mut buffer).unwrap();
            }
        });
        let full = &measured[2];
        for (m, detail) in measured.iter().zip(DETAILS) {
            assert_within(m, detail);
            exactly(m.packets.started, full.packets.started, m)?;
            exactly(arrived(m, Direction::Rx, "skb_copy_datagram"), 2 * ROUNDS, m)?;
            if m.packets.abandoned > 4 {
                return Err(format!("{detail:?}: {:?}", m.packets));
            }
        }
        Ok(())
    });
}

#[test]
fn stages_can_be_chosen_by_name() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let filter = udp_filter(sockets.1.local_addr().unwrap().port());
    let stages = ["netif_receive_skb", "sock_recv", "sk_data_ready"].map(str::to_owned).to_vec();
    let without = vec!["sk_data_ready".to_owned()];
    let chosen = Options { stages: Some(stages), without, ..options(&filter, Detail::Full) };
    let m = measure_all(vec![chosen], || ping_pong(&sockets, ROUNDS)).remove(0);
    assert_eq!(
        (m.detail, m.stages),
        (None, ["netif_receive_skb", "sock_recv"].map(String::from).to_vec())
    );
    assert!(m.spans.iter().all(|s| s.direction == Direction::Rx), "{:?}", m.spans);
    assert!(m.packets.started >= 2 * ROUNDS - 2, "{:?}", m.packets);
}

/// Where the stages before RPS are observed, the first of them is the device's, from NAPI.
#[test]
fn sparse_packets_from_napi_do_not_wait_since_the_packet_before() {
    if !can_run() || !nearpath_testing::require_program("ethtool") {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let features = [(Side::Client, "tcp-segmentation-offload"), (Side::Server, "gro")];
    for (side, feature) in features {
        // veth passes to NAPI what a sender without TSO sends to a receiver with GRO (veth_xmit).
        let value = if feature == "gro" { "on" } else { "off" };
        let set = |side: Side| {
            Command::new("ethtool").args(["-K", side.device(), feature, value]).output()
        };
        let output = pair.run(side, set).unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let sockets = acquainted_pair(&pair, false);
    let filter = udp_filter(sockets.1.local_addr().unwrap().port());
    let gap = Duration::from_millis(200);
    let coarse = Options { arrivals: true, ..options(&filter, Detail::Coarse) };
    let m = measure_all(vec![coarse], || {
        for _ in 0..6 {
            std::thread::sleep(gap);
            sockets.0.send(b"sparse").unwrap();
            sockets.1.recv(&mut [0; 16]).unwrap();
        }
    })
    .remove(0);
    let raised: Vec<_> = m.spans.iter().filter(|s| s.from == "net_rx_raise").collect();
    assert_eq!(raised.iter().map(|s| s.count).sum::<u64>(), 6, "{:?}", m.spans);
    for span in raised {
        assert_eq!(span.to, "napi_gro_receive", "{span:?}");
        // A raise that is taken for that of the packet before is a gap old.
        let max = Duration::from_nanos(span.max_ns.unwrap());
        assert!(max < gap / 2, "{span:?}");
    }
}

/// The numbers of the programs that this process holds.
fn own_programs() -> BTreeSet<u32> {
    let mut numbers = BTreeSet::new();
    for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap() {
        // One that was open for the listing is gone by now.
        let Ok(text) = std::fs::read_to_string(entry.unwrap().path()) else { continue };
        let line = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
        numbers.extend(line.and_then(|number| number.trim().parse::<u32>().ok()));
    }
    numbers
}

/// The benchmark's baseline: programs whose whole body was removed by the verifier.
#[test]
fn empty_programs_do_nothing() {
    if !can_run() {
        return;
    }
    let (mut seen, mut longest) = (0, 0);
    for empty in [true, false] {
        let options = Options { empty, budgets: true, ..Options::default() };
        let mut stages = Stages::new(&possible_cpus(), options);
        let before = own_programs();
        stages.start().unwrap();
        let new: BTreeSet<u32> = own_programs().difference(&before).copied().collect();
        let programs = ProgInfoIter::default().filter(|p| new.contains(&p.id));
        // The kernel counts them from 5.16 on.
        let lengths: Vec<_> = programs.map(|p| (p.verified_insns, p.name)).collect();
        if lengths.iter().all(|&(length, _)| length == 0) {
            nearpath_testing::skip("the kernel does not report the length of programs");
            return;
        }
        if empty {
            seen = lengths.len();
            assert!(lengths.iter().all(|&(length, _)| length <= 8), "{lengths:?}");
        } else {
            longest = lengths.iter().map(|&(length, _)| length).max().unwrap_or(0);
        }
    }
    // They are as many as others, which do something.
    assert!(seen > 20 && longest > 100, "{seen} programs, the longest of {longest}");
}
