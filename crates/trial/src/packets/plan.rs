//! What to send, and how fast: plain data, validated before use.

use super::PacketsError;
use nearpath_model::CpuSet;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Minimum UDP payload: its fields, rounded up to the payload of a 64-byte Ethernet frame over IPv4 (14 + 20 +
/// 8 + 18, and 4 of checksum).
pub const PACKET_MIN: u32 = 18;
/// The largest UDP payload over IPv4.
pub const PACKET_MAX: u32 = 65_507;
/// Each flow has a thread on either side.
pub const MAX_FLOWS: u16 = 64;
/// No host sends faster than this.
pub const MAX_PACKETS_PER_S: u64 = 1_000_000_000;

/// The offered rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offered {
    /// Unlimited.
    Fastest,
    /// This many per second, of all flows together.
    Rate(u64),
    /// The highest rate with no more than this loss, found by binary search (RFC 2544, 26.1).
    Search {
        /// In percent.
        max_loss_percent: f64,
    },
}

/// A benchmark of packets per second.
#[derive(Debug, Clone)]
pub struct PacketsPlan {
    /// Address of the sink.
    pub target: SocketAddr,
    /// The source address, which can select the interface.
    pub source: Option<IpAddr>,
    /// The rate.
    pub offered: Offered,
    /// Bytes of UDP payload.
    pub size: u32,
    /// Flows, each with its own port and a thread on either side.
    pub flows: u16,
    /// Duration of the trial that counts.
    pub duration: Duration,
    /// Duration of the trials of a search.
    pub trial: Duration,
    /// CPUs for the sending threads; `None`: those of the caller.
    pub cpus: Option<CpuSet>,
}

impl PacketsPlan {
    pub(super) fn check(&self) -> Result<(), PacketsError> {
        let wrong = |what: String| Err(PacketsError::Plan(what));
        if !(PACKET_MIN..=PACKET_MAX).contains(&self.size) {
            return wrong(format!("packets of {} bytes: {PACKET_MIN} to {PACKET_MAX}", self.size));
        }
        if !(1..=MAX_FLOWS).contains(&self.flows) {
            return wrong(format!("{} flows: 1 to {MAX_FLOWS}", self.flows));
        }
        match self.offered {
            Offered::Rate(rate) if !(1..=MAX_PACKETS_PER_S).contains(&rate) => {
                wrong(format!("{rate} packets per second: 1 to {MAX_PACKETS_PER_S}"))
            }
            Offered::Search { max_loss_percent } if !(0.0..100.0).contains(&max_loss_percent) => {
                wrong(format!("a loss of {max_loss_percent}%: from 0 to less than 100"))
            }
            _ => Ok(()),
        }
    }
}
