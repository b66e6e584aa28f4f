//! The instrument `stages` under 100,000 flows on this kernel: its memory is bounded,
//! in the kernel and in its own process, and does not grow.
//!
//! For 8 seconds; `NEARPATH_FLOWS_SECONDS` for longer (`make bench-flows`: ten minutes).

#![allow(clippy::print_stdout, reason = "prints the memory used")]

mod common;

use common::{can_run, possible_cpus};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::{Measurement, Protocol};
use nearpath_testing::veth::{Side, VethPair};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Each client's socket with each of the server's is a flow.
const CLIENTS: usize = 200;
const SERVERS: usize = 500;
const FLOWS: usize = CLIENTS * SERVERS;
/// Allowed growth of the process from some flows to all of them: its allocator's
/// change, and pages of counters that are touched for the first time.
const GROWTH_BYTES: u64 = 2 << 20;

#[test]
fn memory_does_not_grow_with_flows_or_time() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() {
        return;
    }
    let seconds = std::env::var("NEARPATH_FLOWS_SECONDS").map_or(8, |s| s.parse().unwrap());
    let pair = VethPair::new(1).unwrap();
    let (clients, servers) = sockets(&pair);
    // All that is kept of flows and slow packets.
    let options = Options {
        filter: Filter { protocol: Some(Protocol::Udp), ..Filter::default() },
        budgets: true,
        slow: Some(Duration::from_millis(1)),
        outliers: 10,
        ..Options::default()
    };
    let mut stages = Stages::new(&possible_cpus(), options);
    stages.start().unwrap();
    let begin = Instant::now();
    let mut sent = 0;

    // A thousandth of the flows, then all of them until the time is over.
    sent += send_and_receive(&clients[..1], &servers[..FLOWS / 1000]);
    let few = Memory::now(&stages.read().unwrap());
    let mut first = None;
    while first.is_none() || begin.elapsed() < Duration::from_secs(seconds) {
        sent += send_and_receive(&clients, &servers);
        let memory = Memory::now(&stages.read().unwrap());
        println!("{:>6.1} s: {memory:?}", begin.elapsed().as_secs_f64());
        first.get_or_insert(memory);
    }
    let m = stages.read().unwrap();
    let (first, last) = (first.unwrap(), Memory::now(&m));
    let m = stages.stop().unwrap();

    assert_eq!(few.maps_bytes, last.maps_bytes, "maps are as large for 100 flows as for {FLOWS}");
    assert!(last.maps_bytes > 0, "the maps were not found");
    let grown = last.process_bytes.saturating_sub(first.process_bytes);
    assert!(grown <= GROWTH_BYTES, "{grown} bytes more than after {FLOWS} flows: {last:?}");
    // All of them were observed: each is a packet sent and a packet received.
    assert!(m.packets.started * 100 >= 2 * sent * 99, "{sent} sent: {:?}", m.packets);
    assert!(m.packets.completed * 100 >= m.packets.started * 95, "{:?}", m.packets);
}

/// Clients and servers, some of them with a thousand sockets or more in all.
fn sockets(pair: &VethPair) -> (Vec<UdpSocket>, Vec<UdpSocket>) {
    let bind = |side: Side, number: usize| -> io::Result<Vec<UdpSocket>> {
        let bound = || {
            let socket = UdpSocket::bind((side.ipv4(), 0))?;
            socket.set_read_timeout(Some(nearpath_testing::PATIENCE))?;
            Ok(socket)
        };
        (0..number).map(|_| bound()).collect()
    };
    (
        pair.run(Side::Client, |side| bind(side, CLIENTS)).unwrap(),
        pair.run(Side::Server, |side| bind(side, SERVERS)).unwrap(),
    )
}

/// A datagram of each flow, each received; returns how many.
fn send_and_receive(clients: &[UdpSocket], servers: &[UdpSocket]) -> u64 {
    let mut buffer = [0; 16];
    for server in servers {
        let address: SocketAddr = server.local_addr().unwrap();
        for client in clients {
            client.send_to(&[0; 16], address).unwrap();
        }
        for _ in clients {
            server.recv(&mut buffer).unwrap();
        }
    }
    (clients.len() * servers.len()) as u64
}

/// Memory used.
#[derive(Debug, Clone, Copy)]
struct Memory {
    /// By this process (RSS).
    process_bytes: u64,
    /// By all BPF maps that it holds.
    maps_bytes: u64,
    /// Slow packets so far, each of which was sent up.
    #[allow(dead_code, reason = "printed")]
    slow: u64,
}

impl Memory {
    fn now(m: &Measurement) -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let kilobytes = field(&status, "VmRSS:").unwrap();
        let maps = std::fs::read_dir("/proc/self/fdinfo").unwrap().filter_map(|entry| {
            let info = std::fs::read_to_string(entry.ok()?.path()).ok()?;
            field(&info, "map_id:").and(field(&info, "memlock:"))
        });
        Self { process_bytes: kilobytes << 10, maps_bytes: maps.sum(), slow: m.slow.seen }
    }
}

/// A number of a file of lines with a name and a value.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
