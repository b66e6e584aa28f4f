//! What is known of the changes that were made: the entries of the journal, how they stand, and what became
//! of a plan.

use crate::{Change, Persistence};
use serde::{Deserialize, Serialize};

/// How far a change has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It was about to be made when the last record was written: it may be there or not.
    Begun,
    /// It was made.
    Done,
}

/// A change that has not been undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number in the journal.
    pub id: u64,
    /// When it began, in seconds since 1970.
    pub time_s: u64,
    /// The boot that it belongs to (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// How far it came.
    pub state: State,
    /// The change.
    pub change: Change,
    /// While it is being made again: the number of the change that is lost. It takes that one's place
    /// when it is made.
    pub replaces: Option<u64>,
}

impl Entry {
    /// Whether a reboot since it was made has undone it, going by the boot that is now.
    pub fn lost_by_reboot(&self, boot: &str) -> bool {
        self.boot != boot && self.change.persistence != Persistence::Kept
    }
}

/// How a change stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The host has it.
    Applied,
    /// Somebody else has changed it since.
    Drifted,
    /// It was begun, but nothing was written: an interruption came before.
    Undone,
    /// It is gone by itself: by a reboot, a new interface, a driver's reset, a thread's end.
    Lost,
}

/// A change of the journal, and how it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeStatus {
    /// The entry.
    pub entry: Entry,
    /// How it stands; `None` when it cannot be seen from here.
    pub standing: Option<Standing>,
    /// What there is to say about it.
    pub reason: Option<String>,
    /// Whether the old value is back on the same interface, queue or interrupt: it was changed back externally,
    /// or an undo was interrupted.
    pub set_back: bool,
}

/// Something to tell of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Its number in the journal.
    pub id: u64,
    /// What it writes to.
    pub target: String,
    /// What was noticed.
    pub what: Noticed,
}

/// What was noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Noticed {
    /// The host had lost it, and has it again.
    Restored {
        /// The number of the change that was lost.
        lost: u64,
        /// Why it was lost, as far as it can be told.
        reason: String,
        /// What was there.
        before: String,
        /// What is there now.
        after: String,
    },
    /// It is lost, and there is nothing to make it on: a thread has ended, an interface is gone.
    Lost(String),
    /// Somebody else has set another value; it is left alone.
    Drifted(String),
    /// It is lost, and could not be made again.
    Failed(String),
}

/// What became of a plan.
#[derive(Debug)]
pub struct Outcome {
    /// The changes as they were made.
    pub made: Vec<Change>,
    /// Those that were left out.
    pub skipped: Vec<Skipped>,
}

/// A change that was left out.
#[derive(Debug)]
pub struct Skipped {
    /// The change.
    pub change: Change,
    /// Why.
    pub reason: String,
}
