//! What the load was: counts of what was planned, sent and received, by kind and address family.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What a load did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// How long it ran, in seconds.
    pub duration_s: f64,
    /// One for each kind and family, in that order.
    pub counts: Vec<LoadCount>,
    /// Connections that broke, and why.
    pub failures: Vec<String>,
}

/// A kind of load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadKind {
    /// TCP requests, counted with their responses.
    TcpRequests,
    /// TCP streams, counted in writes.
    TcpStream,
    /// UDP datagrams.
    UdpDatagrams,
}

/// What became of one kind of load over one address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadCount {
    /// What it was.
    pub kind: LoadKind,
    /// Whether it went over IPv6.
    pub ipv6: bool,
    /// Connections or flows.
    pub connections: u32,
    /// Messages whose send time came.
    pub planned: u64,
    /// Messages that were sent; those missing from `planned` were skipped as too late.
    pub sent: u64,
    /// Messages that arrived: responses at the client, the rest at the server.
    pub received: u64,
    /// Bytes that arrived at the server.
    pub received_bytes: u64,
}

impl LoadCount {
    pub(super) fn new(kind: LoadKind, ipv6: bool) -> Self {
        Self { kind, ipv6, connections: 0, planned: 0, sent: 0, received: 0, received_bytes: 0 }
    }

    /// Messages that were sent and did not arrive.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.planned += other.planned;
        self.sent += other.sent;
        self.received += other.received;
        self.received_bytes += other.received_bytes;
    }
}

/// What one thread of a load did.
pub(super) struct Part {
    pub(super) count: LoadCount,
    pub(super) failure: Option<String>,
}

impl LoadReport {
    /// Adds up the threads of one side.
    pub(super) fn of(duration: Duration, parts: impl IntoIterator<Item = Part>) -> Self {
        let mut report = Self { duration_s: duration.as_secs_f64(), ..Self::default() };
        for part in parts {
            report.failures.extend(part.failure);
            report.count(&part.count);
        }
        report.failures.sort();
        report
    }

    /// Adds what the other side counted; the duration stays.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        other.counts.iter().for_each(|count| self.count(count));
        self.failures.extend(other.failures.iter().cloned());
        self.failures.sort();
        self
    }

    fn count(&mut self, count: &LoadCount) {
        let key = |c: &LoadCount| (c.kind, c.ipv6);
        match self.counts.binary_search_by_key(&key(count), key) {
            Ok(i) => self.counts[i].add(count),
            Err(i) => self.counts.insert(i, *count),
        }
    }

    /// Messages that were sent, of all kinds; a response counts as one more.
    pub fn messages(&self) -> u64 {
        let of = |c: &LoadCount| match c.kind {
            LoadKind::TcpRequests => c.sent.saturating_add(c.received),
            LoadKind::TcpStream | LoadKind::UdpDatagrams => c.sent,
        };
        self.counts.iter().map(of).sum()
    }

    /// Messages that were sent and did not arrive, of all kinds.
    pub fn lost(&self) -> u64 {
        self.counts.iter().map(LoadCount::lost).sum()
    }
}
