//! Background load beside a benchmark: iperf3 streams.
//!
//! Input: the load and its target. Output: the data transferred. The clients are separate processes, so that
//! they use CPU time and memory like any other program; [`Servers`] is the other side. None of them outlives
//! this process.

mod iperf3;

#[doc(hidden)]
pub use iperf3::carried as parse_iperf3;

use crate::process::{Binding, Process};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The port of iperf3's TCP server; the UDP server uses the next one, as a server accepts one client at a time.
pub const LOAD_PORT: u16 = 5201;
/// Maximum number of iperf3 streams.
pub const MAX_STREAMS: u16 = 128;
/// A client that is still running after this was accepted. (iperf3 reports only at its end.)
const LET_IN: Duration = Duration::from_millis(400);
/// A server accepts one client at a time, and may refuse while one ends: retry for this long.
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(200);
/// Time that a client needs beyond its duration to exchange results.
const RESULTS: Duration = Duration::from_secs(5);

/// The protocol of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// TCP streams.
    Tcp,
    /// UDP datagrams.
    Udp,
}

/// A load to put on a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Background {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Address of the server.
    pub target: IpAddr,
    /// The port of the server for TCP.
    pub base_port: u16,
    /// Number of parallel streams.
    pub streams: u16,
    /// Rate of each stream; `None`: unlimited.
    pub bits_per_s: Option<u64>,
    /// Whether it is sent from the server to this host.
    pub reverse: bool,
}

/// The result of a load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Carried {
    /// Duration.
    pub seconds: f64,
    /// Bytes sent, by all streams.
    pub sent_bits_per_s: f64,
    /// Bytes received.
    pub received_bits_per_s: f64,
    /// TCP: retransmitted segments, if reported.
    pub retransmits: Option<u64>,
    /// UDP: lost datagrams.
    pub lost_percent: Option<f64>,
}

/// A load and its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackgroundReport {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Address of the server.
    pub target: IpAddr,
    /// Its port.
    pub port: u16,
    /// Streams.
    pub streams: u16,
    /// Requested rate of each stream; `None`: unlimited.
    pub asked_bits_per_s: Option<u64>,
    /// Whether it was sent from the server to this host.
    pub reverse: bool,
    /// The result; `None` if it failed.
    pub carried: Option<Carried>,
    /// Why there was no load, or not all the time.
    pub failure: Option<String>,
}

/// A load that cannot be generated.
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    /// iperf3 is not installed.
    #[error(
        "background load requires iperf3, which is not installed (on Debian: apt-get install iperf3)"
    )]
    Missing,
    /// It was refused at each attempt.
    #[error(
        "no load to {target} port {port}: {reason}; is 'nearpath bench reflect --load' running there?"
    )]
    Refused {
        /// The address.
        target: IpAddr,
        /// The port.
        port: u16,
        /// The error of iperf3.
        reason: String,
    },
    /// The server exited immediately.
    #[error("iperf3 cannot listen on {address} port {port}: {reason}")]
    Listen {
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// The error of iperf3.
        reason: String,
    },
    /// It could not be started or waited for.
    #[error("iperf3: {0}")]
    Io(io::Error),
}

impl From<io::Error> for BackgroundError {
    fn from(reason: io::Error) -> Self {
        if reason.kind() == io::ErrorKind::NotFound { Self::Missing } else { Self::Io(reason) }
    }
}

impl Background {
    /// One stream, unlimited.
    pub fn new(protocol: Protocol, target: IpAddr) -> Self {
        let (base_port, streams, bits_per_s, reverse) = (LOAD_PORT, 1, None, false);
        Self { protocol, target, base_port, streams, bits_per_s, reverse }
    }

    /// The port of the server for this protocol.
    pub fn port(&self) -> u16 {
        port(self.base_port, self.protocol)
    }
}

fn port(base: u16, protocol: Protocol) -> u16 {
    base.saturating_add(u16::from(protocol == Protocol::Udp))
}

/// A running load, terminated on drop.
#[derive(Debug)]
pub struct Loading {
    load: Background,
    process: Process,
    until: Instant,
}

impl Loading {
    /// Starts a load with this duration, and waits until the server has accepted it.
    ///
    /// # Errors
    /// No iperf3, no server, or a server that stays busy.
    pub fn start(load: &Background, time: Duration) -> Result<Self, BackgroundError> {
        let begin = Instant::now();
        loop {
            let mut process = start(&iperf3::client(load, time))?;
            let until = Instant::now() + time;
            if !process.wait(LET_IN) {
                return Ok(Self { load: load.clone(), process, until });
            }
            let ended = process.end()?;
            let reason = match iperf3::carried(&ended.out) {
                // Exited successfully, but earlier than requested.
                Ok(_) => "iperf3 exited immediately".to_owned(),
                Err(_) if ended.out.is_empty() => last_line(&ended.err),
                Err(reason) => reason,
            };
            if begin.elapsed() > PATIENCE {
                let (target, port) = (load.target, load.port());
                return Err(BackgroundError::Refused { target, port, reason });
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Whether it is no longer running.
    pub fn has_ended(&mut self) -> bool {
        self.process.has_ended()
    }

    /// Waits for its end, up to a timeout, and returns its result. To be called when the benchmark is done;
    /// `early`: terminate it now.
    pub fn finish(mut self, early: bool) -> BackgroundReport {
        let too_short = self.process.has_ended();
        if early {
            self.process.interrupt();
        }
        let left = self.until.saturating_duration_since(Instant::now());
        let ended_itself = self.process.wait(if early { RESULTS } else { left + RESULTS });
        let Background { protocol, target, streams, bits_per_s, reverse, .. } = self.load;
        let port = self.load.port();
        let (carried, failure) = match self.process.end() {
            Ok(_) if !ended_itself => (None, Some("iperf3 did not exit in time".to_owned())),
            Ok(ended) => match iperf3::carried(&ended.out) {
                Ok(carried) => (Some(carried), None),
                Err(_) if early => (None, Some("terminated early".to_owned())),
                Err(_) if ended.out.is_empty() => (None, Some(last_line(&ended.err))),
                Err(reason) => (None, Some(reason)),
            },
            Err(reason) => (None, Some(reason.to_string())),
        };
        let ended_before = too_short.then(|| "it ended before the last probe".to_owned());
        BackgroundReport {
            protocol,
            target,
            port,
            streams,
            asked_bits_per_s: bits_per_s,
            reverse,
            carried,
            failure: failure.or(ended_before),
        }
    }
}

fn start(arguments: &[String]) -> io::Result<Process> {
    Process::start(iperf3::PROGRAM, arguments, &Binding::default())
}

/// The last line that is not empty.
fn last_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    line.map_or("no output".to_owned(), |line| line.trim().to_owned())
}

/// iperf3 servers, one per address and protocol, terminated on drop.
#[derive(Debug)]
pub struct Servers(Vec<(IpAddr, u16, Process)>);

impl Servers {
    /// Starts the servers.
    ///
    /// # Errors
    /// No iperf3, or a port that is in use.
    pub fn start(addresses: &[IpAddr], base_port: u16) -> Result<Self, BackgroundError> {
        let mut servers = Vec::new();
        for &address in addresses {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let port = port(base_port, protocol);
                let process = start(&iperf3::server(address, port))?;
                servers.push((address, port, process));
            }
        }
        // A server that cannot listen exits immediately.
        std::thread::sleep(LET_IN);
        let failed = servers.iter_mut().position(|(_, _, process)| process.has_ended());
        if let Some(index) = failed {
            let (address, port, process) = servers.swap_remove(index);
            let reason = last_line(&process.end()?.err);
            return Err(BackgroundError::Listen { address, port, reason });
        }
        Ok(Self(servers))
    }

    /// The addresses on which they listen.
    pub fn addresses(&self) -> Vec<(IpAddr, u16)> {
        self.0.iter().map(|(address, port, _)| (*address, *port)).collect()
    }

    /// Restarts servers that have exited; to be called periodically.
    ///
    /// # Errors
    /// A server cannot be started.
    pub fn revive(&mut self) -> Result<(), BackgroundError> {
        for (address, port, process) in &mut self.0 {
            if process.has_ended() {
                *process = start(&iperf3::server(*address, *port))?;
            }
        }
        Ok(())
    }
}
