//! On which nodes the memory of a process is. Moving it cannot be undone: other pages may have come since.

use super::{Persistence, TargetKind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The anonymous memory of a process of this boot. Its value is the node that it is on, or the nodes, as a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessPages {
    /// The process.
    pub pid: u32,
    /// When it started, in clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
    /// Bytes that may be on other nodes for a node to be that of the memory; `None`: a twentieth of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_remote_bytes: Option<u64>,
}

impl ProcessPages {
    /// The memory of a process, of which a twentieth may be elsewhere.
    pub fn new(pid: u32, start_ticks: u64) -> Self {
        Self { pid, start_ticks, max_remote_bytes: None }
    }

    /// Why a rollback leaves the memory where it is.
    pub const ONE_WAY: &str = "one-way: the memory stays where it is";

    /// Parses the text of a plan: `memory pid 7 start 99`, or `memory pid 7 start 99 max-remote 50000000`.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let (pid, start, rest) = match words[..] {
            ["memory", "pid", pid, "start", start] => (pid, start, None),
            ["memory", "pid", pid, "start", start, "max-remote", rest] => (pid, start, Some(rest)),
            _ => return None,
        };
        let max_remote_bytes = rest.map(str::parse).transpose().ok()?;
        let (pid, start_ticks) = (pid.parse().ok()?, start.parse().ok()?);
        let its = Self { pid, start_ticks, max_remote_bytes };
        (its.to_string() == text).then_some(its)
    }
}

impl fmt::Display for ProcessPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory pid {} start {}", self.pid, self.start_ticks)?;
        match self.max_remote_bytes {
            Some(bytes) => write!(f, " max-remote {bytes}"),
            None => Ok(()),
        }
    }
}

impl TargetKind for ProcessPages {
    fn of_plan(text: &str, _: Option<u64>) -> Option<Self> {
        Self::parse(text)
    }

    fn kind(&self) -> &'static str {
        "memory"
    }

    fn persistence(&self) -> Persistence {
        Persistence::WhileRunning
    }

    fn lost_for_good(&self) -> Option<&'static str> {
        Some("a process's memory ends with the process")
    }

    fn one_way(&self) -> Option<&'static str> {
        Some(Self::ONE_WAY)
    }
}

/// What a watch did about memory on the wrong node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemoryMoved {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// The node that its threads run on.
    pub node: u32,
    /// Its anonymous memory on other nodes before, in bytes.
    pub remote_bytes_before: u64,
    /// And now.
    pub remote_bytes_after: u64,
    /// Pages that were elsewhere.
    pub pages_elsewhere: u64,
    /// Pages of them that are on the node now.
    pub pages_moved: u64,
    /// Why not all of them, or none, were moved.
    pub reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_round_trips() {
        for max_remote_bytes in [None, Some(50_000_000)] {
            let pages = ProcessPages { max_remote_bytes, ..ProcessPages::new(7, 99) };
            assert_eq!(ProcessPages::parse(&pages.to_string()), Some(pages));
        }
        // As written before there was a limit in bytes.
        let old: ProcessPages = serde_json::from_str(r#"{"pid":7,"start_ticks":99}"#).unwrap();
        assert_eq!(old, ProcessPages::new(7, 99));
        for text in [
            "",
            "memory pid 7",
            "memory pid 07 start 1",
            "memory pid 7 start 1 ",
            "memory pid -1 start 1",
            "memory pid 7 start 1 max-remote",
            "memory pid 7 start 1 max-remote x",
        ] {
            assert_eq!(ProcessPages::parse(text), None, "{text}");
        }
    }
}
