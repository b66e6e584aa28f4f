//! Connections whose limit is made: each interval must name it.

use crate::{can_run, connect, listen, measured};
use nearpath_model::tcp::{TcpLimit, TcpMeasurement};
use nearpath_testing::veth::{Side, VethPair};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads that run until this is dropped.
struct Scene {
    pair: VethPair,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    sockets: Vec<TcpStream>,
}

impl Scene {
    fn new() -> Self {
        let pair = VethPair::new(1).unwrap();
        Self { pair, over: Arc::default(), threads: Vec::new(), sockets: Vec::new() }
    }

    /// A client that calls `send`, and a server that calls `receive`, again and again, until one fails.
    fn connection(
        &mut self,
        mut send: impl FnMut(&mut TcpStream) -> std::io::Result<()> + Send + 'static,
        mut receive: impl FnMut(&mut TcpStream) -> std::io::Result<()> + Send + 'static,
    ) -> u16 {
        let listener = listen(&self.pair);
        let (client, server) = connect(&self.pair, &listener);
        let port = listener.local_addr().unwrap().port();
        for socket in [&client, &server] {
            self.sockets.push(socket.try_clone().unwrap());
        }
        let (over, ended) = (Arc::clone(&self.over), Arc::clone(&self.over));
        let (mut client, mut server) = (client, server);
        self.threads.push(std::thread::spawn(move || {
            while !over.load(SeqCst) && send(&mut client).is_ok() {}
        }));
        self.threads.push(std::thread::spawn(move || {
            while !ended.load(SeqCst) && receive(&mut server).is_ok() {}
        }));
        port
    }

    /// The verdicts of each interval, as seen from one side.
    fn verdicts(&self, side: Side, port: u16) -> Vec<Option<TcpLimit>> {
        let port = port.to_string();
        let args = ["--port", &port, "--for", "5s", "--interval", "250ms"];
        let mut documents = measured(&self.pair, side, &args);
        documents.pop();
        let limit = |document: &TcpMeasurement| {
            let [connection] = document.connections.as_slice() else { panic!("{document:?}") };
            connection.verdict.as_ref().map(|verdict| verdict.limit)
        };
        documents.iter().map(limit).collect()
    }

    /// At least 95% of the intervals must name the limit. A busy machine takes CPUs away from either end, which is then
    /// another limit, so it may be tried again.
    fn assert_limited(&self, side: Side, port: u16, by: TcpLimit) {
        nearpath_testing::up_to(3, || {
            let verdicts = self.verdicts(side, port);
            let right = verdicts.iter().filter(|limit| **limit == Some(by)).count();
            if verdicts.len() >= 19 && right * 20 >= verdicts.len() * 19 {
                return Ok(());
            }
            Err(format!("{by:?}: {verdicts:?}"))
        });
    }
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

fn send_all(socket: &mut TcpStream) -> std::io::Result<()> {
    socket.write_all(&[1; 65_536])
}

fn read_all(socket: &mut TcpStream) -> std::io::Result<()> {
    match socket.read(&mut [0; 65_536])? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

#[test]
fn an_application_that_pauses() {
    if !can_run() {
        return;
    }
    let mut scene = Scene::new();
    let paused = |socket: &mut TcpStream| {
        std::thread::sleep(Duration::from_millis(20));
        socket.write_all(&[1; 4096])
    };
    let port = scene.connection(paused, read_all);
    scene.assert_limited(Side::Client, port, TcpLimit::Application);
    scene.assert_limited(Side::Server, port, TcpLimit::Peer);
}

#[test]
fn an_application_that_reads_slowly() {
    if !can_run() {
        return;
    }
    let mut scene = Scene::new();
    let slow = |socket: &mut TcpStream| {
        std::thread::sleep(Duration::from_millis(10));
        socket.read_exact(&mut [0; 2048])
    };
    let port = scene.connection(send_all, slow);
    scene.assert_limited(Side::Client, port, TcpLimit::Reader);
    scene.assert_limited(Side::Server, port, TcpLimit::Reader);
}

/// The same with a buffer so small that the window closes at once, and opens only when it is nearly empty.
#[test]
fn an_application_that_reads_slowly_from_a_small_buffer() {
    if !can_run() {
        return;
    }
    let mut scene = Scene::new();
    let slow = |socket: &mut TcpStream| {
        rustix::net::sockopt::set_socket_recv_buffer_size(&*socket, 8192)?;
        std::thread::sleep(Duration::from_millis(20));
        socket.read_exact(&mut [0; 2000])
    };
    let port = scene.connection(send_all, slow);
    scene.assert_limited(Side::Client, port, TcpLimit::Reader);
    if nearpath_testing::require_kernel((6, 2), "the window that is offered") {
        scene.assert_limited(Side::Server, port, TcpLimit::Reader);
    }
}

#[test]
fn a_path_with_a_rate() {
    if !can_run() || !nearpath_testing::require_program("tc") {
        return;
    }
    let mut scene = Scene::new();
    let shaper = "qdisc add dev np0 root tbf rate 20mbit burst 32kb latency 50ms";
    let run = |_| Ok(Command::new("tc").args(shaper.split(' ')).output()?.status.success());
    if !scene.pair.run(Side::Client, run).unwrap() {
        nearpath_testing::skip("this kernel has no qdisc tbf");
        return;
    }
    let port = scene.connection(send_all, read_all);
    scene.assert_limited(Side::Client, port, TcpLimit::Path);
    scene.assert_limited(Side::Server, port, TcpLimit::Peer);
}

/// Keeps the calling thread on a CPU.
fn stay_on(cpu: usize) {
    let mut cpus = rustix::thread::CpuSet::new();
    cpus.set(cpu);
    rustix::thread::sched_setaffinity(None, &cpus).unwrap();
}

fn has_two_cpus() -> bool {
    let enough = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() >= 2);
    if !enough {
        nearpath_testing::skip("only one CPU");
    }
    enough
}

/// The reader shares its CPU with threads that never sleep.
#[test]
fn a_reader_that_waits_for_its_cpu() {
    if !can_run() || !has_two_cpus() {
        return;
    }
    let mut scene = Scene::new();
    for _ in 0..5 {
        let over = Arc::clone(&scene.over);
        scene.threads.push(std::thread::spawn(move || {
            stay_on(1);
            while !over.load(SeqCst) {
                std::hint::spin_loop();
            }
        }));
    }
    let mut is_pinned = false;
    let pinned = move |socket: &mut TcpStream| {
        if !std::mem::replace(&mut is_pinned, true) {
            stay_on(1);
        }
        read_all(socket)
    };
    let port = scene.connection(send_all, pinned);
    scene.assert_limited(Side::Server, port, TcpLimit::Cpu);
}

/// Datagrams that many sockets receive keep the CPU that processes the packets of the connection in softirqs.
#[test]
fn a_cpu_that_is_busy_with_softirqs() {
    if !can_run() || !has_two_cpus() || !nearpath_testing::require_bpf() {
        return;
    }
    const GROUP: std::net::Ipv4Addr = std::net::Ipv4Addr::new(239, 1, 1, 1);
    let mut scene = Scene::new();
    for side in [Side::Client, Side::Server] {
        scene.pair.write(side, "queues/rx-0/rps_cpus", "2").unwrap();
    }
    let std::net::IpAddr::V4(local) = Side::Server.ipv4() else { unreachable!() };
    let receivers: Vec<std::net::UdpSocket> = (0..100)
        .map(|_| {
            let socket = scene.pair.run(Side::Server, |_| {
                let udp = rustix::net::socket(
                    rustix::net::AddressFamily::INET,
                    rustix::net::SocketType::DGRAM,
                    None,
                )?;
                rustix::net::sockopt::set_socket_reuseaddr(&udp, true)?;
                let any = std::net::SocketAddr::from(([0, 0, 0, 0], 7500));
                rustix::net::bind(&udp, &any)?;
                Ok(std::net::UdpSocket::from(udp))
            });
            let socket = socket.unwrap();
            socket.join_multicast_v4(&GROUP, &local).unwrap();
            socket
        })
        .collect();
    let std::net::IpAddr::V4(source) = Side::Client.ipv4() else { unreachable!() };
    let flood = scene.pair.run(Side::Client, |_| std::net::UdpSocket::bind((source, 0))).unwrap();
    let over = Arc::clone(&scene.over);
    let bound = flood.try_clone().unwrap();
    rustix::net::sockopt::set_ip_multicast_if(&bound, &source).unwrap();
    scene.threads.push(std::thread::spawn(move || {
        stay_on(0);
        while !over.load(SeqCst) {
            // A full queue is no error here.
            let _ = flood.send_to(&[0; 32], (GROUP, 7500));
        }
    }));
    let port = scene.connection(send_all, read_all);
    // The kernel's own count says whether the scene came about: the flood needs a CPU, too.
    let before = ticks(1);
    scene.verdicts(Side::Client, port);
    let after = ticks(1);
    let share = (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
    if share < 0.95 {
        nearpath_testing::skip(&format!("a busy machine: {share:.2} of a CPU's time in softirqs"));
        return;
    }
    scene.assert_limited(Side::Client, port, TcpLimit::Cpu);
    drop(receivers);
}

/// Ticks of a CPU in interrupts and softirqs, and in all (proc_stat(5)).
fn ticks(cpu: usize) -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("cpu{cpu} "))).unwrap();
    let times: Vec<u64> = line.split(' ').skip(1).map(|time| time.parse().unwrap()).collect();
    (times[5] + times[6], times.iter().take(8).sum())
}
