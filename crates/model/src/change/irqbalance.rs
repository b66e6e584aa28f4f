//! The interrupts banned from a running irqbalance.

use super::{Persistence, TargetKind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A running irqbalance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Irqbalance {
    /// Its process.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl fmt::Display for Irqbalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "irqbalance pid {} start {} banned", self.pid, self.start_ticks)
    }
}

impl Irqbalance {
    /// Parses its text in a plan: `irqbalance pid 7 start 99 banned`.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let ["irqbalance", "pid", pid, "start", start, "banned"] = words[..] else { return None };
        Some(Self { pid: pid.parse().ok()?, start_ticks: start.parse().ok()? })
    }
}

impl TargetKind for Irqbalance {
    fn of_plan(text: &str, _: Option<u64>) -> Option<Self> {
        Self::parse(text)
    }

    fn kind(&self) -> &'static str {
        "irqbalance"
    }

    fn persistence(&self) -> Persistence {
        Persistence::WhileRunning
    }

    fn lost_for_good(&self) -> Option<&'static str> {
        Some("irqbalance is a new process after a reboot")
    }
}
