//! Results of the load: messages planned, sent and received, by kind and address family.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Results of a load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Duration, in seconds.
    pub duration_s: f64,
    /// One entry per kind and family, in that order.
    pub counts: Vec<LoadCount>,
    /// Connections that failed, with the reason.
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

/// Results of one kind of load over one address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadCount {
    /// The kind.
    pub kind: LoadKind,
    /// Whether it went over IPv6.
    pub ipv6: bool,
    /// Connections or flows.
    pub connections: u32,
    /// Messages that were due.
    pub planned: u64,
    /// Messages sent; those missing from `planned` were skipped as too late.
    pub sent: u64,
    /// Messages received: responses at the client, the rest at the server.
    pub received: u64,
    /// Bytes received by the server.
    pub received_bytes: u64,
}

impl LoadCount {
    pub(super) fn new(kind: LoadKind, ipv6: bool) -> Self {
        Self { kind, ipv6, connections: 0, planned: 0, sent: 0, received: 0, received_bytes: 0 }
    }

    /// Messages sent that did not arrive.
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

/// Results of one thread.
pub(super) struct Part {
    pub(super) count: LoadCount,
    pub(super) failure: Option<String>,
}

impl LoadReport {
    /// Sums the threads of one side.
    pub(super) fn of(duration: Duration, parts: impl IntoIterator<Item = Part>) -> Self {
        let mut report = Self { duration_s: duration.as_secs_f64(), ..Self::default() };
        for part in parts {
            report.failures.extend(part.failure);
            report.count(&part.count);
        }
        report.failures.sort();
        report
    }

    /// Adds the counts of the other side; the duration is kept.
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

    /// Messages sent, of all kinds; a response counts as another message.
    pub fn messages(&self) -> u64 {
        let of = |c: &LoadCount| match c.kind {
            LoadKind::TcpRequests => c.sent.saturating_add(c.received),
            LoadKind::TcpStream | LoadKind::UdpDatagrams => c.sent,
        };
        self.counts.iter().map(of).sum()
    }

    /// Messages sent that did not arrive, of all kinds.
    pub fn lost(&self) -> u64 {
        self.counts.iter().map(LoadCount::lost).sum()
    }
}
