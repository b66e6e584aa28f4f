//! Watches the changes in the journal. Changes lost by hot-plug, interface resets or driver reloads are re-applied;
//! external changes are reported and skipped.
//!
//! Input: the journal and the current value of each change. Output: notices of re-applied changes and of
//! deviations, each reported once. [`Events`] and the caller decide when to check.

mod devices;
mod events;
mod hugepages;
mod memory;

pub use devices::DeviceWatch;
pub use events::Events;
pub use hugepages::HugepagesWatch;
pub use memory::MemoryWatch;

use crate::hotplug::online;
use crate::{Executor, Journal, Live, TuneError, change_status};
use nearpath_host::Root;
use nearpath_model::{Change, ChangeState, ChangeStatus, Notice, Noticed, State};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;

/// Watches the changes of one network namespace, that of the thread that creates it.
pub struct Watch {
    folder: PathBuf,
    boot: String,
    /// The last notice of each change.
    reported: BTreeMap<u64, Noticed>,
}

impl Watch {
    /// Watches the journal in a directory; changes of this boot are re-applied.
    pub fn new(folder: PathBuf, boot: String) -> Self {
        Self { folder, boot, reported: BTreeMap::new() }
    }

    /// Checks once, through a root of the namespace: re-applies lost changes and returns new notices.
    ///
    /// # Errors
    /// The journal cannot be read, or is locked because another nearpath is changing the host.
    pub fn look(&mut self, root: &Root) -> Result<Vec<Notice>, TuneError> {
        let entries = Journal::read(&self.folder)?;
        let live = Live::new();
        let mut notices = Vec::new();
        let to_do =
            |status: &ChangeStatus| is_interrupted(status) || self.may_return(root, &live, status);
        if change_status(&entries, &live, &self.boot).iter().any(to_do) {
            notices = self.restore(root)?;
        }
        let mut entries = Journal::read(&self.folder)?;
        // What has drifted again is the matter of the watch that moved it.
        entries.retain(|entry| memory::process_of(entry).is_none());
        let statuses = change_status(&entries, &live, &self.boot);
        notices.extend(statuses.iter().filter_map(noticed));
        Ok(self.new_ones(notices, &statuses))
    }

    /// Whether a change is lost and its target exists.
    fn may_return(&self, root: &Root, live: &Live, status: &ChangeStatus) -> bool {
        self.is_lost(root, status)
            && live.retargeted(root, &status.entry.change).is_ok_and(|c| c.is_some())
    }

    /// A value that was changed back on the same interface, queue or interrupt is intentional, and is skipped. One
    /// that the kernel or the driver set when a CPU went is not, but waits for the CPUs of the change.
    fn is_lost(&self, root: &Root, status: &ChangeStatus) -> bool {
        let ChangeStatus { entry, state, set_back, .. } = status;
        if memory::process_of(entry).is_some() {
            return false;
        }
        let made = entry.state == State::Done && entry.boot == self.boot;
        let lost = *state == Some(ChangeState::Lost) && !set_back;
        made && (lost || (was_unplugged(status) && has_cpus(root, &entry.change)))
    }

    /// Re-applies lost changes. Everything is checked again once the lock is held.
    fn restore(&self, root: &Root) -> Result<Vec<Notice>, TuneError> {
        let live = Live::new();
        let mut executor = Executor::new(Journal::open(&self.folder, &self.boot)?, Live::new());
        let mut notices = Vec::new();
        let statuses = change_status(&executor.entries(), &live, &self.boot);
        for ChangeStatus { entry, state, .. } in statuses.iter().filter(|s| is_interrupted(s)) {
            let ended = match state {
                Some(ChangeState::Applied) => executor.settle(entry, true),
                // What the interruption has left is undone; what was set externally stays, and so does the record.
                Some(ChangeState::Drifted) => executor.undo(entry),
                _ => executor.settle(entry, false),
            };
            if let Err(error) = ended {
                let target = entry.change.target.to_string();
                let what = Noticed::Failed(error.to_string());
                notices.push(Notice { id: entry.id, target, what });
            }
        }
        let being_replaced: Vec<u64> =
            executor.entries().iter().filter_map(|entry| entry.replaces).collect();
        for status in change_status(&executor.entries(), &live, &self.boot) {
            if !self.is_lost(root, &status) || being_replaced.contains(&status.entry.id) {
                continue;
            }
            let same = status.unplugged;
            let ChangeStatus { entry, reason, .. } = status;
            let restored = match live.retargeted(root, &entry.change) {
                Ok(Some(change)) => executor.restore(&entry, change, same),
                Ok(None) => continue,
                Err(error) => Err(error),
            };
            let target = entry.change.target.to_string();
            notices.push(match restored {
                Ok(change) => Notice {
                    id: number_of(&executor, &change.target.to_string()).unwrap_or(entry.id),
                    target: change.target.to_string(),
                    what: Noticed::Restored {
                        lost: entry.id,
                        reason: reason.unwrap_or_default(),
                        before: change.before.to_string(),
                        after: change.after.to_string(),
                    },
                },
                Err(error) => {
                    Notice { id: entry.id, target, what: Noticed::Failed(error.to_string()) }
                }
            });
        }
        Ok(notices)
    }

    /// The notices that are new; remembers them.
    fn new_ones(&mut self, notices: Vec<Notice>, statuses: &[ChangeStatus]) -> Vec<Notice> {
        let mut now: BTreeMap<u64, Noticed> = BTreeMap::new();
        let mut news = Vec::new();
        for notice in notices {
            if matches!(notice.what, Noticed::Restored { .. }) {
                news.push(notice);
            } else if let Entry::Vacant(first) = now.entry(notice.id) {
                first.insert(notice.what.clone());
                if self.reported.get(&notice.id) != Some(&notice.what) {
                    news.push(notice);
                }
            }
        }
        now.retain(|id, _| statuses.iter().any(|status| status.entry.id == *id));
        self.reported = now;
        news
    }
}

/// Whether it is a change that was being re-applied when a watch ended, and its state is known.
fn is_interrupted(status: &ChangeStatus) -> bool {
    status.entry.replaces.is_some() && status.state.is_some()
}

/// Whether it is certain that the kernel or the driver moved it: the CPUs at the time of the change are known.
fn was_unplugged(status: &ChangeStatus) -> bool {
    status.unplugged && status.entry.change.target.cpus_then().is_some()
}

/// Whether the CPUs of a change are online.
fn has_cpus(root: &Root, change: &Change) -> bool {
    let cpus = change.target.set_of(&change.after);
    online(root).zip(cpus).is_some_and(|(online, cpus)| cpus.is_subset(&online))
}

/// The last change in the journal of this target.
fn number_of(executor: &Executor<Live>, target: &str) -> Option<u64> {
    let entries = executor.entries();
    entries.iter().rev().find(|entry| entry.change.target.to_string() == target).map(|e| e.id)
}

/// The notice of a change that is not re-applied.
fn noticed(status: &ChangeStatus) -> Option<Notice> {
    let reason = || status.reason.clone().unwrap_or_default();
    let what = match status.state? {
        ChangeState::Applied | ChangeState::Undone => return None,
        ChangeState::Lost if status.set_back => {
            Noticed::Drifted("changed back externally".to_owned())
        }
        // It waits for its CPUs.
        ChangeState::Drifted if was_unplugged(status) => Noticed::Lost(reason()),
        ChangeState::Drifted => Noticed::Drifted(reason()),
        ChangeState::Lost => Noticed::Lost(reason()),
    };
    let entry = &status.entry;
    Some(Notice { id: entry.id, target: entry.change.target.to_string(), what })
}
