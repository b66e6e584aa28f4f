//! Load that others make beside a benchmark: streams of iperf3, as they are known.
//!
//! In goes what to send where, out comes what was carried. The clients are processes of their own, so that
//! they take CPU time and memory as another program does; [`Servers`] is the other side. None of them
//! outlives this process.

mod iperf3;

#[doc(hidden)]
pub use iperf3::carried as parse_iperf3;

use crate::process::{Binding, Process};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The port of iperf3's server for TCP; that for UDP is the next one, as a server takes one client at a time.
pub const LOAD_PORT: u16 = 5201;
/// So many streams iperf3 takes.
pub const MAX_STREAMS: u16 = 128;
/// A client that has not ended after that was let in. (iperf3 tells only in the end.)
const LET_IN: Duration = Duration::from_millis(400);
/// A server takes one client at a time, and now and then none while it ends one: so long is tried again.
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(200);
/// What a client takes beyond its time to exchange results.
const RESULTS: Duration = Duration::from_secs(5);

/// The protocol of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Streams.
    Tcp,
    /// Datagrams.
    Udp,
}

/// A load to put on a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Background {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Where the server runs.
    pub target: IpAddr,
    /// The port of the server for TCP.
    pub base_port: u16,
    /// Streams at a time.
    pub streams: u16,
    /// Of each stream; `None`: as fast as it goes.
    pub bits_per_s: Option<u64>,
    /// From the server to here instead of there.
    pub reverse: bool,
}

/// What a load carried.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Carried {
    /// How long.
    pub seconds: f64,
    /// What was sent, of all streams.
    pub sent_bits_per_s: f64,
    /// What arrived.
    pub received_bits_per_s: f64,
    /// Of TCP, where the kernel tells: segments that were sent once more.
    pub retransmits: Option<u64>,
    /// Of UDP: datagrams that did not arrive.
    pub lost_percent: Option<f64>,
}

/// A load and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BackgroundReport {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Where the server runs.
    pub target: IpAddr,
    /// Its port.
    pub port: u16,
    /// Streams.
    pub streams: u16,
    /// Of each stream, as asked; `None`: as fast as it goes.
    pub asked_bits_per_s: Option<u64>,
    /// Whether from the server to here.
    pub reverse: bool,
    /// What it carried; `None` when it failed.
    pub carried: Option<Carried>,
    /// Why there was no load, or not all the time.
    pub failure: Option<String>,
}

/// Load that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    /// There is no iperf3.
    #[error("load is made by iperf3, which is not installed (on Debian: apt-get install iperf3)")]
    Missing,
    /// It was refused, again and again.
    #[error(
        "no load to {target} port {port}: {reason}; is 'nearpath bench reflect --load' running there?"
    )]
    Refused {
        /// Where to.
        target: IpAddr,
        /// The port.
        port: u16,
        /// What iperf3 said.
        reason: String,
    },
    /// The server ended at once.
    #[error("iperf3 cannot listen on {address} port {port}: {reason}")]
    Listen {
        /// Where.
        address: IpAddr,
        /// The port.
        port: u16,
        /// What iperf3 said.
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
    /// One stream as fast as it goes.
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

/// A load at work. Dropped it ends.
#[derive(Debug)]
pub struct Loading {
    load: Background,
    process: Process,
    until: Instant,
}

impl Loading {
    /// Starts a load for so long, and waits until the server has taken it.
    ///
    /// # Errors
    /// No iperf3, no server, or one that stays busy.
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
                // Ended well, and yet sooner than it was told to.
                Ok(_) => "iperf3 ended at once".to_owned(),
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

    /// Whether it is at work no more.
    pub fn has_ended(&mut self) -> bool {
        self.process.has_ended()
    }

    /// Waits for its end, which has a time, and tells what it carried. To be called when what it was to
    /// disturb is done; `early`: it is ended now.
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
            Ok(_) if !ended_itself => (None, Some("iperf3 did not end in time".to_owned())),
            Ok(ended) => match iperf3::carried(&ended.out) {
                Ok(carried) => (Some(carried), None),
                Err(_) if early => (None, Some("ended early".to_owned())),
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
    line.map_or("it said nothing".to_owned(), |line| line.trim().to_owned())
}

/// iperf3's servers, one for each address and protocol. Dropped they end.
#[derive(Debug)]
pub struct Servers(Vec<(IpAddr, u16, Process)>);

impl Servers {
    /// Starts them.
    ///
    /// # Errors
    /// No iperf3, or a port that is taken.
    pub fn start(addresses: &[IpAddr], base_port: u16) -> Result<Self, BackgroundError> {
        let mut servers = Vec::new();
        for &address in addresses {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let port = port(base_port, protocol);
                let process = start(&iperf3::server(address, port))?;
                servers.push((address, port, process));
            }
        }
        // One that cannot listen ends at once.
        std::thread::sleep(LET_IN);
        let failed = servers.iter_mut().position(|(_, _, process)| process.has_ended());
        if let Some(index) = failed {
            let (address, port, process) = servers.swap_remove(index);
            let reason = last_line(&process.end()?.err);
            return Err(BackgroundError::Listen { address, port, reason });
        }
        Ok(Self(servers))
    }

    /// Where they listen.
    pub fn addresses(&self) -> Vec<(IpAddr, u16)> {
        self.0.iter().map(|(address, port, _)| (*address, *port)).collect()
    }

    /// Starts those anew that have ended; to be called now and then.
    ///
    /// # Errors
    /// One cannot be started.
    pub fn revive(&mut self) -> Result<(), BackgroundError> {
        for (address, port, process) in &mut self.0 {
            if process.has_ended() {
                *process = start(&iperf3::server(*address, *port))?;
            }
        }
        Ok(())
    }
}
