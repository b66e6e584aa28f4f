//! Packets per second between two hosts, interfaces or namespaces, with loss and what each packet costs.
//!
//! ```text
//! prober                                              sink
//!   control ──────── TCP: prepare, begin, end ────────► control ─► counts, drops, CPU time
//!   sender thread of each flow ── UDP, numbered ──────► receiver thread of each flow
//! ```
//! In goes a [`PacketsPlan`], out comes a [`PacketsReport`]. Nothing is answered, so that only one way is
//! measured; loss is known by numbers, and the kernel's counters tell where packets were dropped.

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

/// Packets that cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum PacketsError {
    /// The plan cannot be done.
    #[error("{0}")]
    Plan(String),
    /// The kernel refused, or the other side went away.
    #[error("{what}: {reason}")]
    Io {
        /// What was tried: `connecting to 10.0.0.1:6328`.
        what: String,
        /// What the kernel said.
        reason: io::Error,
    },
    /// The sink refused.
    #[error("the far side refuses: {0}")]
    Refused(String),
    /// It was ended before there was anything to tell.
    #[error("ended early by a signal")]
    Ended,
}

impl PacketsError {
    /// For `map_err`: names what was tried.
    fn of(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |reason| Self::Io { what, reason }
    }
}

#[cfg(test)]
mod tests;
