//! What to probe, and how: plain data, checked before use.

use super::message::{SIZE_MAX, SIZE_MIN};
use super::schedule::Arrivals;
use super::{LatencyError, SocketOptions};
use nearpath_model::CpuSet;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// The protocol that probes are sent over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// A datagram is a message.
    Udp,
    /// Messages follow each other, without Nagle's algorithm.
    Tcp,
}

/// When the next probe is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loop {
    /// At its time, whatever has become of those before it; latency counts from that time.
    Open(Arrivals),
    /// When the one before it was answered or given up; latency counts from the call that sends.
    /// With a rate no sooner than at its time, else at once.
    Closed,
}

/// A latency benchmark.
#[derive(Debug, Clone)]
pub struct LatencyPlan {
    /// Where the reflector listens.
    pub target: SocketAddr,
    /// UDP or TCP.
    pub transport: Transport,
    /// Open loop or ping-pong.
    pub mode: Loop,
    /// Probes per second, of all connections together; `None` in a closed loop: as fast as it goes.
    pub rate_per_s: Option<u32>,
    /// Bytes of a message.
    pub size: u32,
    /// Connections, or flows of UDP; each has a thread that sends and one that receives (in a closed
    /// loop one for both).
    pub connections: u32,
    /// How long probes are sent that are not counted, before those that are.
    pub warm_up: Duration,
    /// How long probes are sent that are counted.
    pub duration: Duration,
    /// From when on an answer is late; so long is waited for answers at the end, and for each
    /// answer in a closed loop.
    pub late_after: Duration,
    /// Whether to ask the kernel for stamps.
    pub split: bool,
    /// Whether to wait for send times by looking at the clock all the time instead of sleeping.
    pub spin: bool,
    /// CPUs for the threads; `None`: where the caller may run.
    pub cpus: Option<CpuSet>,
    /// Options of the sockets.
    pub options: SocketOptions,
}

/// More connections than two threads each is a good way for.
pub const MAX_CONNECTIONS: u32 = 256;
/// Faster than this no thread sends.
pub const MAX_RATE_PER_S: u32 = 1_000_000;
/// Probes that a flow remembers.
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
        match (self.rate_per_s, self.mode) {
            (Some(1..=MAX_RATE_PER_S), _) | (None, Loop::Closed) => Ok(()),
            (Some(rate), _) => wrong(format!("{rate} probes per second: 1 to {MAX_RATE_PER_S}")),
            (None, Loop::Open(_)) => wrong("an open loop without a rate".to_owned()),
        }
    }

    /// Probes that each flow remembers: those of four times what an answer may take.
    pub(super) fn window(&self) -> usize {
        let rate = self.rate_per_s.unwrap_or(0) / self.connections.max(1);
        let probes = u128::from(rate) * self.late_after.as_millis() * 4 / 1000;
        let probes =
            u64::try_from(probes).unwrap_or(u64::MAX).clamp(*WINDOW.start(), *WINDOW.end());
        usize::try_from(probes.next_power_of_two()).unwrap_or(1 << 20)
    }
}
