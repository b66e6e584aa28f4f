//! The CPUs that a thread may run on.

use super::{OnlineCpus, Persistence, TargetKind};
use crate::CpuSet;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A thread of this boot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Thread {
    /// Its process.
    pub pid: u32,
    /// Its thread id; equal to the process id for the main thread.
    pub tid: u32,
    /// When it started, in clock ticks since boot: field 22 of `/proc/PID/task/TID/stat`.
    pub start_ticks: u64,
    /// When the plan that changes it was started: threads of its process that started since then and inherited its
    /// old affinity are changed and restored with it. `None` for this thread alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ticks: Option<u64>,
    /// Those of them that have a change of their own in the plan, and do not follow: thread id and start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub planned: Vec<(u32, u64)>,
    /// Set once it was changed: when its process started, in the same ticks. Another process may have the id later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_start_ticks: Option<u64>,
    /// Set once it was changed: which CPUs were online, as in [`super::SettingFile::cpus`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<OnlineCpus>,
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, tid, start_ticks, .. } = self;
        write!(f, "affinity pid {pid} tid {tid} start {start_ticks}")
    }
}

impl Thread {
    /// This thread alone.
    pub fn new(pid: u32, tid: u32, start_ticks: u64) -> Self {
        let (since_ticks, planned, process_start_ticks, cpus) = (None, vec![], None, None);
        Self { pid, tid, start_ticks, since_ticks, planned, process_start_ticks, cpus }
    }

    /// Whether another one is the same thread.
    #[must_use]
    pub fn same_place(&self, other: &Self) -> bool {
        (self.pid, self.tid, self.start_ticks) == (other.pid, other.tid, other.start_ticks)
    }

    /// Parses a thread's text in a plan: `affinity pid 7 tid 8 start 99`.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let ["affinity", "pid", pid, "tid", tid, "start", start] = words[..] else { return None };
        Some(Self::new(pid.parse().ok()?, tid.parse().ok()?, start.parse().ok()?))
    }
}

impl TargetKind for Thread {
    fn of_plan(text: &str, _: Option<u64>) -> Option<Self> {
        Self::parse(text)
    }

    fn owner(&self) -> String {
        format!("pid {}", self.pid)
    }

    fn kind(&self) -> &'static str {
        "thread_affinity"
    }

    fn persistence(&self) -> Persistence {
        Persistence::WhileRunning
    }

    fn lost_for_good(&self) -> Option<&'static str> {
        Some("a thread's affinity ends with the thread")
    }

    fn set_of(&self, value: &str) -> Option<CpuSet> {
        CpuSet::from_list(value).ok()
    }

    fn cpus_then(&self) -> Option<&OnlineCpus> {
        self.cpus.as_ref()
    }

    fn is_same_place(&self, other: &Self) -> bool {
        self.same_place(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_text_round_trips() {
        let thread = Thread::new(7, 8, 99);
        assert_eq!(Thread::parse(&thread.to_string()), Some(thread));
        for text in ["", "affinity pid 7", "affinity pid 7 tid x start 1", "affinity  pid 7"] {
            assert_eq!(Thread::parse(text), None, "{text}");
        }
    }
}
