//! Connections whose limit is made: each interval must name it.

use crate::{can_run, connect, listen, measured};
use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpMeasurement};
use nearpath_testing::veth::{Side, VethPair};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Threads that run until this is dropped.
pub struct Scene {
    pub pair: VethPair,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    sockets: Vec<TcpStream>,
}

impl Scene {
    pub fn new() -> Self {
        let pair = VethPair::new(1).unwrap();
        Self { pair, over: Arc::default(), threads: Vec::new(), sockets: Vec::new() }
    }

    /// A client that calls `send`, and a server that calls `receive`, again and again, until one fails.
    pub fn connection(
        &mut self,
        send: impl FnMut(&mut TcpStream) -> std::io::Result<()> + Send + 'static,
        receive: impl FnMut(&mut TcpStream) -> std::io::Result<()> + Send + 'static,
    ) -> u16 {
        let listener = listen(&self.pair);
        let (client, server) = connect(&self.pair, &listener);
        let port = listener.local_addr().unwrap().port();
        for socket in [&client, &server] {
            self.sockets.push(socket.try_clone().unwrap());
        }
        self.again_and_again(client, send);
        self.again_and_again(server, receive);
        port
    }

    /// The client's end and the server's of the last connection.
    pub fn ends(&self) -> [TcpStream; 2] {
        let [.., client, server] = self.sockets.as_slice() else { panic!("no connection") };
        [client, server].map(|end| end.try_clone().unwrap())
    }

    /// A thread that does this with an end of a connection until it fails.
    pub fn again_and_again(
        &mut self,
        mut end: TcpStream,
        mut what: impl FnMut(&mut TcpStream) -> std::io::Result<()> + Send + 'static,
    ) {
        let over = Arc::clone(&self.over);
        self.threads.push(std::thread::spawn(move || {
            have_priority();
            while !over.load(SeqCst) && what(&mut end).is_ok() {}
        }));
    }

    /// As [`shape`].
    pub fn shape(&self, side: Side, qdisc: &str) -> bool {
        shape(&self.pair, side, qdisc)
    }

    /// Threads of this process that never sleep, all on one CPU.
    fn keep_busy(&mut self, cpu: usize, threads: usize) {
        for _ in 0..threads {
            let over = Arc::clone(&self.over);
            self.threads.push(std::thread::spawn(move || {
                stay_on(cpu);
                while !over.load(SeqCst) {
                    std::hint::spin_loop();
                }
            }));
        }
    }

    /// The connection in each interval, as seen from one side.
    fn intervals(&self, side: Side, port: u16) -> Vec<TcpConnection> {
        let port = port.to_string();
        let args = ["--port", &port, "--for", "5s", "--interval", "250ms"];
        let mut documents = measured(&self.pair, side, &args);
        documents.pop();
        let connection = |document: TcpMeasurement| {
            let [connection] = document.connections.as_slice() else { panic!("{document:?}") };
            connection.clone()
        };
        documents.into_iter().map(connection).collect()
    }

    /// At least 95% of the intervals must name the limit that is known from a side, all sides at once.
    pub fn assert_limited(&self, port: u16, wanted: &[(Side, TcpLimit)]) {
        let look = |(side, by): (Side, TcpLimit)| {
            let intervals = self.intervals(side, port);
            let is_wrong = |c: &&TcpConnection| c.verdict.as_ref().is_none_or(|v| v.limit != by);
            let wrong: Vec<_> = intervals.iter().filter(is_wrong).map(evidence).collect();
            if intervals.len() >= 19 && wrong.len() * 20 <= intervals.len() {
                return Ok(());
            }
            let (few, all) = (wrong.len(), intervals.len());
            Err(format!("{}: not {by:?} in {few} of {all}: {wrong:#?}", side.device()))
        };
        at_once(wanted, look).into_iter().collect::<Result<(), String>>().unwrap();
    }
}

/// What is found from each side, at the same time.
pub fn at_once<By: Copy + Send + Sync, Found: Send>(
    sides: &[By],
    look: impl Fn(By) -> Found + Sync,
) -> Vec<Found> {
    std::thread::scope(|scope| {
        let look = &look;
        let begun: Vec<_> = sides.iter().map(|&one| scope.spawn(move || look(one))).collect();
        begun.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// Why an interval has its verdict.
fn evidence(c: &TcpConnection) -> String {
    format!(
        "{:?}, limits {:?}, RTT {:?} of at least {:?}, deviation {:?}, window {:?}, in flight {:?} of {:?}, queues {} {}",
        c.verdict,
        c.limits,
        c.rtt_ns,
        c.min_rtt_ns,
        c.rttvar_ns,
        c.send_window_bytes,
        c.in_flight,
        c.cwnd,
        c.send_queue_bytes,
        c.receive_queue_bytes
    )
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        for socket in &self.sockets {
            // It may have ended already.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// Gives what a side sends the rate of a bottleneck; `false` if this kernel cannot.
pub fn shape(pair: &VethPair, side: Side, qdisc: &str) -> bool {
    let tc = format!("qdisc add dev {} root {qdisc}", side.device());
    let run = |_| Ok(Command::new("tc").args(tc.split(' ')).output()?.status.success());
    let is_shaped = pair.run(side, run).unwrap();
    if !is_shaped {
        nearpath_testing::skip("this kernel has no qdisc tbf");
    }
    is_shaped
}

pub fn send_all(socket: &mut TcpStream) -> std::io::Result<()> {
    socket.write_all(&[1; 65_536])
}

pub fn read_all(socket: &mut TcpStream) -> std::io::Result<()> {
    match socket.read(&mut [0; 65_536])? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

#[test]
fn an_application_that_pauses() {
    if !nearpath_testing::require_lengthy() || !can_run() {
        return;
    }
    let mut scene = Scene::new();
    let paused = |socket: &mut TcpStream| {
        std::thread::sleep(Duration::from_millis(20));
        socket.write_all(&[1; 4096])
    };
    let port = scene.connection(paused, read_all);
    scene.assert_limited(
        port,
        &[(Side::Client, TcpLimit::Application), (Side::Server, TcpLimit::Peer)],
    );
}

#[test]
fn an_application_that_reads_slowly() {
    if !nearpath_testing::require_lengthy() || !can_run() {
        return;
    }
    let mut scene = Scene::new();
    let slow = |socket: &mut TcpStream| {
        std::thread::sleep(Duration::from_millis(10));
        socket.read_exact(&mut [0; 2048])
    };
    let port = scene.connection(send_all, slow);
    scene.assert_limited(
        port,
        &[(Side::Client, TcpLimit::Reader), (Side::Server, TcpLimit::Reader)],
    );
}

/// The same with a buffer so small that the window closes at once, and opens only when it is nearly empty.
#[test]
fn an_application_that_reads_slowly_from_a_small_buffer() {
    if !nearpath_testing::require_lengthy() || !can_run() {
        return;
    }
    let mut scene = Scene::new();
    let slow = |socket: &mut TcpStream| {
        rustix::net::sockopt::set_socket_recv_buffer_size(&*socket, 8192)?;
        std::thread::sleep(Duration::from_millis(20));
        socket.read_exact(&mut [0; 2000])
    };
    let port = scene.connection(send_all, slow);
    let mut wanted = vec![(Side::Client, TcpLimit::Reader)];
    if nearpath_testing::require_kernel((6, 2), "the window that is offered") {
        wanted.push((Side::Server, TcpLimit::Reader));
    }
    scene.assert_limited(port, &wanted);
}

#[test]
fn a_path_with_a_rate() {
    if !nearpath_testing::require_lengthy()
        || !can_run()
        || !nearpath_testing::require_program("tc")
    {
        return;
    }
    let mut scene = Scene::new();
    if !scene.shape(Side::Client, "tbf rate 20mbit burst 32kb latency 50ms") {
        return;
    }
    let port = scene.connection(send_all, read_all);
    scene.assert_limited(port, &[(Side::Client, TcpLimit::Path), (Side::Server, TcpLimit::Peer)]);
}

/// Keeps the calling thread on a CPU.
pub fn stay_on(cpu: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}

/// The calling thread goes before those of other programs, which may keep its CPU busy.
pub fn have_priority() {
    rustix::process::setpriority_process(None, -20).unwrap();
}

pub fn has_two_cpus() -> bool {
    let enough = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2);
    if !enough {
        nearpath_testing::skip("only one CPU");
    }
    enough
}

/// The reader shares its CPU with threads that never sleep.
#[test]
fn a_reader_that_waits_for_its_cpu() {
    if !nearpath_testing::require_lengthy() || !can_run() || !has_two_cpus() {
        return;
    }
    let mut scene = Scene::new();
    scene.keep_busy(1, 5);
    let mut is_pinned = false;
    let pinned = move |socket: &mut TcpStream| {
        if !std::mem::replace(&mut is_pinned, true) {
            stay_on(1);
            rustix::process::setpriority_process(None, 0)?;
        }
        read_all(socket)
    };
    let port = scene.connection(send_all, pinned);
    scene.assert_limited(port, &[(Side::Server, TcpLimit::Cpu)]);
}

/// A reader that shares its CPU with one that never sleeps, but keeps up with what the path lets through.
#[test]
fn a_reader_that_shares_its_cpu_and_keeps_up_is_not_the_limit() {
    if !nearpath_testing::require_lengthy()
        || !can_run()
        || !has_two_cpus()
        || !nearpath_testing::require_program("tc")
    {
        return;
    }
    let mut scene = Scene::new();
    if !scene.shape(Side::Client, "tbf rate 200mbit burst 64kb latency 50ms") {
        return;
    }
    scene.keep_busy(1, 2);
    let mut is_pinned = false;
    let read = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&read);
    let pinned = move |socket: &mut TcpStream| {
        if !std::mem::replace(&mut is_pinned, true) {
            stay_on(1);
            rustix::process::setpriority_process(None, 5)?;
        }
        let bytes = socket.read(&mut [0; 65_536])?;
        count.fetch_add(bytes as u64, SeqCst);
        if bytes > 0 { Ok(()) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
    };
    let port = scene.connection(send_all, pinned);
    // What it reads says whether the scene came about.
    let (before, began) = (read.load(SeqCst), Instant::now());
    scene.intervals(Side::Server, port);
    let rate = (read.load(SeqCst) - before) as f64 * 8.0 / began.elapsed().as_secs_f64();
    if rate < 0.9 * 200e6 {
        nearpath_testing::skip(&format!("a busy machine: {rate:.0} bit/s are read"));
        return;
    }
    scene.assert_limited(port, &[(Side::Client, TcpLimit::Path), (Side::Server, TcpLimit::Peer)]);
}

/// Its siblings wait for a CPU all the time, the reader itself does not: it sleeps.
#[test]
fn a_slow_reader_whose_siblings_wait_for_their_cpu() {
    if !nearpath_testing::require_lengthy()
        || !can_run()
        || !has_two_cpus()
        || !nearpath_testing::require_bpf()
    {
        return;
    }
    let mut scene = Scene::new();
    scene.keep_busy(1, 5);
    let waited = Arc::new(AtomicU64::new(0));
    let mut is_first = true;
    let of_reader = Arc::clone(&waited);
    let slow = move |socket: &mut TcpStream| {
        if std::mem::replace(&mut is_first, false) {
            stay_on(0);
        }
        of_reader.store(wait_of_this_thread(), SeqCst);
        std::thread::sleep(Duration::from_millis(10));
        socket.read_exact(&mut [0; 2048])
    };
    let port = scene.connection(send_all, slow);
    // The kernel's own count says whether the scene came about.
    let (before, began) = (waited.load(SeqCst), Instant::now());
    scene.intervals(Side::Server, port);
    let share = (waited.load(SeqCst) - before) as f64 / began.elapsed().as_nanos() as f64;
    if share > 0.2 {
        nearpath_testing::skip(&format!("a busy machine: the reader waits {share:.2} of the time"));
        return;
    }
    scene.assert_limited(port, &[(Side::Server, TcpLimit::Reader)]);
}

/// How long the calling thread has waited for a CPU so far, in nanoseconds.
fn wait_of_this_thread() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

/// Datagrams that many sockets receive keep the CPU that processes the packets of the connection in softirqs.
#[test]
fn a_cpu_that_is_busy_with_softirqs() {
    if !nearpath_testing::require_lengthy()
        || !can_run()
        || !has_two_cpus()
        || !nearpath_testing::require_bpf()
    {
        return;
    }
    let mut scene = Scene::new();
    let flood = Flood::new(&scene.pair);
    let port = scene.connection(send_all, read_all);
    // The kernel's own count says whether the scene came about: the flood needs a CPU, too.
    let before = ticks(1);
    scene.intervals(Side::Client, port);
    let after = ticks(1);
    let share = (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
    if share < 0.95 {
        nearpath_testing::skip(&format!("a busy machine: {share:.2} of a CPU's time in softirqs"));
        return;
    }
    scene.assert_limited(port, &[(Side::Client, TcpLimit::Cpu)]);
    drop(flood);
}

/// Datagrams from CPU 0 that 100 sockets receive, which keeps CPU 1 in softirqs, until this is dropped. It processes all
/// packets of the pair.
pub struct Flood {
    over: Arc<AtomicBool>,
    sender: Option<JoinHandle<()>>,
    _receivers: Vec<UdpSocket>,
}

impl Flood {
    pub fn new(pair: &VethPair) -> Self {
        const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);
        for side in [Side::Client, Side::Server] {
            pair.write(side, "queues/rx-0/rps_cpus", "2").unwrap();
        }
        let (IpAddr::V4(local), IpAddr::V4(source)) = (Side::Server.ipv4(), Side::Client.ipv4())
        else {
            unreachable!()
        };
        let receiver = |_| {
            let family = rustix::net::AddressFamily::INET;
            let udp = rustix::net::socket(family, rustix::net::SocketType::DGRAM, None)?;
            rustix::net::sockopt::set_socket_reuseaddr(&udp, true)?;
            rustix::net::bind(&udp, &SocketAddr::from(([0, 0, 0, 0], 7500)))?;
            let socket = UdpSocket::from(udp);
            socket.join_multicast_v4(&GROUP, &local)?;
            Ok(socket)
        };
        let receivers = (0..100).map(|_| pair.run(Side::Server, receiver).unwrap()).collect();
        let socket = pair.run(Side::Client, |_| UdpSocket::bind((source, 0))).unwrap();
        rustix::net::sockopt::set_ip_multicast_if(&socket, &source).unwrap();
        let over: Arc<AtomicBool> = Arc::default();
        let ended = Arc::clone(&over);
        let sender = std::thread::spawn(move || {
            stay_on(0);
            while !ended.load(SeqCst) {
                // A full queue is no error here.
                let _ = socket.send_to(&[0; 32], (GROUP, 7500));
            }
        });
        Self { over, sender: Some(sender), _receivers: receivers }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        self.sender.take().map(JoinHandle::join).transpose().unwrap();
    }
}

/// Ticks of a CPU in interrupts and softirqs, and in all (proc_stat(5)).
fn ticks(cpu: usize) -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("cpu{cpu} "))).unwrap();
    let times: Vec<u64> = line.split(' ').skip(1).map(|time| time.parse().unwrap()).collect();
    (times[5] + times[6], times.iter().take(8).sum())
}
