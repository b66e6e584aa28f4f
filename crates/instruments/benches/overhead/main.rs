//! What `measure stages` costs, beside a bpftrace script that does the same, and beside programs
//! that do nothing at the same tracepoints.
//!
//! One run, interleaved: every round takes the tools in turn, forwards and then backwards, on the
//! same load over the same veth pair. Two views of the cost:
//! - program time: what the kernel's run-time statistics say of the programs of each tool, for
//!   each run of a program (a stage) and for each packet. The accounting is in it for all alike,
//!   so the empty programs are the floor that is taken off;
//! - wall time: how much longer a fixed piece of work takes, attaching and all.
//!
//! Figures are medians over the rounds with the lowest and the highest round.

#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark prints its result"
)]

use libbpf_rs::query::ProgInfoIter;
use nearpath_host::{CpuId, Topology};
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::{Instrument, Packets};
use nearpath_testing::veth::{Side, VethPair};
use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Rounds forwards and backwards, each with every tool twice.
const ROUNDS: usize = 6;
/// Messages of one piece of work; each is a packet sent and a packet received.
const MESSAGES: usize = 60_000;
const BURST: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Nothing,
    Empty,
    Nearpath,
    Bpftrace,
}

const TOOLS: [Tool; 4] = [Tool::Nothing, Tool::Empty, Tool::Nearpath, Tool::Bpftrace];

/// One piece of work under one tool.
#[derive(Debug, Clone, Copy)]
struct Sample {
    tool: Tool,
    wall: Duration,
    runs: u64,
    run_ns: u64,
    packets: Packets,
}

impl Sample {
    fn ns_per_run(&self) -> f64 {
        self.run_ns as f64 / self.runs.max(1) as f64
    }

    /// For each packet as nearpath counts them: sent and received are two.
    fn ns_per_packet(&self) -> f64 {
        self.run_ns as f64 / (2 * MESSAGES) as f64
    }
}

fn main() -> io::Result<()> {
    // `cargo test --benches` only wants to know that it builds.
    if std::env::args().any(|a| a == "--test") {
        return Ok(());
    }
    let ready = [nearpath_testing::require_bpf(), nearpath_testing::require_netns()];
    let tools = ["bpftrace", "unshare"].map(nearpath_testing::require_program);
    if ready.into_iter().chain(tools).any(|there| !there) {
        println!("not measured: see the reason above");
        return Ok(());
    }
    // On for the whole run, so that every tool pays the accounting alike.
    // SAFETY: a system call without pointers, whose descriptor nobody else owns.
    let _statistics = unsafe {
        let fd = libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd)).ok_or_else(io::Error::last_os_error)?
    };
    let pair = VethPair::new(1)?;
    let loads: [(&str, Work); 2] = [("udp", udp(&pair)?), ("tcp", tcp(&pair)?)];
    for (name, mut work) in loads {
        work()?;
        let mut samples = Vec::new();
        for round in 0..ROUNDS {
            let order: Vec<Tool> = TOOLS.into_iter().chain(TOOLS.into_iter().rev()).collect();
            for tool in order {
                samples.push(sample(tool, &mut work)?);
            }
            eprintln!("{name}: round {} of {ROUNDS}", round + 1);
        }
        report(name, &samples);
    }
    Ok(())
}

type Work = Box<dyn FnMut() -> io::Result<()>>;

/// Bursts of datagrams from the client, each burst answered by one.
fn udp(pair: &VethPair) -> io::Result<Work> {
    let bind = |side: Side| {
        let socket = UdpSocket::bind((side.ipv4(), 0))?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(socket)
    };
    let (client, server) = (pair.run(Side::Client, bind)?, pair.run(Side::Server, bind)?);
    client.connect(server.local_addr()?)?;
    server.connect(client.local_addr()?)?;
    std::thread::spawn(move || -> io::Result<()> {
        server.set_read_timeout(None)?;
        let mut buffer = [0; 256];
        loop {
            for _ in 0..BURST {
                server.recv(&mut buffer)?;
            }
            server.send(&[1])?;
        }
    });
    Ok(Box::new(move || {
        for _ in 0..MESSAGES / (BURST + 1) {
            for _ in 0..BURST {
                client.send(&[0; 200])?;
            }
            client.recv(&mut [0; 8])?;
        }
        Ok(())
    }))
}

/// Requests and answers of one segment each.
fn tcp(pair: &VethPair) -> io::Result<Work> {
    let listener = pair.run(Side::Server, |side| TcpListener::bind((side.ipv4(), 0)))?;
    let address = listener.local_addr()?;
    let mut client = pair.run(Side::Client, |_| TcpStream::connect(address))?;
    let (mut server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    std::thread::spawn(move || -> io::Result<()> {
        let mut buffer = [0; 1000];
        loop {
            server.read_exact(&mut buffer)?;
            server.write_all(&buffer)?;
        }
    });
    Ok(Box::new(move || {
        let mut buffer = [0; 1000];
        for _ in 0..MESSAGES / 2 {
            client.write_all(&buffer)?;
            client.read_exact(&mut buffer)?;
        }
        Ok(())
    }))
}

fn sample(tool: Tool, work: &mut Work) -> io::Result<Sample> {
    let before: HashSet<u32> = ProgInfoIter::default().map(|p| p.id).collect();
    let mut stages = None;
    let mut bpftrace = None;
    match tool {
        Tool::Nothing => {}
        Tool::Bpftrace => bpftrace = Some(start_bpftrace()?),
        Tool::Empty | Tool::Nearpath => {
            let options = Options { empty: tool == Tool::Empty, ..Options::default() };
            let mut instrument = Stages::new(&topology(), options);
            instrument.start().map_err(io::Error::other)?;
            stages = Some(instrument);
        }
    }
    let totals = || {
        let programs = ProgInfoIter::default().filter(|p| !before.contains(&p.id));
        programs
            .filter(|p| p.name != "empty")
            .fold((0, 0), |(runs, ns), p| (runs + p.run_cnt, ns + p.run_time_ns))
    };
    let (runs, ns) = totals();
    let began = Instant::now();
    work()?;
    let wall = began.elapsed();
    let (runs_after, ns_after) = totals();
    let mut packets = Packets::default();
    if let Some(mut stages) = stages {
        packets = stages.stop().map_err(io::Error::other)?.packets;
    }
    if let Some(mut child) = bpftrace {
        stop(&mut child)?;
    }
    Ok(Sample {
        tool,
        wall,
        runs: runs_after.saturating_sub(runs),
        run_ns: ns_after.saturating_sub(ns),
        packets,
    })
}

fn topology() -> Topology {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let highest = u32::try_from(cpus).unwrap_or(1).next_power_of_two();
    Topology { possible: (0..highest).map(CpuId).collect(), ..Topology::default() }
}

/// Starts the script in a mount namespace of its own, where it finds the tracepoints' formats,
/// and waits until it says that all its probes are attached.
fn start_bpftrace() -> io::Result<Child> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/overhead.bt");
    let mut child = Command::new("unshare")
        .args(["--mount", "sh", "-c"])
        .arg("mount -t tracefs nodev /sys/kernel/tracing && exec bpftrace \"$0\"")
        .arg(script)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let output = child.stdout.take().ok_or_else(|| io::Error::other("no output"))?;
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next() {
        if line? == "ready" {
            // Its maps are printed at the end; somebody must read them.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok(child);
        }
    }
    child.wait()?;
    Err(io::Error::other("bpftrace ended before it was ready"))
}

fn stop(child: &mut Child) -> io::Result<()> {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
    child.wait().map(drop)
}

/// Median, lowest and highest.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
    (at(values.len() / 2), at(0), at(values.len().saturating_sub(1)))
}

fn report(load: &str, samples: &[Sample]) {
    let of = |tool: Tool, value: fn(&Sample) -> f64| -> Vec<f64> {
        samples.iter().filter(|s| s.tool == tool).map(value).collect()
    };
    let wall = |s: &Sample| s.wall.as_nanos() as f64 / (2 * MESSAGES) as f64;
    println!("{load}: {MESSAGES} packets sent and received, {} pieces of work each", 2 * ROUNDS);
    println!("  {:<9} {:>24} {:>24} {:>24}", "", "ns/stage", "ns/packet", "wall ns/packet");
    for tool in TOOLS {
        let cell = |(m, low, high): (f64, f64, f64)| format!("{m:.1} [{low:.1} {high:.1}]");
        println!(
            "  {:<9} {:>24} {:>24} {:>24}",
            format!("{tool:?}").to_lowercase(),
            cell(spread(of(tool, Sample::ns_per_run))),
            cell(spread(of(tool, Sample::ns_per_packet))),
            cell(spread(of(tool, wall))),
        );
    }
    // Rounds stand side by side, so each is compared with its own neighbours.
    let (empty, ours) =
        (of(Tool::Empty, Sample::ns_per_run), of(Tool::Nearpath, Sample::ns_per_run));
    let theirs = of(Tool::Bpftrace, Sample::ns_per_run);
    let net =
        |values: &[f64]| -> Vec<f64> { values.iter().zip(&empty).map(|(v, e)| v - e).collect() };
    let (added, low, high) = spread(net(&ours));
    println!(
        "  nearpath adds {added:.1} ns [{low:.1} {high:.1}] a stage to an empty program (goal: at most 60)"
    );
    let ratios = net(&ours).iter().zip(net(&theirs)).map(|(o, t)| o / t).collect();
    let (ratio, low, high) = spread(ratios);
    println!(
        "  nearpath / bpftrace: {ratio:.2} [{low:.2} {high:.2}] a stage, net of empty (goal: at most 0.50)"
    );
    let per_packet = of(Tool::Nearpath, Sample::ns_per_packet);
    let ratios = per_packet.iter().zip(of(Tool::Bpftrace, Sample::ns_per_packet));
    let (ratio, low, high) = spread(ratios.map(|(o, t)| o / t).collect());
    println!("  nearpath / bpftrace: {ratio:.2} [{low:.2} {high:.2}] a packet");
    let seen: Vec<_> = samples.iter().filter(|s| s.tool == Tool::Nearpath).collect();
    let started = seen.iter().map(|s| s.packets.started).min().unwrap_or(0);
    println!("  fewest packets that nearpath saw in a piece of work: {started}");
}
