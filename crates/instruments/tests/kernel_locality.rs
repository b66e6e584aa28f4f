//! The instrument `locality` on this kernel: packets that the test itself sends over a veth pair from
//! a CPU that it knows, to a reader on a CPU that it knows, so that every count is known beforehand.

mod common;

use common::{SOCKETS, acquainted_pair, can_run, each_cpu_a_node, has_two_cpus, one_each, pin};
use nearpath_instruments::locality::{Options, PacketLocality};
use nearpath_instruments::{Filter, Grouping, Instrument, Sort};
use nearpath_model::locality::{Distances, Locality, LocalityGroup};
use nearpath_model::{Direction, Per, Protocol};
use nearpath_testing::calls::Calls;
use nearpath_testing::counted;
use nearpath_testing::veth::{Side, VethPair};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroU32;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;

const DATAGRAMS: u64 = 500;
/// Senders run here.
const CPU: usize = 0;
const OTHER_CPU: usize = 1;

fn to_port(protocol: Protocol, port: u16) -> Filter {
    Filter { protocol: Some(protocol), dport: Some(port), ..Filter::default() }
}

/// Measures while `work` runs; the instrument has stopped by its end.
fn measure(filter: &Filter, work: impl FnOnce()) -> Locality {
    measure_by(None, filter, work)
}

fn measure_by(per: Option<Per>, filter: &Filter, work: impl FnOnce()) -> Locality {
    let groups = per.map(|per| Grouping { per, top: 10, sort: Sort::Packets });
    let options = Options { filter: filter.clone(), groups, ..Options::default() };
    let mut locality = PacketLocality::new(&each_cpu_a_node(), options);
    locality.start().unwrap();
    work();
    let m = locality.stop().unwrap();
    assert_balanced(&m);
    m
}

fn assert_balanced(m: &Locality) {
    let p = m.packets;
    let ends = p.completed + p.dropped + p.abandoned + p.collided + p.not_allocated;
    assert_eq!(p.started, ends, "{p:?}");
    assert_eq!(p.completed + p.dropped, m.rx.packets + m.tx.packets, "{m:?}");
    for (direction, d) in [(Direction::Rx, m.rx), (Direction::Tx, m.tx)] {
        let parts = [d.same_cpu, d.same_core, d.same_llc, d.same_node, d.other_node, d.unknown];
        assert_eq!(d.packets, parts.iter().sum::<u64>(), "{d:?}");
        let places = || m.places.iter().filter(move |p| p.direction == direction).map(|p| p.place);
        assert_eq!(d.packets, places().map(|p| p.count).sum::<u64>(), "{m:?}");
        let local = places().filter(|p| p.from_cpu == p.to_cpu).map(|p| p.count).sum::<u64>();
        assert_eq!(d.same_cpu, local, "{m:?}");
    }
    if !m.groups.is_empty() {
        let sum = |of: fn(&LocalityGroup) -> Distances| {
            m.groups.iter().map(of).fold(Distances::default(), |sum, one| sum.with(&one))
        };
        assert_eq!((sum(|group| group.rx), sum(|group| group.tx)), (m.rx, m.tx), "{m:?}");
    }
}

fn on_one_cpu(packets: u64) -> Distances {
    Distances { packets, same_cpu: packets, ..Distances::default() }
}

fn on_two_nodes(packets: u64) -> Distances {
    Distances { packets, other_node: packets, ..Distances::default() }
}

fn exactly(m: &Locality, rx: Distances, tx: Distances) -> Result<(), String> {
    if (m.rx, m.tx) == (rx, tx) { Ok(()) } else { Err(format!("not {rx:?}, {tx:?}: {m:#?}")) }
}

/// Sends from [`CPU`] and reads on another, alternately.
fn send_and_read((client, server): &(UdpSocket, UdpSocket), reader_cpu: usize) {
    thread::scope(|scope| {
        let (ask, asked) = std::sync::mpsc::sync_channel(0);
        let (sender, receiver) = std::sync::mpsc::sync_channel(0);
        scope.spawn(move || {
            pin(reader_cpu);
            for () in asked {
                server.recv(&mut [0; 16]).unwrap();
                sender.send(()).unwrap();
            }
        });
        scope.spawn(move || {
            pin(CPU);
            for _ in 0..DATAGRAMS {
                ask.send(()).unwrap();
                client.send(b"datagram").unwrap();
                receiver.recv().unwrap();
            }
        });
    });
}

#[test]
fn datagrams_are_freed_where_their_reader_is() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let filter = to_port(Protocol::Udp, sockets.1.local_addr().unwrap().port());
    // Handed to its peer by the CPU that sends it, each is received there.
    let sent = on_one_cpu(DATAGRAMS);
    counted(|| {
        let m = measure(&filter, || send_and_read(&sockets, CPU));
        exactly(&m, on_one_cpu(DATAGRAMS), sent)
    });
    counted(|| {
        let m = measure(&filter, || send_and_read(&sockets, OTHER_CPU));
        exactly(&m, on_two_nodes(DATAGRAMS), sent)
    });
}

/// A reader that polls takes a datagram before its socket has signalled it, and may return before that, too. The kernel's
/// own count says how many were read.
#[test]
fn a_reader_that_polls_ends_its_datagrams() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    const SENT: u64 = 100 * DATAGRAMS;
    let pair = VethPair::new(1).unwrap();
    let (client, server) = acquainted_pair(&pair, false);
    let filter = to_port(Protocol::Udp, server.local_addr().unwrap().port());
    server.set_nonblocking(true).unwrap();
    let taken = AtomicU64::new(0);
    let poll = || {
        pin(OTHER_CPU);
        while taken.load(Acquire) < SENT {
            if server.recv(&mut [0; 16]).is_ok() {
                taken.fetch_add(1, Release);
            }
        }
    };
    // One at a time: none is dropped as the buffer is full.
    let send = || {
        pin(CPU);
        for sent in 0..SENT {
            while taken.load(Acquire) < sent {
                std::hint::spin_loop();
            }
            client.send(b"datagram").unwrap();
        }
    };
    counted(|| {
        let mut read = Calls::begin("sock/sock_recv_length", "protocol == 17 && ret == 8")
            .map_err(|error| error.to_string())?;
        taken.store(0, Release);
        let m = measure(&filter, || {
            thread::scope(|scope| {
                scope.spawn(poll);
                scope.spawn(send);
            });
        });
        let read = read.count().map_err(|error| error.to_string())?;
        match m.rx.other_node {
            ended if ended <= SENT && ended + SENT / 10_000 >= SENT => Ok(()),
            ended => Err(format!("{ended} of {SENT} ended, the kernel counted {read}: {m:?}")),
        }
    });
}

#[test]
fn the_first_datagram_of_each_socket_ends() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (filter, send) = one_each(&pair);
    counted(|| {
        let m = measure(&filter, &send);
        let right = on_two_nodes(SOCKETS);
        if m.rx == right { Ok(()) } else { Err(format!("{:?}, {:?}", m.rx, m.packets)) }
    });
}

#[test]
fn rps_moves_the_end_of_packets_without_a_reader() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (client, server) = acquainted_pair(&pair, false);
    let filter = to_port(Protocol::Udp, server.local_addr().unwrap().port());
    let filter = Filter { direction: Some(Direction::Rx), ..filter };
    drop(server);
    // The answers (ICMP) are errors of the next send.
    let send = || {
        thread::scope(|scope| {
            scope.spawn(|| {
                pin(CPU);
                let mut sent = 0;
                while sent < DATAGRAMS {
                    sent += u64::from(client.send(b"nobody reads it").is_ok());
                }
            });
        });
        // What waits for the other CPU's softirq comes before what is done there after it.
        thread::scope(|scope| {
            scope.spawn(|| pin(OTHER_CPU));
        });
    };
    for (rps_cpus, expected) in
        [("0", on_one_cpu(DATAGRAMS)), ("2", on_two_nodes(DATAGRAMS)), ("0", on_one_cpu(DATAGRAMS))]
    {
        pair.write(Side::Server, "queues/rx-0/rps_cpus", rps_cpus).unwrap();
        counted(|| {
            let m = measure(&filter, send);
            exactly(&m, expected, Distances::default())?;
            assert_eq!(m.packets.dropped, DATAGRAMS, "{m:?}");
            Ok(())
        });
    }
}

#[test]
fn segments_are_freed_where_their_reader_is() {
    const BYTES: usize = 4 << 20;
    if !can_run() || !has_two_cpus() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    for (reader_cpu, most) in [(CPU, true), (OTHER_CPU, false)] {
        let server = pair.run(Side::Server, |side| TcpListener::bind((side.ipv4(), 0))).unwrap();
        let address = server.local_addr().unwrap();
        let mut client = pair.run(Side::Client, |_| TcpStream::connect(address)).unwrap();
        let (mut reader, _) = server.accept().unwrap();
        let filter = to_port(Protocol::Tcp, address.port());
        let m = measure(&filter, || {
            thread::scope(|scope| {
                scope.spawn(|| {
                    pin(reader_cpu);
                    let mut all = vec![0; BYTES];
                    reader.read_exact(&mut all).unwrap();
                });
                scope.spawn(|| {
                    pin(CPU);
                    client.write_all(&vec![0; BYTES]).unwrap();
                });
            });
        });
        // Segments on their way at the end, and those whose data another took in unseen.
        assert!(m.packets.abandoned * 20 <= m.packets.started, "{m:?}");
        assert!(m.rx.packets >= 20 && m.tx.packets >= 20, "{m:?}");
        let local = m.rx.local().unwrap();
        if most {
            assert!(local > 0.9, "{local}: {m:?}");
        } else {
            // Segments that the stack puts into earlier ones end where it runs.
            assert!(m.rx.other_node > 0 && local < 0.9, "{local}: {m:?}");
        }
    }
}

#[test]
fn packets_that_do_not_match_or_are_not_sampled_are_omitted() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let port = sockets.1.local_addr().unwrap().port();
    let m = measure(&to_port(Protocol::Tcp, port), || send_and_read(&sockets, CPU));
    assert_eq!((m.packets.started, m.packets.sampled_out), (0, 0));
    let filter = Filter { direction: Some(Direction::Tx), ..to_port(Protocol::Udp, port) };
    counted(|| {
        let m = measure(&filter, || send_and_read(&sockets, CPU));
        exactly(&m, Distances::default(), on_one_cpu(DATAGRAMS))
    });
    // One flow: all of it, or none.
    let filter = Filter { sample: NonZeroU32::new(1 << 20), ..to_port(Protocol::Udp, port) };
    counted(|| {
        let m = measure(&filter, || send_and_read(&sockets, CPU));
        match (m.packets.started, m.packets.sampled_out) {
            (0, out) if out == 2 * DATAGRAMS => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
}

#[test]
fn each_group_has_its_packets() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
    let filter = to_port(Protocol::Udp, port(&sockets.1));
    let own = std::process::id();
    let comm = std::fs::read_to_string(format!("/proc/{own}/comm")).unwrap();
    let flow = format!("UDP 10.99.0.1:{} > 10.99.0.2:{}", port(&sockets.0), port(&sockets.1));
    let (rx, tx) = (on_two_nodes(DATAGRAMS), on_one_cpu(DATAGRAMS));
    let none = Distances::default();
    let process = format!("{}/{own}", comm.trim_end());
    for (per, expected) in [
        (Per::Process, vec![(process, rx, tx)]),
        (Per::Flow, vec![(flow, rx, tx)]),
        // A veth records no queue that it receives by.
        (Per::Queue, vec![("np0 tx-0".into(), none, tx), ("np1 rx-unknown".into(), rx, none)]),
    ] {
        counted(|| {
            let m = measure_by(Some(per), &filter, || send_and_read(&sockets, OTHER_CPU));
            let mut found: Vec<(String, Distances, Distances)> =
                m.groups.iter().map(|group| (group.name.clone(), group.rx, group.tx)).collect();
            found.sort_by(|a, b| a.0.cmp(&b.0));
            if found == expected {
                Ok(())
            } else {
                Err(format!("{found:?}, not {expected:?}: {m:#?}"))
            }
        });
    }
    counted(|| {
        let m = measure_by(Some(Per::Cgroup), &filter, || send_and_read(&sockets, OTHER_CPU));
        match &m.groups[..] {
            [one] if (one.rx, one.tx) == (rx, tx) && one.name.starts_with(['/', '…']) => Ok(()),
            _ => Err(format!("{m:#?}")),
        }
    });
}

#[test]
fn the_overhead_is_known() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let sockets = acquainted_pair(&pair, false);
    let filter = to_port(Protocol::Udp, sockets.1.local_addr().unwrap().port());
    let options = Options { filter, ..Options::default() };
    let mut locality = PacketLocality::new(&each_cpu_a_node(), options);
    locality.start().unwrap();
    // What accounting adds is taken off, which may leave nothing of a few packets.
    let cost = nearpath_testing::wait_for("what observing costs", || {
        locality.begin_cost_window();
        send_and_read(&sockets, CPU);
        locality.end_cost_window();
        locality.read().unwrap().cost
    });
    assert!(cost.ns_per_event > 0.0 && cost.ns_per_packet >= cost.ns_per_event, "{cost:?}");
}
