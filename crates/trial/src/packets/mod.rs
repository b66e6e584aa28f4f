//! Packets per second between two hosts, interfaces or namespaces, with loss and the cost of each packet.
//!
//! ```text
//! prober                                              sink
//!   control ──────── TCP: prepare, begin, end ────────► control ─► counts, drops, CPU time
//!   sender thread of each flow ── UDP, numbered ──────► receiver thread of each flow
//! ```
//! Input: a [`PacketsPlan`]. Output: a [`PacketsReport`]. Nothing is answered, so that only one direction is
//! measured; loss is known by sequence numbers, and kernel counters show where packets were dropped.

mod batch;
mod kernel;
mod order;
mod plan;
mod prober;
mod receiver;
mod report;
mod search;
mod sender;
mod sink;
mod wire;

pub use kernel::{CpuCost, DeviceDrops, Kernel};
pub use plan::{MAX_FLOWS, MAX_PACKETS_PER_S, Offered, PACKET_MAX, PACKET_MIN, PacketsPlan};
pub use prober::measure_packets;
pub use report::{CpuShare, CpuSide, Drops, PACKETS_SCHEMA, PacketsReport, PacketsTrial};
pub use sink::Sink;
#[doc(hidden)]
pub use wire::{Answer, Header, Request, parse_answer, parse_request};

use std::io;

/// Packets cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum PacketsError {
    /// The plan is invalid.
    #[error("{0}")]
    Plan(String),
    /// The kernel refused, or the peer went away.
    #[error("{what}: {reason}")]
    Io {
        /// The operation: `connecting to 10.0.0.1:6328`.
        what: String,
        /// The error.
        reason: io::Error,
    },
    /// The sink refused.
    #[error("the far side refuses: {0}")]
    Refused(String),
    /// It was stopped before there was any result.
    #[error("ended early by a signal")]
    Ended,
}

impl PacketsError {
    /// For `map_err`: adds the operation.
    fn of(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |reason| Self::Io { what, reason }
    }
}

#[cfg(test)]
mod tests;
