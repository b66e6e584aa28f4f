//! The instrument `accepts` on this kernel with UDP servers: pinned workers, each with its own
//! socket of a REUSEPORT group, which count the origin of datagrams themselves.

#![allow(clippy::print_stdout, reason = "the figures are worth reading")]

mod common;

use common::{can_run, each_cpu_a_node, has_two_cpus, incoming_cpu, pin};
use nearpath_host::Root;
use nearpath_instruments::Instrument;
use nearpath_instruments::accepts::{Accepts, Options};
use nearpath_model::Protocol;
use nearpath_model::accepts::{AcceptMeasurement, DistanceCounts};
use nearpath_testing::counted;
use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_reuseport};
use rustix::net::{AddressFamily, SocketType, bind, socket};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Datagrams from each of two CPUs.
const EACH: usize = 3000;
/// Sockets that each CPU sends from, so that the group's hash has different flows.
const CLIENTS: usize = 50;

/// How a worker waits for datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    Asleep,
    Spinning,
}

/// A socket of the group, whose buffer fits everything that is sent.
fn member(address: SocketAddr) -> UdpSocket {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family, SocketType::DGRAM, None).unwrap();
    set_socket_reuseport(&socket, true).unwrap();
    set_socket_recv_buffer_size_force(&socket, 16 << 20).unwrap();
    bind(&socket, &address).unwrap();
    socket.into()
}

/// What a worker has read: its thread, and how many datagrams that either CPU sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Read {
    tid: u32,
    cpu: usize,
    from: [u64; 2],
}

impl Read {
    fn all(&self) -> u64 {
        self.from.iter().sum()
    }

    /// The expected result of the instrument for CPUs that are a node each.
    fn places(&self) -> DistanceCounts {
        let (accepts, same_cpu) = (self.all(), self.from[self.cpu]);
        DistanceCounts {
            accepts,
            same_cpu,
            other_node: accepts - same_cpu,
            ..DistanceCounts::default()
        }
    }
}

fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().try_into().unwrap()
}

/// Reads on a CPU until the socket is shut down.
fn work(socket: &UdpSocket, cpu: usize, waiting: Waiting, read: &AtomicUsize) -> Read {
    pin(cpu);
    socket.set_nonblocking(waiting == Waiting::Spinning).unwrap();
    let (mut from, mut buffer) = ([0; 2], [0; 64]);
    loop {
        match socket.recv(&mut buffer) {
            Ok(0) => return Read { tid: tid(), cpu, from },
            Ok(_) => {
                from[usize::from(buffer[0])] += 1;
                read.fetch_add(1, SeqCst);
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}");
                // To one that does not wait the end of its socket looks like any other moment.
                if read.load(SeqCst) == 2 * EACH {
                    return Read { tid: tid(), cpu, from };
                }
            }
        }
    }
}

/// Sends from both CPUs at once: what a CPU sends to its own machine it receives.
fn send(to: SocketAddr) {
    std::thread::scope(|scope| {
        for cpu in [0u8, 1] {
            scope.spawn(move || {
                pin(cpu.into());
                let from = SocketAddr::new(to.ip(), 0);
                let clients: Vec<_> =
                    (0..CLIENTS).map(|_| UdpSocket::bind(from).unwrap()).collect();
                for datagram in 0..EACH {
                    clients[datagram % CLIENTS].send_to(&[cpu, 0], to).unwrap();
                }
            });
        }
    });
}

/// The instrument's results for a group's workers while both CPUs send to it, and the workers' own counts.
fn measured(
    options: Options,
    local: SocketAddr,
    waiting: Waiting,
) -> (AcceptMeasurement, Vec<Read>, SocketAddr) {
    let first = member(local);
    let address = first.local_addr().unwrap();
    let sockets = [first, member(address)];
    let options = Options { port: Some(address.port()), datagrams: true, ..options };
    let root = Root::live();
    let mut accepts = Accepts::new(&root, &each_cpu_a_node(), options);
    accepts.start().unwrap();
    let read = AtomicUsize::new(0);
    let workers = std::thread::scope(|scope| {
        let work = |cpu: usize| {
            let (socket, read) = (&sockets[cpu], &read);
            scope.spawn(move || work(socket, cpu, waiting, read))
        };
        let workers = [0, 1].map(work);
        send(address);
        nearpath_testing::wait_for("the last datagram", || {
            (read.load(SeqCst) == 2 * EACH).then_some(())
        });
        for socket in &sockets {
            // It returns ENOTCONN, and wakes the reader nevertheless.
            let _ = rustix::net::shutdown(socket.as_fd(), rustix::net::Shutdown::Both);
        }
        workers.map(|worker| worker.join().unwrap())
    });
    (accepts.stop().unwrap(), workers.to_vec(), address)
}

/// Whether two counts differ by no more than one in a hundred.
fn agree(one: u64, other: u64, of: u64) -> bool {
    one.abs_diff(other) * 100 <= of
}

fn check(local: SocketAddr, waiting: Waiting) {
    counted(|| {
        let (m, workers, address) = measured(Options::default(), local, waiting);
        assert_eq!((m.protocol, m.lost), (Protocol::Udp, 0));
        let [group] = m.listeners.as_slice() else { panic!("{m:?}") };
        assert_eq!(group.local, address.to_string());
        assert_eq!(workers.iter().map(Read::all).sum::<u64>(), 2 * EACH as u64);
        for own in workers {
            assert!(own.all() > EACH as u64 / 4, "the group is one-sided: {own:?}");
            let found = group.workers.iter().find(|worker| worker.tid == own.tid);
            let found = found.ok_or(format!("no {own:?}: {group:?}"))?.places;
            let right = own.places();
            let close = found.accepts == right.accepts
                && agree(found.same_cpu, right.same_cpu, right.accepts)
                && agree(found.other_node, right.other_node, right.accepts);
            println!("{waiting:?} {address}: {found:?}, the worker says {right:?}");
            if !close {
                return Err(format!("{found:?}, not {right:?}"));
            }
        }
        Ok(())
    });
}

#[test]
fn counts_are_those_of_the_workers() {
    if can_run() && has_two_cpus() {
        check((Ipv4Addr::LOCALHOST, 0).into(), Waiting::Asleep);
        check((Ipv6Addr::LOCALHOST, 0).into(), Waiting::Asleep);
    }
}

#[test]
fn counts_are_those_of_workers_that_spin() {
    if can_run() && has_two_cpus() {
        check((Ipv4Addr::LOCALHOST, 0).into(), Waiting::Spinning);
    }
}

#[test]
fn counts_are_those_of_the_kernel() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    // Of a connected socket the kernel keeps the CPU: one datagram at a time, so that it is that of this.
    let (server, client) =
        (member((Ipv4Addr::LOCALHOST, 0).into()), UdpSocket::bind("127.0.0.1:0"));
    let client = client.unwrap();
    let address = server.local_addr().unwrap();
    server.connect(client.local_addr().unwrap()).unwrap();
    let options =
        Options { port: Some(address.port()), datagrams: true, each: true, ..Options::default() };
    let root = Root::live();
    counted(|| {
        let mut accepts = Accepts::new(&root, &each_cpu_a_node(), options.clone());
        accepts.start().unwrap();
        let mut own: Vec<(Option<u32>, u32)> = Vec::new();
        for datagram in 0..600 {
            for (cpu, act) in [(datagram / 2 % 2, true), (datagram % 2, false)] {
                pin(cpu);
                if act {
                    client.send_to(b"datagram", address).unwrap();
                } else {
                    server.recv(&mut [0; 16]).unwrap();
                    let received_on = u32::try_from(incoming_cpu(&server)).unwrap();
                    own.push((Some(received_on), u32::try_from(cpu).unwrap()));
                }
            }
        }
        let m = accepts.stop().unwrap();
        let seen: Vec<_> = m.events.iter().map(|event| event.cpus()).collect();
        let said = m.events[0].to_string();
        let begin =
            format!("cpu=#0 pid={} recv({address}) -> length=8 rxcpu=#0", std::process::id());
        if seen == own && said == begin {
            Ok(())
        } else {
            Err(format!("{said}: {seen:?}, not {own:?}"))
        }
    });
}

#[test]
fn only_datagrams_that_are_taken_are_counted() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    let root = Root::live();
    let server = member((Ipv4Addr::LOCALHOST, 0).into());
    let address = server.local_addr().unwrap();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    // One that arrives before is read, but its receiving CPU was not seen.
    client.send_to(b"before", address).unwrap();
    let options = Options { port: Some(address.port()), datagrams: true, ..Options::default() };
    let mut accepts = Accepts::new(&root, &each_cpu_a_node(), options);
    accepts.start().unwrap();
    server.recv(&mut [0; 16]).unwrap();
    client.send_to(b"looked at", address).unwrap();
    for _ in 0..3 {
        server.peek(&mut [0; 16]).unwrap();
    }
    server.recv(&mut [0; 16]).unwrap();
    // An empty one is a datagram; the end of the socket is not, nor is an error.
    client.send_to(b"", address).unwrap();
    assert_eq!(server.recv(&mut [0; 16]).unwrap(), 0);
    server.set_nonblocking(true).unwrap();
    assert!(server.recv(&mut [0; 16]).is_err());
    server.set_nonblocking(false).unwrap();
    let _ = rustix::net::shutdown(server.as_fd(), rustix::net::Shutdown::Both);
    assert_eq!(server.recv(&mut [0; 16]).unwrap(), 0);
    let m = accepts.stop().unwrap();
    let [group] = m.listeners.as_slice() else { panic!("{m:?}") };
    assert_eq!((group.places.accepts, group.places.unknown), (3, 1), "{group:?}");
}
