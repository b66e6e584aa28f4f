//! Shared by tests on this kernel: whether they can run, the host as passed to the instrument, CPUs to
//! run on, and comparisons of counts.

#![allow(dead_code, reason = "each test uses a part of it")]

use nearpath_instruments::Filter;
use nearpath_model::{
    Cpu, CpuId, CpuSet, Direction, LlcId, Measurement, NodeId, Protocol, Topology,
};
use nearpath_testing::veth::{Side, VethPair};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Whether programs can be loaded and namespaces created; else the test is skipped.
pub fn can_run() -> bool {
    nearpath_testing::require_bpf() && nearpath_testing::require_netns()
}

/// Whether the test may run on CPU 0 and on CPU 1; else it is skipped.
pub fn has_two_cpus() -> bool {
    let cpus = rustix::thread::sched_getaffinity(None).unwrap();
    let both = cpus.is_set(0) && cpus.is_set(1);
    if !both {
        nearpath_testing::skip("fewer than two CPUs");
    }
    both
}

/// Pins this thread, and those that it starts, to a CPU.
pub fn pin(cpu: usize) {
    let mut only = rustix::thread::CpuSet::new();
    only.set(cpu);
    rustix::thread::sched_setaffinity(None, &only).unwrap();
}

/// Both ends of a UDP flow, each in its namespace.
pub fn udp_pair(pair: &VethPair, v6: bool) -> (UdpSocket, UdpSocket) {
    let address = |side: Side| if v6 { side.ipv6() } else { side.ipv4() };
    let bind = |side: Side| {
        let socket = UdpSocket::bind((address(side), 0))?;
        socket.set_read_timeout(Some(nearpath_testing::PATIENCE))?;
        Ok(socket)
    };
    let server = pair.run(Side::Server, bind).unwrap();
    let client = pair.run(Side::Client, bind).unwrap();
    client.connect(server.local_addr().unwrap()).unwrap();
    (client, server)
}

/// The same after a first exchange: the very first packet waits for its neighbour's address and
/// is then sent by the softirq that received it.
pub fn acquainted_pair(pair: &VethPair, v6: bool) -> (UdpSocket, UdpSocket) {
    let sockets = udp_pair(pair, v6);
    ping_pong(&sockets, 2);
    sockets
}

/// This many datagrams from client to server, each answered: twice as many packets.
pub fn ping_pong((client, server): &(UdpSocket, UdpSocket), rounds: u64) {
    let mut buffer = [0; 2048];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 2048];
            for _ in 0..rounds {
                let (n, from) = server.recv_from(&mut buffer).unwrap();
                server.send_to(&buffer[..n], from).unwrap();
            }
        });
        for _ in 0..rounds {
            client.send(b"ping").unwrap();
            client.recv(&mut buffer).unwrap();
        }
    });
}

/// Sockets of [`one_each`].
pub const SOCKETS: u64 = 800;

/// Many sockets, each of which is sent one datagram by CPU 0, which a reader that polls on CPU 1 takes: often before
/// the socket has signalled it, the first that it ever signals. The filter matches these datagrams, received.
pub fn one_each(pair: &VethPair) -> (Filter, impl Fn()) {
    acquainted_pair(pair, false);
    let netns = u32::try_from(pair.inode(Side::Server).unwrap()).unwrap();
    let (protocol, direction) = (Some(Protocol::Udp), Some(Direction::Rx));
    let filter = Filter { protocol, direction, netns: Some(netns), ..Filter::default() };
    let bind = |side: Side| UdpSocket::bind((side.ipv4(), 0));
    let client = pair.run(Side::Client, bind).unwrap();
    let servers: Vec<UdpSocket> = (0..SOCKETS)
        .map(|_| {
            let server = pair.run(Side::Server, bind).unwrap();
            server.set_nonblocking(true).unwrap();
            server
        })
        .collect();
    let send = move || {
        let taken = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin(1);
                for server in &servers {
                    while server.recv(&mut [0; 16]).is_err() {}
                    taken.fetch_add(1, Release);
                }
            });
            scope.spawn(|| {
                pin(0);
                for (sent, server) in servers.iter().enumerate() {
                    while taken.load(Acquire) < sent {
                        std::hint::spin_loop();
                    }
                    client.send_to(b"datagram", server.local_addr().unwrap()).unwrap();
                }
            });
        });
    };
    (filter, send)
}

/// Connections that [`connect_from_both`] makes from each CPU.
pub const EACH: usize = 300;

/// Connects to an address from CPU 0 and from CPU 1.
pub fn connect_from_both(address: SocketAddr) {
    std::thread::scope(|scope| {
        for cpu in [0, 1] {
            scope.spawn(move || {
                pin(cpu);
                (0..EACH).for_each(|_| drop(TcpStream::connect(address).unwrap()));
            });
        }
    });
}

/// A listener whose backlog fits all connections: otherwise a SYN is dropped, and retransmitted after a second.
pub fn listen(address: IpAddr) -> TcpListener {
    let listener = TcpListener::bind((address, 0)).unwrap();
    rustix::net::listen(&listener, 2 * EACH as i32).unwrap();
    listener
}

/// Whether these are the connections of one CPU; but for a few handshakes that a softirq which was put
/// off finished on the other.
pub fn is_half(connections: u64) -> bool {
    connections.abs_diff(EACH as u64) <= EACH as u64 / 50
}

/// The CPU on which the kernel received from a connection last.
pub fn incoming_cpu(connection: &impl AsRawFd) -> i32 {
    let (mut cpu, mut length) = (-1i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: `cpu` is written within its length.
    let result = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_INCOMING_CPU,
            (&raw mut cpu).cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    cpu
}

/// The number of CPUs, without further facts.
pub fn possible_cpus() -> Topology {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let highest = u32::try_from(cpus.max(2)).unwrap() * 4;
    Topology { possible: (0..highest).map(CpuId).collect(), ..Topology::default() }
}

/// Two CPUs or more, each with its own cache and node, so that every change of CPU is visible.
pub fn each_cpu_a_node() -> Topology {
    let cpus = u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap();
    cpus_of_nodes(cpus.max(2), 1)
}

/// This many CPUs, in groups with one node and one cache each.
pub fn cpus_of_nodes(cpus: u32, per_node: u32) -> Topology {
    let cpu = |number: u32| Cpu {
        cpu: CpuId(number),
        online: true,
        core: Some(number),
        package: Some(0),
        die: None,
        cluster: None,
        llc: Some(LlcId(number / per_node)),
        node: Some(NodeId(number / per_node)),
        siblings: CpuSet::new(),
        kind: None,
        capacity: None,
    };
    Topology {
        possible: (0..cpus).map(CpuId).collect(),
        cpus: (0..cpus).map(cpu).collect(),
        ..Topology::default()
    }
}

/// The result for [`nearpath_testing::counted`].
pub fn exactly<T: PartialEq + std::fmt::Debug>(
    found: T,
    right: T,
    m: &Measurement,
) -> Result<(), String> {
    if found == right {
        return Ok(());
    }
    let spans =
        m.spans.iter().map(|s| format!("{:?} {} -> {}: {}", s.direction, s.from, s.to, s.count));
    let spans: Vec<_> = spans.collect();
    let (packets, lost) = (m.packets, m.events_lost);
    Err(format!("{found:?}, not {right:?}: {packets:?}, {lost} events lost\n{}", spans.join("\n")))
}
