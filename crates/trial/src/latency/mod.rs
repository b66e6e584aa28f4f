//! Latency of a path: a prober sends probes, a reflector answers them.
//!
//! ```text
//! prober                                            reflector
//!   schedule ─► sender thread ── probe ──► UDP, TCP ──► reads, writes its times in
//!                 slots (send times, stamps)                    │
//!   tally   ◄─ receiver thread ◄───────── answer ───────────────┘
//! ```
//! Input: a [`LatencyPlan`]. Output: a [`LatencyReport`]. In an open loop each probe has an intended send time.
//! A late probe is still sent, and its latency counts from the intended time: a stall of the path shows in
//! every probe that was due during it.

mod deviations;
mod distribution;
mod flow;
mod loops;
mod message;
mod plan;
mod prober;
mod probing;
mod reflector;
mod report;
mod sequence;
mod slots;
mod sockets;
mod split;
mod tally;
mod txtime;

pub use crate::pacer::Arrivals;
pub use distribution::Summary;
pub(crate) use distribution::{Distribution, samples_beyond};
pub use message::{Kind, Message, SIZE_MAX, SIZE_MIN, Turn};
pub use plan::{LatencyPlan, Loop, MAX_CONNECTIONS, MAX_LEAD, MAX_RATE_PER_S, Transport};
pub use prober::{Marked, measure_latency, measure_marked};
pub use probing::{Probes, Probing};
pub use reflector::{REFLECT_SCHEMA, Reflected, Reflector, ReflectorPlan};
pub use report::{LATENCY_SCHEMA, LatencyReport, Progress};
pub use sockets::SocketOptions;
pub(crate) use sockets::make_room;
pub use split::Split;

use std::io;

/// A latency that cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum LatencyError {
    /// The plan is invalid.
    #[error("{0}")]
    Plan(String),
    /// The kernel refused, or the peer went away.
    #[error("{what}: {reason}")]
    Io {
        /// The operation: `connecting to 10.0.0.1:6327`.
        what: String,
        /// The error.
        reason: io::Error,
    },
}

impl LatencyError {
    /// For `map_err`: adds the operation.
    fn of(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |reason| Self::Io { what, reason }
    }
}

#[cfg(test)]
mod tests;
