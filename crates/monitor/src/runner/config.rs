//! What is observed, and how.

use crate::recording;
use nearpath_model::{Diagnosis, Host};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A source of metrics that can be on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Latencies of paths and spans.
    Stages,
    /// In addition, why the slowest packets were late.
    Budgets,
    /// CPUs on which packets are freed.
    Locality,
    /// CPUs on which connections are accepted.
    Accepts,
    /// Packets dropped.
    Drops,
    /// Softnet counters, interrupts of queues, pages by node.
    Facts,
    /// Memory of processes by node.
    Memory,
    /// TCP connections.
    Tcp,
    /// Threads that poll.
    Workers,
    /// Packets into virtual machines.
    Vms,
    /// Changes of the journal.
    Steering,
    /// Findings of all checks.
    Findings,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Stages,
        Self::Budgets,
        Self::Locality,
        Self::Accepts,
        Self::Drops,
        Self::Facts,
        Self::Memory,
        Self::Tcp,
        Self::Workers,
        Self::Vms,
        Self::Steering,
        Self::Findings,
    ];

    /// Its name on the command line and in the label `instrument`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stages => "stages",
            Self::Budgets => "budgets",
            Self::Locality => "locality",
            Self::Accepts => "accepts",
            Self::Drops => "drops",
            Self::Facts => "facts",
            Self::Memory => "memory",
            Self::Tcp => "tcp",
            Self::Workers => "workers",
            Self::Vms => "vms",
            Self::Steering => "steering",
            Self::Findings => "findings",
        }
    }

    /// Its part of the limit on overhead; all parts add up to 1.
    pub fn part(self) -> f64 {
        match self {
            Self::Stages => 0.42,
            Self::Budgets => 0.0,
            Self::Locality => 0.09,
            Self::Accepts => 0.05,
            Self::Drops => 0.05,
            Self::Tcp => 0.08,
            Self::Memory => 0.05,
            Self::Facts => 0.06,
            Self::Workers => 0.02,
            Self::Vms => 0.05,
            Self::Steering => 0.03,
            Self::Findings => 0.10,
        }
    }
}

/// A report of the host as it was diagnosed, in HTML.
pub type Render = fn(&Host, &Diagnosis) -> String;

/// What the daemon does.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Listen elsewhere than on loopback without TLS.
    pub insecure: bool,
    /// TLS and users, in the form that exporters share.
    pub web_config: Option<PathBuf>,
    /// Time between two ticks.
    pub interval: Duration,
    /// Time between two diagnoses.
    pub findings: Duration,
    /// Share of a CPU that everything together may take; `None` is no limit.
    pub limit: Option<f64>,
    /// What is observed.
    pub sources: BTreeSet<Source>,
    /// Where to record.
    pub record: Option<recording::Settings>,
    /// Renders `/report`; `None` if there is none.
    pub report: Option<Render>,
    /// The kernel's BTF from a file.
    pub btf_file: Option<PathBuf>,
    /// nearpath's version.
    pub version: String,
}

impl Config {
    /// Whether a source is on.
    pub fn has(&self, source: Source) -> bool {
        self.sources.contains(&source)
    }

    /// The share of a CPU that a source may take.
    pub fn limit_of(&self, source: Source) -> Option<f64> {
        self.limit.map(|limit| limit * source.part())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_add_up_to_the_limit() {
        let sum: f64 = Source::ALL.iter().map(|source| source.part()).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    }
}
