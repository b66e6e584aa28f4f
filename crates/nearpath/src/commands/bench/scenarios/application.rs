//! The application of a scenario: it is started with the scenario's binding, measured, and stopped.

use super::own_path;
use crate::interrupt::Interrupt;
use anyhow::{Context, anyhow, bail};
use nearpath_host::parse::parse_memory_maps;
use nearpath_host::{NetnsRef, Root, in_netns};
use nearpath_instruments::ProcessEvents;
use nearpath_model::NodeId;
use nearpath_model::memory::NodeBytes;
use nearpath_trial::background::{
    Background, BackgroundError, BackgroundReport, Loading, Protocol,
};
use nearpath_trial::latency::{
    Arrivals, LatencyPlan, Loop, SocketOptions, Transport, measure_latency,
};
use nearpath_trial::process::{Binding, Process};
use nearpath_trial::requests::{RequestPlan, measure_requests};
use nearpath_trial::scenarios::Measured;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// How long an application may take to listen, and how often that is checked.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(20);
/// Size of a probe in bytes.
const SIZE: u32 = 64;

/// What to start, and how to measure it.
pub(super) struct Application<'a> {
    /// A program and its arguments; empty: `nearpath bench reflect`.
    pub(super) command: &'a [String],
    pub(super) target: SocketAddr,
    /// The node of the NIC.
    pub(super) node: Option<NodeId>,
    /// Network namespace that probes are sent from; `None`: the current one.
    pub(super) from: Option<NetnsRef>,
    /// The request sent to a command.
    pub(super) request: Option<Vec<u8>>,
    pub(super) rate: u32,
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
    /// How long it may take until the target answers.
    pub(super) patience: Duration,
}

impl Application<'_> {
    /// Its name in the report.
    pub(super) fn name(&self) -> String {
        if self.command.is_empty() {
            return "nearpath bench reflect".to_owned();
        }
        self.command.join(" ")
    }

    /// Starts it with the binding, measures it for one block, and stops it.
    pub(super) fn measure(
        &self,
        binding: &Binding,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Measured> {
        self.run(binding, interrupt, |pid| {
            let misses = ProcessEvents::cache_misses(pid).ok();
            let measured = self.probe(interrupt)?;
            let memory_elsewhere = self.node.and_then(|node| elsewhere(pid, node));
            let cache_misses = misses.and_then(|mut misses| misses.count().ok());
            Ok(Measured { memory_elsewhere, cache_misses, ..measured })
        })
    }

    /// Starts it with the binding, calls with its process id once the target answers, and stops it.
    pub(super) fn run<T>(
        &self,
        binding: &Binding,
        interrupt: &Interrupt,
        probe: impl FnOnce(u32) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        if self.reach().is_ok() {
            bail!("{} is already in use", self.target);
        }
        let (program, arguments) = self.command()?;
        let mut process = Process::start(&program, &arguments, binding)
            .with_context(|| format!("cannot start {program}"))?;
        let measured = match self.wait_until_it_listens(&mut process, interrupt) {
            Ok(()) => probe(process.id()),
            Err(error) => Err(error),
        };
        let ended = process.has_ended();
        let left = process.end().context("waiting for the application")?;
        if !ended {
            return measured;
        }
        let said = String::from_utf8_lossy(&left.err);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        Err(anyhow!("{program} exited ({}); its last output: {last}", left.status))
    }

    fn command(&self) -> anyhow::Result<(String, Vec<String>)> {
        if let Some((program, arguments)) = self.command.split_first() {
            return Ok((program.clone(), arguments.to_vec()));
        }
        let (address, port) = (self.target.ip().to_string(), self.target.port().to_string());
        let words = ["bench", "reflect", "--bind", &address, "--port", &port];
        Ok((own_path()?, words.map(str::to_owned).to_vec()))
    }

    /// Connects once from the namespace that probes are sent from.
    fn reach(&self) -> anyhow::Result<()> {
        let target = self.target;
        self.there(|| TcpStream::connect_timeout(&target, Duration::from_secs(1)).map(drop))?
            .with_context(|| format!("connecting to {target}"))
    }

    fn wait_until_it_listens(
        &self,
        process: &mut Process,
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            let Err(error) = self.reach() else { return Ok(()) };
            if process.has_ended() || begin.elapsed() > self.patience {
                return Err(error);
            }
            if interrupt.wait(AGAIN) {
                bail!("stopped early by a signal");
            }
        }
    }

    pub(super) fn probe(&self, interrupt: &Interrupt) -> anyhow::Result<Measured> {
        if let Some(request) = &self.request {
            let plan = RequestPlan {
                target: self.target,
                request: request.clone(),
                rate_per_s: self.rate,
                warm_up: self.warm_up,
                duration: self.duration,
            };
            let answered = self.there(|| measure_requests(&plan, &|| !interrupt.happened()))?;
            let answered =
                answered.with_context(|| format!("sending requests to {}", self.target))?;
            let (sent, lost, histogram) = (answered.sent, answered.lost, answered.histogram);
            let seconds = self.duration.as_secs_f64();
            return Ok(Measured { sent, lost, seconds, histogram, ..Measured::default() });
        }
        let plan = LatencyPlan {
            target: self.target,
            transport: Transport::Udp,
            mode: Loop::Open(Arrivals::Constant),
            rate_per_s: Some(self.rate),
            size: SIZE,
            connections: 1,
            warm_up: self.warm_up,
            duration: self.duration,
            late_after: Duration::from_secs(1),
            split: false,
            echo: false,
            spin: false,
            lead: None,
            cpus: None,
            options: SocketOptions::default(),
        };
        let should_continue = |wait: Duration| !interrupt.wait(wait);
        let report =
            self.there(|| measure_latency(&plan, None, &should_continue, &mut |_| {}))??;
        Ok(Measured {
            sent: report.sent,
            lost: report.lost,
            seconds: report.duration_s,
            histogram: report.histogram,
            ..Measured::default()
        })
    }

    /// Bits per second of a TCP stream to the target's iperf3 server, for the duration of a block.
    pub(super) fn bandwidth(&self, interrupt: &Interrupt) -> anyhow::Result<f64> {
        let load = Background::new(Protocol::Tcp, self.target.ip());
        // Started and waited for by one thread, as the client ends with it.
        let report = self.there(|| -> Result<BackgroundReport, BackgroundError> {
            let loading = Loading::start(&load, self.duration)?;
            let is_early = interrupt.wait(self.duration);
            Ok(loading.finish(is_early))
        })??;
        match (report.carried, report.failure) {
            (Some(carried), _) => Ok(carried.received_bits_per_s),
            (None, failure) => {
                Err(anyhow!(failure.unwrap_or("iperf3 reported nothing".to_owned())))
            }
        }
    }

    /// Runs in the namespace that probes are sent from.
    fn there<T: Send>(&self, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        match &self.from {
            None => Ok(work()),
            Some(from) => in_netns(from, |_| work()).context("cannot use the network namespace"),
        }
    }
}

/// Share of a process's own memory that is not on a node; `None` if it is unknown. Pages of files do not count: they
/// are where the first reader of the program was, which no placement changes. Nor do its children.
fn elsewhere(pid: u32, node: NodeId) -> Option<f64> {
    let maps = Root::live().read(&format!("/proc/{pid}/numa_maps")).ok()?;
    let nodes = parse_memory_maps(&maps).ok()?.nodes;
    let own = |bytes: &NodeBytes| bytes.total().saturating_sub(bytes.file_bytes);
    let all: u64 = nodes.values().map(own).sum();
    let here = nodes.get(&node).map_or(0, own);
    (all > 0).then(|| (all - here) as f64 / all as f64)
}

/// Resolves C escape sequences.
pub(in crate::commands) fn unescaped(text: &str) -> anyhow::Result<Vec<u8>> {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find('\\') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        bytes.extend_from_slice(before.as_bytes());
        let (byte, length) = match after.chars().next() {
            Some('n') => (b'\n', 1),
            Some('r') => (b'\r', 1),
            Some('t') => (b'\t', 1),
            Some('0') => (0, 1),
            Some('\\') => (b'\\', 1),
            Some('x') => {
                let digits = after.get(1..3).unwrap_or_default();
                let byte = u8::from_str_radix(digits, 16);
                (byte.map_err(|_| anyhow!("--request: \\x needs two hexadecimal digits"))?, 3)
            }
            _ => bail!("--request: unknown escape; use \\\\, \\r, \\n, \\t, \\0 or \\xNN"),
        };
        bytes.push(byte);
        rest = &after[length..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    if bytes.is_empty() {
        bail!("--request is empty");
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_use_c_escapes() {
        assert_eq!(unescaped(r"GET / HTTP/1.0\r\n\r\n").unwrap(), b"GET / HTTP/1.0\r\n\r\n");
        assert_eq!(unescaped(r"\x00\xfFé\\\t").unwrap(), b"\x00\xff\xc3\xa9\\\t");
        for bad in ["", r"\", r"\q", r"\x", r"\x1", r"\xé9", r"\xzz"] {
            assert!(unescaped(bad).is_err(), "{bad}");
        }
    }
}
