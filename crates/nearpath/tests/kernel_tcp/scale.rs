//! 100,000 connections, and 20,000 new ones per second: run manually with a release build (`make bench-tcp`), as the
//! ratio to ss(8) is meaningless for a debug build.

#![allow(clippy::print_stdout, reason = "prints what was measured")]

use crate::{begin, can_run, ended};
use nearpath_testing::veth::{Side, VethPair};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Processes at each end; each may have some 20,000 descriptors.
const PROCESSES: usize = 6;
const EACH: usize = 17_000;

/// Accepts the connections of a port, and keeps them. Arguments: port, number.
const SERVER: &str = "
import resource, socket, sys, time
port, number = map(int, sys.argv[1:])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
listener = socket.create_server(('0.0.0.0', port), backlog=4096)
print('listens', flush=True)
kept = [listener.accept()[0] for _ in range(number)]
print('all', flush=True)
time.sleep(3600)
";

/// Connects. Arguments: address, port, number.
const CLIENT: &str = "
import resource, socket, sys, time
address, port, number = sys.argv[1], *map(int, sys.argv[2:])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
kept = [socket.create_connection((address, port)) for _ in range(number)]
print('all', flush=True)
time.sleep(3600)
";

/// Opens and closes. Arguments: address, port, seconds. Prints how many.
const CHURN: &str = "
import socket, struct, sys, time
address, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
count, end = 0, time.monotonic() + seconds
now = struct.pack('ii', 1, 0)
while time.monotonic() < end:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
    one.connect((address, port))
    one.close()
    count += 1
print(count, flush=True)
";

const ACCEPT: &str = "
import socket, sys
listener = socket.create_server(('0.0.0.0', int(sys.argv[1])), backlog=4096)
print('listens', flush=True)
while True:
    listener.accept()[0].close()
";

/// A process that is ended with its test.
struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn start(pair: &VethPair, side: Side, script: &str, args: &[String]) -> Self {
        let start = |_| {
            Command::new("python3").args(["-c", script]).args(args).stdout(Stdio::piped()).spawn()
        };
        let mut child = pair.run(side, start).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("it has ended").unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A figure of `/proc/PID/status` in KiB.
fn kib(child: &Child, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
#[ignore = "needs a release build: make bench-tcp"]
fn a_hundred_thousand_connections_are_dumped() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let mut running = Vec::new();
    for process in 0..PROCESSES {
        let (port, each) = ((7000 + process).to_string(), EACH.to_string());
        let mut server = Running::start(&pair, Side::Server, SERVER, &[port.clone(), each.clone()]);
        server.line();
        let address = Side::Server.ipv4().to_string();
        running.push((server, Running::start(&pair, Side::Client, CLIENT, &[address, port, each])));
    }
    for (server, client) in &mut running {
        assert_eq!((server.line(), client.line()), ("all".to_owned(), "all".to_owned()));
    }
    let connections = (PROCESSES * EACH) as u64;
    let ss = || {
        let began = Instant::now();
        let run = |_| Command::new("ss").args(["-tieHnm"]).stdout(Stdio::null()).status();
        assert!(pair.run(Side::Server, run).unwrap().success());
        began.elapsed()
    };
    let ss = (0..5).map(|_| ss()).min().unwrap();
    let child = begin(&pair, Side::Server, &["--top", "10", "--max-overhead", "none"]);
    // Several readings.
    std::thread::sleep(Duration::from_secs(8));
    // What the connections take is anonymous; the rest is the program's own file.
    let (peak_kib, own_kib) = (kib(&child, "VmHWM:"), kib(&child, "RssAnon:"));
    let document = ended(child);
    assert_eq!(document.total, connections);
    let cost = document.cost;
    let dump = cost.ns_per_socket.unwrap() * cost.sockets as f64 / cost.dumps as f64 / 1e9;
    let ratio = dump / ss.as_secs_f64();
    println!(
        "{connections} connections: {dump:.3} s a reading ({:.0} ns a socket), ss {:.3} s, ratio {ratio:.2}, \
         {} readings, {} MiB of its own, {} MiB at most with the program's file",
        cost.ns_per_socket.unwrap(),
        ss.as_secs_f64(),
        cost.dumps,
        own_kib / 1024,
        peak_kib / 1024
    );
    assert!(dump < 1.0 && ratio <= 0.7 && own_kib < 50 << 10);
}

#[test]
#[ignore = "needs a release build: make bench-tcp"]
fn no_connection_of_a_storm_is_missed() {
    if !can_run() || !nearpath_testing::require_bpf() {
        return;
    }
    const SECONDS: u64 = 5;
    let pair = VethPair::new(1).unwrap();
    let mut servers: Vec<Running> = (7000..7002)
        .map(|port: u16| Running::start(&pair, Side::Server, ACCEPT, &[port.to_string()]))
        .collect();
    servers.iter_mut().for_each(|server| assert_eq!(server.line(), "listens"));
    let child = begin(&pair, Side::Client, &["--top", "10"]);
    let address = Side::Server.ipv4().to_string();
    let clients: Vec<Running> = (7000..7002)
        .map(|port: u16| {
            let args = [address.clone(), port.to_string(), SECONDS.to_string()];
            Running::start(&pair, Side::Client, CHURN, &args)
        })
        .collect();
    let opened: u64 = clients.into_iter().map(|mut c| c.line().parse::<u64>().unwrap()).sum();
    let document = ended(child);
    let programs = document.cost.programs;
    println!(
        "{opened} connections, {} per second; {} seen, {} events lost, cost {programs:?}",
        opened / SECONDS,
        document.total,
        document.events_lost
    );
    assert_eq!((document.total, document.events_lost), (opened, 0));
}
