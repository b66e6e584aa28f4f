//! What `tune apply`, `status`, `verify` and `rollback` print with `--json`; a plan is the JSON of its
//! own type.

use crate::text::time_of_day;
use nearpath_model::{
    Change, ChangeState, ChangeStatus, Entry, MemoryMoved, Notice, Noticed, Outcome, Pending,
    Skipped,
};
use serde::Serialize;
use std::fmt::Display;

/// Version of these forms.
const SCHEMA: u32 = 1;

/// `tune apply --json`.
#[derive(Debug, Serialize)]
pub struct Applied {
    /// Version of this form.
    pub schema: u32,
    /// Whether the changes were made; not in a dry run.
    pub applied: bool,
    /// The changes.
    pub changes: Vec<AppliedChange>,
    /// Those that were left out.
    pub skipped: Vec<SkippedChange>,
}

/// A change that was made, or would be.
#[derive(Debug, Serialize)]
pub struct AppliedChange {
    /// What is written to.
    pub target: String,
    /// What was there.
    pub before: String,
    /// What is there now.
    pub after: String,
    /// Why.
    pub why: String,
}

/// A change that was left out.
#[derive(Debug, Serialize)]
pub struct SkippedChange {
    /// What would have been written to.
    pub target: String,
    /// Why it was not.
    pub reason: String,
}

/// The document of what became of a plan.
pub fn applied(applied: bool, outcome: &Outcome) -> Applied {
    let change = |change: &Change| AppliedChange {
        target: change.target.to_string(),
        before: change.before.to_string(),
        after: change.after.to_string(),
        why: change.why.clone(),
    };
    let skipped = |skipped: &Skipped| SkippedChange {
        target: skipped.change.target.to_string(),
        reason: skipped.reason.to_string(),
    };
    Applied {
        schema: SCHEMA,
        applied,
        changes: outcome.made.iter().map(change).collect(),
        skipped: outcome.skipped.iter().map(skipped).collect(),
    }
}

/// `tune status --json`.
#[derive(Debug, Serialize)]
pub struct JournalDocument {
    /// Version of this form.
    pub schema: u32,
    /// The changes that have not been undone, in the order in which they were made.
    pub journal: Vec<JournalEntry>,
}

/// A change of the journal.
#[derive(Debug, Serialize)]
pub struct JournalEntry {
    /// Its number.
    pub id: u64,
    /// What was written to.
    pub target: String,
    /// What was there.
    pub before: String,
    /// What was written.
    pub after: String,
    /// Why.
    pub why: String,
    /// When: `2026-01-31T12:00:00Z`.
    pub applied_at: String,
    /// How it stands; `null` when it cannot be seen from here.
    pub state: Option<ChangeState>,
    /// What there is to say about it.
    pub reason: Option<String>,
    /// Who decides whether it stays, if that is not decided: `trial`, or `{"confirm_by": SECONDS SINCE 1970}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<Pending>,
}

/// The document of how the changes of the journal stand.
pub fn journal(statuses: &[ChangeStatus]) -> JournalDocument {
    let entry = |status: &ChangeStatus| {
        let Entry { id, time_s, change, .. } = &status.entry;
        JournalEntry {
            id: *id,
            target: change.target.to_string(),
            before: change.before.to_string(),
            after: change.after.to_string(),
            why: change.why.clone(),
            applied_at: iso(*time_s),
            state: status.state,
            reason: status.reason.clone(),
            pending: status.entry.pending,
        }
    };
    JournalDocument { schema: SCHEMA, journal: statuses.iter().map(entry).collect() }
}

/// `tune rollback --json`.
#[derive(Debug, Serialize)]
pub struct RolledBack {
    /// Version of this form.
    pub schema: u32,
    /// The changes, in the order in which they were undone.
    pub changes: Vec<UndoneChange>,
    /// Why some that are undone are still in the journal.
    pub not_recorded: Option<String>,
}

/// A change that was undone, or not.
#[derive(Debug, Serialize)]
pub struct UndoneChange {
    /// Its number in the journal.
    pub id: u64,
    /// What was written to.
    pub target: String,
    /// Whether it is undone.
    pub undone: bool,
    /// Why not.
    pub reason: Option<String>,
}

/// The document of a rollback.
pub fn rolled_back<E: Display>(
    results: &[(Entry, Result<(), E>)],
    not_recorded: Option<String>,
) -> RolledBack {
    let change = |(entry, result): &(Entry, Result<(), E>)| UndoneChange {
        id: entry.id,
        target: entry.change.target.to_string(),
        undone: result.is_ok(),
        reason: result.as_ref().err().map(ToString::to_string),
    };
    RolledBack { schema: SCHEMA, changes: results.iter().map(change).collect(), not_recorded }
}

/// A line of `tune watch --json`.
#[derive(Debug, Serialize)]
pub struct Watched {
    /// Version of this form.
    pub schema: u32,
    /// When: `2026-01-31T12:00:00Z`.
    pub time: String,
    /// The change's number in the journal.
    pub id: u64,
    /// What it writes to.
    pub target: String,
    /// `restored`, `lost`, `drifted`, `failed`.
    pub event: &'static str,
    /// Why it was lost, what is there instead, or why it could not be re-applied.
    pub reason: String,
    /// If re-applied: the number of the lost change.
    pub lost: Option<u64>,
    /// If re-applied: the value before.
    pub before: Option<String>,
    /// If re-applied: the value now.
    pub after: Option<String>,
}

/// A notice of a watch.
pub fn watched(notice: &Notice, time_s: u64) -> Watched {
    let (event, reason) = match &notice.what {
        Noticed::Restored { reason, .. } => ("restored", reason),
        Noticed::Applied { device, .. } => ("applied", device),
        Noticed::Dropped(reason) => ("dropped", reason),
        Noticed::Lost(reason) => ("lost", reason),
        Noticed::Drifted(reason) => ("drifted", reason),
        Noticed::Failed(reason) => ("failed", reason),
    };
    let (lost, before, after) = match &notice.what {
        Noticed::Restored { lost, before, after, .. } => {
            (Some(*lost), Some(before.clone()), Some(after.clone()))
        }
        Noticed::Applied { after, .. } => (None, None, Some(after.clone())),
        _ => (None, None, None),
    };
    Watched {
        schema: SCHEMA,
        time: iso(time_s),
        id: notice.id,
        target: notice.target.clone(),
        event,
        reason: reason.clone(),
        lost,
        before,
        after,
    }
}

/// What a watch did about memory, as a line of `tune watch --json`.
#[derive(Debug, Serialize)]
pub struct WatchedMemory<'a> {
    schema: u32,
    time: String,
    event: &'static str,
    #[serde(flatten)]
    moved: &'a MemoryMoved,
}

/// What a watch did about memory on the wrong node.
pub fn memory_moved(moved: &MemoryMoved, time_s: u64) -> WatchedMemory<'_> {
    let event = if moved.pages_moved > 0 { "memory_moved" } else { "memory_not_moved" };
    WatchedMemory { schema: SCHEMA, time: iso(time_s), event, moved }
}

fn iso(time_s: u64) -> String {
    time_of_day(time_s).replacen(' ', "T", 1).replace(" UTC", "Z")
}
