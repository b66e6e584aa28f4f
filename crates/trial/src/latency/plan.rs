//! What to probe, and how: plain data, validated before use.

use super::message::{SIZE_MAX, SIZE_MIN};
use super::{LatencyError, SocketOptions};
use crate::pacer::Arrivals;
use nearpath_model::CpuSet;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// The protocol that probes are sent over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// One message per datagram.
    Udp,
    /// Messages in a stream, without Nagle's algorithm.
    Tcp,
}

/// When the next probe is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loop {
    /// At its scheduled time, regardless of earlier probes; latency counts from that time.
    Open(Arrivals),
    /// After the previous one was answered or timed out; latency counts from the send call. With a rate, not
    /// before the scheduled time; otherwise immediately.
    Closed,
}

/// A latency benchmark.
#[derive(Debug, Clone)]
pub struct LatencyPlan {
    /// Address of the reflector.
    pub target: SocketAddr,
    /// UDP or TCP.
    pub transport: Transport,
    /// Open loop or ping-pong.
    pub mode: Loop,
    /// Probes per second, of all connections together; `None` in a closed loop: unlimited.
    pub rate_per_s: Option<u32>,
    /// Message length in bytes.
    pub size: u32,
    /// Connections, or UDP flows; each has a sending and a receiving thread (in a closed loop one thread for
    /// both).
    pub connections: u32,
    /// Duration of the warm-up, whose probes are not counted.
    pub warm_up: Duration,
    /// Duration of the measurement.
    pub duration: Duration,
    /// Latency above which an answer is late; also the timeout at the end, and per answer in a closed loop.
    pub late_after: Duration,
    /// Whether to request kernel timestamps.
    pub split: bool,
    /// Whether a datagram that comes back unchanged is an answer, too: that of an echo service (RFC 862).
    pub echo: bool,
    /// Whether to wait for send times by polling the clock instead of sleeping.
    pub spin: bool,
    /// CPUs for the threads; `None`: those of the caller.
    pub cpus: Option<CpuSet>,
    /// How long before its time each probe is handed to the kernel, with that time (SO_TXTIME); `None`: it is sent at its
    /// time.
    pub lead: Option<Duration>,
    /// Options of the sockets.
    pub options: SocketOptions,
}

/// Upper bound, as each connection needs two threads.
pub const MAX_CONNECTIONS: u32 = 256;
/// No thread sends faster than this.
pub const MAX_RATE_PER_S: u32 = 1_000_000;
/// The longest lead: qdiscs and sockets hold what was handed over.
pub const MAX_LEAD: Duration = Duration::from_secs(1);
/// Maximum number of probes that a flow remembers.
const WINDOW: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 20;

impl LatencyPlan {
    pub(super) fn check(&self) -> Result<(), LatencyError> {
        let wrong = |what: String| Err(LatencyError::Plan(what));
        let sizes = SIZE_MIN..=SIZE_MAX;
        if !usize::try_from(self.size).is_ok_and(|size| sizes.contains(&size)) {
            return wrong(format!("messages of {} bytes: {SIZE_MIN} to {SIZE_MAX}", self.size));
        }
        if !(1..=MAX_CONNECTIONS).contains(&self.connections) {
            return wrong(format!("{} connections: 1 to {MAX_CONNECTIONS}", self.connections));
        }
        if let Some(lead) = self.lead {
            if lead.is_zero() || lead > MAX_LEAD {
                return wrong(format!("a lead of {lead:?}: more than 0, at most {MAX_LEAD:?}"));
            }
            if self.transport != Transport::Udp || self.mode == Loop::Closed || !self.split {
                let needs = "scheduled transmission needs UDP, an open loop and time stamps";
                return wrong(needs.to_owned());
            }
        }
        match (self.rate_per_s, self.mode) {
            (Some(1..=MAX_RATE_PER_S), _) | (None, Loop::Closed) => Ok(()),
            (Some(rate), _) => wrong(format!("{rate} probes per second: 1 to {MAX_RATE_PER_S}")),
            (None, Loop::Open(_)) => wrong("an open loop needs a rate".to_owned()),
        }
    }

    /// Number of probes that each flow remembers: those sent in four times the timeout.
    pub(super) fn window(&self) -> usize {
        let rate = self.rate_per_s.unwrap_or(0) / self.connections.max(1);
        let probes = u128::from(rate) * self.late_after.as_millis() * 4 / 1000;
        let probes =
            u64::try_from(probes).unwrap_or(u64::MAX).clamp(*WINDOW.start(), *WINDOW.end());
        usize::try_from(probes.next_power_of_two()).unwrap_or(1 << 20)
    }
}
