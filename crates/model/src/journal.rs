//! State of the changes made: the entries of the journal, their current state, and the result of applying a
//! plan.

use crate::{Change, Persistence};
use serde::{Deserialize, Serialize};

/// Progress of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The last record says that it was about to be written: it may be in effect or not.
    Begun,
    /// It was written.
    Done,
}

/// A change that stays only if that is decided in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pending {
    /// By the trial that has applied it; it is undone when the trial ends without having decided.
    Trial,
    /// By `nearpath tune confirm` before this time, in seconds since 1970.
    ConfirmBy(u64),
}

impl Pending {
    /// Whether nobody decides any more at this time, in seconds since 1970, given that no trial is running.
    pub fn is_over(self, now_s: u64) -> bool {
        match self {
            Self::Trial => true,
            Self::ConfirmBy(time_s) => time_s <= now_s,
        }
    }
}

/// A change that has not been undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number in the journal.
    pub id: u64,
    /// When it was started, in seconds since 1970.
    pub time_s: u64,
    /// The boot in which it was made (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// Its progress.
    pub state: State,
    /// The change.
    pub change: Change,
    /// While it is being re-applied: the number of the lost change, which it replaces once it is made.
    pub replaces: Option<u64>,
    /// If it is not decided yet whether it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Pending>,
}

impl Entry {
    /// Whether a reboot since it was made has undone it, given the current boot.
    pub fn lost_by_reboot(&self, boot: &str) -> bool {
        self.boot != boot && self.change.persistence != Persistence::Kept
    }
}

/// The current state of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeState {
    /// The value is in effect.
    Applied,
    /// The value was changed externally since (drift).
    Drifted,
    /// It was started, but nothing was written because of an interruption.
    Undone,
    /// It was lost: by a reboot, a re-created interface, a driver reset, or the exit of a thread.
    Lost,
}

/// A change of the journal with its current state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeStatus {
    /// The entry.
    pub entry: Entry,
    /// Its state; `None` if it cannot be seen from here.
    pub state: Option<ChangeState>,
    /// Further explanation.
    pub reason: Option<String>,
    /// Whether the old value is back on the same interface, queue or interrupt: it was changed back externally,
    /// or an undo was interrupted.
    pub set_back: bool,
    /// Whether the kernel or the driver set another value when a CPU went offline or came back.
    pub unplugged: bool,
}

/// A report about a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Its number in the journal.
    pub id: u64,
    /// Its target.
    pub target: String,
    /// What happened.
    pub what: Noticed,
}

/// What happened to a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Noticed {
    /// It was lost, and was re-applied.
    Restored {
        /// The number of the change that was lost.
        lost: u64,
        /// Why it was lost, if known.
        reason: String,
        /// The value found.
        before: String,
        /// The value now.
        after: String,
    },
    /// It was applied to a device that is new, or that has changed.
    Applied {
        /// The device: its bus address.
        device: String,
        /// The value now.
        after: String,
    },
    /// Its device is gone: it was dropped from the journal.
    Dropped(String),
    /// It is lost, and its target no longer exists: a thread has exited, an interface is gone.
    Lost(String),
    /// The value was changed externally; the change is skipped.
    Drifted(String),
    /// It is lost, and could not be re-applied.
    Failed(String),
}

/// The result of applying a plan.
#[derive(Debug)]
pub struct Outcome {
    /// The changes as they were made.
    pub made: Vec<Change>,
    /// The changes skipped.
    pub skipped: Vec<Skipped>,
}

/// A change that was skipped.
#[derive(Debug)]
pub struct Skipped {
    /// The change.
    pub change: Change,
    /// Why.
    pub reason: String,
}
