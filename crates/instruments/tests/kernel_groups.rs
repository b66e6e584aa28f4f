//! `stages` by group on this kernel: each group must have exactly the packets that the test sent for
//! it, and the groups must add up to the whole.

mod common;

use common::{can_run, each_cpu_a_node, exactly, pin};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Filter, Grouping, Instrument, Sort};
use nearpath_model::{Direction, Group, Measurement, PathLatency, Per, Protocol, Span};
use nearpath_testing::counted;
use nearpath_testing::veth::{Side, VethPair};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// Datagrams of either flow; different, so that flows cannot be taken for one another.
const ROUNDS: [u64; 2] = [300, 200];

fn socket(pair: &VethPair, side: Side) -> UdpSocket {
    let socket = pair.run(side, |side| UdpSocket::bind((side.ipv4(), 0))).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Measures by group while `work` runs.
fn measure(
    pair: &VethPair,
    per: Per,
    top: usize,
    filter: &Filter,
    work: impl FnOnce(),
) -> Measurement {
    // Of the test's own namespaces: other tests send packets, too.
    let sent = filter.direction == Some(Direction::Tx);
    let side = if sent { Side::Client } else { Side::Server };
    let netns = u32::try_from(pair.inode(side).unwrap()).unwrap();
    let groups = Some(Grouping { per, top, sort: Sort::Packets });
    let filter = Filter { netns: Some(netns), ..filter.clone() };
    let mut stages =
        Stages::new(&each_cpu_a_node(), Options { filter, groups, ..Options::default() });
    stages.start().unwrap();
    work();
    let m = stages.stop().unwrap();
    assert_adds_up(&m);
    m
}

/// The groups' packets, and the latencies of each of their spans, are those of the whole.
fn assert_adds_up(m: &Measurement) {
    assert_counts_add_up(m);
    for span in &m.spans {
        let crossed: f64 =
            parts(m, span).iter().map(|p| p.other_cpu.unwrap() * p.count as f64).sum();
        let all = span.other_cpu.unwrap() * span.count as f64;
        assert!((crossed - all).abs() < 0.5, "{crossed} of {all}: {span:?}");
    }
}

/// Invariants that also hold under traffic.
fn assert_counts_add_up(m: &Measurement) {
    assert_eq!(m.groups.iter().map(|group| group.packets).sum::<u64>(), m.packets.started);
    for path in &m.paths {
        let same = |part: &&PathLatency| part.kind == path.kind;
        let parts = m.groups.iter().flat_map(|group| &group.paths).filter(same);
        assert_eq!(parts.map(|part| part.count).sum::<u64>(), path.count, "{path:?}");
    }
    for span in &m.spans {
        let parts = parts(m, span);
        let mut buckets: BTreeMap<u64, u64> = BTreeMap::new();
        for (upper_ns, count) in parts.iter().flat_map(|part| &part.buckets) {
            *buckets.entry(*upper_ns).or_default() += count;
        }
        assert_eq!(buckets.into_iter().collect::<Vec<_>>(), span.buckets, "{span:?}");
        assert_eq!(parts.iter().map(|part| part.count).sum::<u64>(), span.count);
        for part in parts {
            assert!(part.max_ns.is_none_or(|max| Some(max) <= span.max_ns), "{part:?}");
        }
    }
}

/// A span in each of the groups.
fn parts<'a>(m: &'a Measurement, of: &Span) -> Vec<&'a Span> {
    let same = |s: &&Span| (s.direction, &s.from, &s.to) == (of.direction, &of.from, &of.to);
    m.groups.iter().flat_map(|group| &group.spans).filter(same).collect()
}

/// Names and packets, in the order of the names.
fn packets(m: &Measurement) -> BTreeMap<&str, u64> {
    m.groups.iter().map(|group| (group.name.as_str(), group.packets)).collect()
}

/// Packets of a group that reached a stage, by any path.
fn arrived(group: &Group, to: &str) -> u64 {
    group.spans.iter().filter(|span| span.to == to).map(|span| span.count).sum()
}

/// Two clients and two servers; the server of each has read what its client sends when this returns.
struct Flows {
    pair: VethPair,
    sockets: [(UdpSocket, UdpSocket); 2],
}

impl Flows {
    fn new(queues: u32) -> Self {
        let pair = VethPair::new(queues).unwrap();
        let conversation = || {
            let (client, server) = (socket(&pair, Side::Client), socket(&pair, Side::Server));
            client.connect(server.local_addr().unwrap()).unwrap();
            (client, server)
        };
        // The very first packet waits for its neighbour's address.
        let (client, server) = conversation();
        client.send(b"ping").unwrap();
        server.recv_from(&mut [0; 64]).unwrap();
        Self { sockets: [conversation(), conversation()], pair }
    }

    fn name(&self, index: usize) -> String {
        let (client, server) = &self.sockets[index];
        format!("UDP {} > {}", client.local_addr().unwrap(), server.local_addr().unwrap())
    }

    /// From each client to its server.
    fn send(&self, rounds: [u64; 2]) {
        for ((client, server), rounds) in self.sockets.iter().zip(rounds) {
            for _ in 0..rounds {
                client.send(b"ping").unwrap();
                server.recv_from(&mut [0; 64]).unwrap();
            }
        }
    }

    fn received() -> Filter {
        Filter {
            protocol: Some(Protocol::Udp),
            direction: Some(Direction::Rx),
            ..Filter::default()
        }
    }
}

#[test]
fn each_flow_has_its_packets() {
    if !can_run() {
        return;
    }
    let flows = Flows::new(1);
    let names = [flows.name(0), flows.name(1)];
    counted(|| {
        let m = measure(&flows.pair, Per::Flow, 10, &Flows::received(), || flows.send(ROUNDS));
        let right = [(names[0].as_str(), ROUNDS[0]), (names[1].as_str(), ROUNDS[1])];
        exactly(packets(&m), right.into(), &m)?;
        exactly(m.groups[0].name.as_str(), &names[0], &m)?;
        for (group, rounds) in m.groups.iter().zip(ROUNDS) {
            exactly(arrived(group, "netif_receive_skb"), rounds, &m)?;
        }
        Ok(())
    });
    counted(|| {
        let m = measure(&flows.pair, Per::Flow, 1, &Flows::received(), || flows.send(ROUNDS));
        exactly(packets(&m), [(names[0].as_str(), ROUNDS[0]), ("others", ROUNDS[1])].into(), &m)
    });
}

#[test]
fn flows_that_do_not_fit_are_among_the_others() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let server = socket(&pair, Side::Server);
    let to = server.local_addr().unwrap();
    let exchange = |client: &UdpSocket| {
        client.send_to(b"ping", to).unwrap();
        server.recv_from(&mut [0; 64]).unwrap();
    };
    exchange(&socket(&pair, Side::Client));
    let many = 700;
    counted(|| {
        // All of them open at once, so that none gets another's port.
        let clients: Vec<_> = (0..many).map(|_| socket(&pair, Side::Client)).collect();
        let m = measure(&pair, Per::Flow, 600, &Flows::received(), || {
            clients.iter().for_each(exchange);
        });
        exactly(m.packets.started, many, &m)?;
        exactly(m.groups.len(), 512 + 1, &m)?;
        exactly(m.not_grouped.packets, many - 512, &m)?;
        exactly(packets(&m)["others"], many - 512, &m)
    });
}

#[test]
fn each_queue_has_its_packets() {
    if !can_run() {
        return;
    }
    let flows = Flows::new(2);
    let sent = Filter { direction: Some(Direction::Tx), ..Flows::received() };
    // A sender's queue is that of its CPU.
    let xps = |queue: usize| format!("queues/tx-{queue}/xps_cpus");
    for queue in 0..2 {
        flows.pair.write(Side::Client, &xps(queue), &format!("{:x}", 1 << queue)).unwrap();
    }
    counted(|| {
        let m = measure(&flows.pair, Per::Queue, 10, &sent, || {
            for (cpu, rounds) in [(0, [ROUNDS[0], 0]), (1, [0, ROUNDS[1]])] {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        pin(cpu);
                        flows.send(rounds);
                    });
                });
            }
        });
        let right = [("np0 tx-0", ROUNDS[0]), ("np0 tx-1", ROUNDS[1])];
        exactly(packets(&m), right.into(), &m)
    });
}

#[test]
fn each_cpu_has_the_spans_that_end_there() {
    if !can_run() {
        return;
    }
    let flows = Flows::new(1);
    for (per, names) in [(Per::Cpu, ["cpu 0", "cpu 1"]), (Per::Node, ["node 0", "node 1"])] {
        counted(|| {
            let m = measure(&flows.pair, per, 10, &Flows::received(), || {
                for (cpu, rounds) in [(0, [ROUNDS[0], 0]), (1, [0, ROUNDS[1]])] {
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            pin(cpu);
                            flows.send(rounds);
                        });
                    });
                }
            });
            exactly(packets(&m), names.into_iter().zip(ROUNDS).collect(), &m)?;
            for (name, rounds) in names.into_iter().zip(ROUNDS) {
                let group = m.groups.iter().find(|group| group.name == name).unwrap();
                exactly(arrived(group, "netif_receive_skb"), rounds, &m)?;
            }
            Ok(())
        });
    }
}

#[test]
fn groups_add_up_while_packets_pass() {
    if !can_run() {
        return;
    }
    let flows = answered_flows();
    let netns = u32::try_from(flows.pair.inode(Side::Server).unwrap()).unwrap();
    let filter = Filter { netns: Some(netns), ..Filter::default() };
    let over = AtomicBool::new(false);
    for per in [Per::Cpu, Per::Flow, Per::Process] {
        let groups = Some(Grouping { per, top: 1, sort: Sort::P99 });
        let options = Options { filter: filter.clone(), groups, ..Options::default() };
        let mut stages = Stages::new(&each_cpu_a_node(), options);
        stages.start().unwrap();
        over.store(false, SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(SeqCst) {
                    flows.send([5, 5]);
                }
            });
            let mut seen: Vec<Measurement> = Vec::new();
            while seen.iter().filter(|m| m.packets.started > 0).count() < 20 {
                seen.push(stages.read().unwrap());
            }
            over.store(true, SeqCst);
            seen.iter().for_each(assert_counts_add_up);
        });
    }
}

/// A child process that reads from a socket and answers, this many times.
fn read_in_child(server: &UdpSocket, rounds: u64) -> libc::pid_t {
    // SAFETY: the child calls nothing but read(), write() and _exit(), on descriptors that it
    // inherits.
    unsafe {
        match libc::fork() {
            0 => {
                let mut buffer = [0u8; 64];
                for _ in 0..rounds {
                    let at = buffer.as_mut_ptr().cast();
                    let fd = std::os::fd::AsRawFd::as_raw_fd(server);
                    if libc::read(fd, at, buffer.len()) < 0
                        || libc::write(fd, at.cast_const(), 4) < 0
                    {
                        libc::_exit(1);
                    }
                }
                libc::_exit(0)
            }
            child => child,
        }
    }
}

fn wait(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: waits for a child of ours; the status is written to.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
}

/// Two datagram conversations in which the server's end may be read by a child.
fn answered_flows() -> Flows {
    let flows = Flows::new(1);
    for (client, server) in &flows.sockets {
        server.connect(client.local_addr().unwrap()).unwrap();
    }
    flows
}

/// This many datagrams from the client, each answered.
fn ask(client: &UdpSocket, rounds: u64) {
    for _ in 0..rounds {
        client.send(b"ping").unwrap();
        client.recv(&mut [0; 64]).unwrap();
    }
}

#[test]
fn each_reader_has_its_packets() {
    if !can_run() {
        return;
    }
    let flows = answered_flows();
    counted(|| {
        let mut children = [0; 2];
        let m = measure(&flows.pair, Per::Process, 10, &Flows::received(), || {
            for (index, (client, server)) in flows.sockets.iter().enumerate() {
                children[index] = read_in_child(server, ROUNDS[index]);
                ask(client, ROUNDS[index]);
                wait(children[index]);
            }
        });
        let found: Vec<_> = m.groups.iter().map(|g| (pid_of(&g.name), g.packets)).collect();
        let right = [(Some(children[0]), ROUNDS[0]), (Some(children[1]), ROUNDS[1])];
        exactly(found, right.into(), &m)?;
        for (group, rounds) in m.groups.iter().zip(ROUNDS) {
            exactly(arrived(group, "netif_receive_skb"), rounds, &m)?;
            exactly(arrived(group, "sock_recv"), rounds, &m)?;
        }
        Ok(())
    });
}

fn pid_of(name: &str) -> Option<libc::pid_t> {
    name.rsplit_once('/')?.1.parse().ok()
}

#[test]
fn senders_have_their_packets_and_unread_ones_have_no_process() {
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
    let filter = Filter { protocol: Some(Protocol::Tcp), ..Filter::default() };
    let rounds = ROUNDS[0];
    counted(|| {
        let m = measure(&pair, Per::Process, 10, &filter, || {
            let mut buffer = [0; 64];
            for _ in 0..rounds {
                client.write_all(&[1; 64]).unwrap();
                server.read_exact(&mut buffer).unwrap();
                server.write_all(&buffer).unwrap();
                client.read_exact(&mut buffer).unwrap();
            }
        });
        // What the server reads and what it sends, with the acknowledgements that its kernel sends in
        // its name; those that it receives have no process.
        let own = i32::try_from(std::process::id()).unwrap();
        let mine = m.groups.iter().find(|group| pid_of(&group.name) == Some(own));
        let Some(mine) = mine else { return exactly(None, Some(own), &m) };
        exactly(arrived(mine, "skb_copy_datagram"), rounds, &m)?;
        exactly(mine.packets >= 2 * rounds, true, &m)?;
        let nobodys = m.groups.iter().filter(|group| group.name == "no process");
        exactly(nobodys.map(|group| arrived(group, "skb_copy_datagram")).sum::<u64>(), 0, &m)?;
        let others = packets(&m).get("others").copied().unwrap_or_default();
        exactly(others <= m.packets.abandoned, true, &m)
    });
}

/// A cgroup of the test's own.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Below the root of each hierarchy used for groups: the unified one, and version 1's cpu.
    fn everywhere() -> Vec<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let mut roots = Vec::new();
        for mount in mounts.lines() {
            let fields: Vec<&str> = mount.split(' ').collect();
            let [_, root, kind, options, ..] = fields[..] else { continue };
            if kind == "cgroup2" || (kind == "cgroup" && options.split(',').any(|o| o == "cpu")) {
                roots.push(root);
            }
        }
        let name = format!("nearpath-test-{}", std::process::id());
        let inside = |kind: &str| format!("{name}-{kind}");
        let make = |(index, root): (usize, &&str)| {
            let path = PathBuf::from(root).join(inside(&index.to_string())).join("inner");
            std::fs::create_dir_all(&path).ok()?;
            Some(Self(path))
        };
        roots.iter().enumerate().filter_map(make).collect()
    }

    /// As the kernel knows it, from the root of its hierarchy.
    fn name(&self) -> String {
        let mut names = self.0.components().rev().take(2);
        let mut next = || names.next().unwrap().as_os_str().to_string_lossy().into_owned();
        let (inner, outer) = (next(), next());
        format!("/{outer}/{inner}")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
        let _ = self.0.parent().map(std::fs::remove_dir);
    }
}

#[test]
fn each_cgroup_has_its_packets() {
    if !can_run() {
        return;
    }
    let cgroups = Cgroup::everywhere();
    if cgroups.is_empty() {
        nearpath_testing::skip("no cgroup can be made");
        return;
    }
    let flows = answered_flows();
    let (client, server) = &flows.sockets[0];
    for cgroup in &cgroups {
        counted(|| {
            let m = measure(&flows.pair, Per::Cgroup, 10, &Flows::received(), || {
                // The child waits for its first datagram until it is in the cgroup.
                let child = read_in_child(server, ROUNDS[0]);
                std::fs::write(cgroup.0.join("cgroup.procs"), child.to_string()).unwrap();
                ask(client, ROUNDS[0]);
                wait(child);
            });
            exactly(packets(&m), [(cgroup.name().as_str(), ROUNDS[0])].into(), &m)
        });
    }
}
