//! The cost of `measure stages`, compared with peers that measure the same with a hash map, and with empty
//! programs at the same tracepoints.
//!
//! The tools are interleaved: every round runs all tools, forwards and then backwards, each with the same piece
//! of work twice:
//! - without the kernel's run-time statistics, for throughput and CPU time;
//! - with them, for the time of the programs. The accounting affects all tools equally, so the empty programs
//!   are the baseline that is subtracted.
//!
//! Options: `--rounds N`; `--scale X`, less work than for a real machine; `--load NAME` and `--tool NAME`,
//! repeatable, to select some of them; `--ovs`, through ports of an Open vSwitch bridge instead of a veth pair;
//! `--programs`, the cost of each program.

#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark prints its result"
)]

mod load;
mod report;
mod tools;

use libbpf_rs::query::ProgInfoIter;
use load::Load;
use nearpath_model::locality::Method;
use nearpath_testing::veth::VethPair;
use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Instant;
use tools::{Measured, Scripts, Tool};

/// One piece of work under one tool.
#[derive(Debug, Clone)]
pub struct Sample {
    tool: Tool,
    /// Duration of the work, and its CPU time, including interrupts and softirqs.
    wall_ns: f64,
    cpu_ns: f64,
    /// Runs of programs in the second piece of work, and their time.
    runs: u64,
    run_ns: u64,
    /// The same per program.
    programs: Programs,
    /// Stages passed in one piece of work, as counted by nearpath.
    passes: u64,
    /// How `measure locality` observed packets.
    method: Option<Method>,
}

/// Runs of programs and their time, by name.
type Programs = BTreeMap<String, (u64, u64)>;

impl Sample {
    fn ns_per_run(&self) -> f64 {
        self.run_ns as f64 / self.runs as f64
    }
}

struct Settings {
    rounds: usize,
    scale: f64,
    loads: Vec<String>,
    tools: Vec<Tool>,
    ovs: bool,
    programs: bool,
}

fn main() -> io::Result<()> {
    // `cargo test --benches` only checks that it builds.
    if std::env::args().any(|a| a == "--test") {
        return Ok(());
    }
    let settings = settings()?;
    if !nearpath_testing::require_bpf() || !nearpath_testing::require_netns() {
        println!("not measured: for the reason above");
        return Ok(());
    }
    let scripts = Scripts::write(settings.ovs)?;
    let mut tools = settings.tools;
    tools.retain(|tool| match tool.available() {
        Ok(()) => true,
        Err(reason) => {
            println!("without {}: {reason}", tool.name());
            false
        }
    });
    let pair = if settings.ovs { VethPair::in_ovs()? } else { VethPair::new(1)? };
    for mut load in load::loads(&pair, settings.scale)? {
        if !settings.loads.is_empty() && !settings.loads.iter().any(|name| name == load.name) {
            continue;
        }
        (load.work)()?;
        let mut samples = Vec::new();
        for round in 0..settings.rounds {
            for &tool in tools.iter().chain(tools.iter().rev()) {
                samples.push(sample(tool, &mut load, &scripts)?);
            }
            eprintln!("{}: round {} of {}", load.name, round + 1, settings.rounds);
        }
        report::print(&load, &tools, &samples);
        if settings.programs {
            report::print_programs(&load, &tools, &samples);
        }
    }
    Ok(())
}

fn settings() -> io::Result<Settings> {
    let bad = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    let mut settings = Settings {
        rounds: 6,
        scale: 1.0,
        loads: vec![],
        tools: vec![],
        ovs: false,
        programs: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| bad(format!("{word} needs a value")));
        match word.as_str() {
            "--rounds" => settings.rounds = value()?.parse().map_err(io::Error::other)?,
            "--scale" => settings.scale = value()?.parse().map_err(io::Error::other)?,
            "--load" => settings.loads.push(value()?),
            "--tool" => {
                let name = value()?;
                let tool = Tool::ALL.into_iter().find(|tool| tool.name() == name);
                settings.tools.push(tool.ok_or_else(|| bad(format!("no such tool: {name}")))?);
            }
            "--ovs" => settings.ovs = true,
            "--programs" => settings.programs = true,
            // Added by cargo.
            "--bench" => {}
            other => return Err(bad(format!("no such option: {other}"))),
        }
    }
    if settings.tools.is_empty() {
        settings.tools = Tool::ALL.to_vec();
    }
    Ok(settings)
}

fn sample(tool: Tool, load: &mut Load, scripts: &Scripts) -> io::Result<Sample> {
    let before: HashSet<u32> = ProgInfoIter::default().map(|p| p.id).collect();
    let running = tool.start(scripts)?;
    let pieces = tool.pieces();
    let mut work = || (0..pieces).try_for_each(|_| (load.work)());
    let began = (Instant::now(), cpu_ns());
    work()?;
    let (wall, cpu) = (began.0.elapsed() / pieces, (cpu_ns() - began.1) / f64::from(pieces));
    let statistics = statistics()?;
    let earlier = programs(&before);
    work()?;
    let mut programs = programs(&before);
    drop(statistics);
    for (name, (runs, ns)) in &mut programs {
        let (runs_before, ns_before) = earlier.get(name).copied().unwrap_or_default();
        *runs = (*runs - runs_before) / u64::from(pieces);
        *ns = (*ns - ns_before) / u64::from(pieces);
    }
    let measured = running.stop()?;
    let (passes, method) = match measured {
        Measured::Nothing => (0, None),
        Measured::Stages(m) => {
            (m.packets.started + m.spans.iter().map(|span| span.count).sum::<u64>(), None)
        }
        Measured::Locality(method) => (0, Some(method)),
    };
    Ok(Sample {
        tool,
        wall_ns: wall.as_nanos() as f64,
        cpu_ns: cpu,
        runs: programs.values().map(|(runs, _)| runs).sum(),
        run_ns: programs.values().map(|(_, ns)| ns).sum(),
        programs,
        passes: passes / 2 / u64::from(pieces),
        method,
    })
}

/// Runs of the programs loaded since an earlier reading.
fn programs(before: &HashSet<u32>) -> Programs {
    let mut programs = Programs::new();
    for program in ProgInfoIter::default() {
        let name = program.name.to_string_lossy();
        if !before.contains(&program.id) && name != "empty" {
            let (runs, ns) = programs.entry(name.into_owned()).or_default();
            *runs += program.run_cnt;
            *ns += program.run_time_ns;
        }
    }
    programs
}

/// The kernel's run-time statistics of BPF programs, enabled as long as the descriptor is open.
fn statistics() -> io::Result<OwnedFd> {
    // SAFETY: a system call without pointers, whose descriptor has no other owner.
    unsafe {
        let fd = libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd)).ok_or_else(io::Error::last_os_error)
    }
}

/// CPU time of this process, which is both ends of the load, including softirqs that run in its context.
fn cpu_ns() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
