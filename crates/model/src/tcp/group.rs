//! Connections with something in common.

use super::{TcpCounts, TcpLimit, TcpSamples, TcpVerdict};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What connections are grouped by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TcpPer {
    /// Remote address.
    Remote,
    /// Local address and port of a server.
    Listener,
    /// Process.
    Process,
    /// Cgroup.
    Cgroup,
}

/// Connections with something in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TcpGroup {
    /// The grouping.
    pub per: TcpPer,
    /// Its name.
    pub name: String,
    /// How many connections.
    pub connections: u64,
    /// Least, median and largest smoothed round-trip time.
    pub rtt_ns: Option<(u64, u64, u64)>,
    /// Their counts.
    #[serde(flatten)]
    pub counts: TcpCounts,
    /// What their packets showed; `None` unless the detail is `full`.
    #[serde(default)]
    pub samples: Option<TcpSamples>,
    /// What limited them, with the time in seconds.
    pub limits: BTreeMap<TcpLimit, f64>,
    /// What limited them most.
    pub verdict: Option<TcpVerdict>,
}
