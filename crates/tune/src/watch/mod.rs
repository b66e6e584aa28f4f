//! Watching over the changes that the journal has: what hot-plug, a reset of an interface or a reload
//! of a driver has lost is made again; what somebody else has set is reported and left alone.
//!
//! In goes the journal and what the host has of each change, out come notices: of what was made again,
//! and of what is otherwise than it was made, each once. When to look is told by [`Events`] and by
//! whoever calls.

mod events;

pub use events::Events;

use crate::{Executor, Journal, Live, TuneError, change_status};
use nearpath_host::Root;
use nearpath_model::{ChangeStatus, Notice, Noticed, Standing, State};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;

/// Watches over the changes of one network namespace, that of the thread which makes it.
pub struct Watch {
    folder: PathBuf,
    boot: String,
    /// What was told last of each change.
    told: BTreeMap<u64, Noticed>,
}

impl Watch {
    /// Over the changes of the journal in a folder; those of this boot are made again.
    pub fn new(folder: PathBuf, boot: String) -> Self {
        Self { folder, boot, told: BTreeMap::new() }
    }

    /// Looks once, through a root of the namespace; makes again what is lost, and tells what is new.
    ///
    /// # Errors
    /// The journal cannot be read, or not be written now: another nearpath changes the host.
    pub fn look(&mut self, root: &Root) -> Result<Vec<Notice>, TuneError> {
        let entries = Journal::read(&self.folder)?;
        let live = Live::new();
        let mut notices = Vec::new();
        let begun = entries.iter().any(|entry| entry.replaces.is_some());
        let lost = |status: &ChangeStatus| self.may_return(root, &live, status);
        if begun || change_status(&entries, &live, &self.boot).iter().any(lost) {
            notices = self.restore(root)?;
        }
        let entries = Journal::read(&self.folder)?;
        let statuses = change_status(&entries, &live, &self.boot);
        notices.extend(statuses.iter().filter_map(noticed));
        Ok(self.new_ones(notices, &statuses))
    }

    /// Whether a change is lost, and there is something to make it on.
    fn may_return(&self, root: &Root, live: &Live, status: &ChangeStatus) -> bool {
        self.is_lost(status) && live.anew(root, &status.entry.change).is_ok_and(|c| c.is_some())
    }

    /// What was changed back on the same interface, queue or interrupt was meant so, and is skipped.
    fn is_lost(&self, ChangeStatus { entry, standing, set_back, .. }: &ChangeStatus) -> bool {
        let made = entry.state == State::Done && entry.boot == self.boot;
        made && *standing == Some(Standing::Lost) && !set_back
    }

    /// Makes again what is lost. All is looked at once more when nobody else can change it.
    fn restore(&self, root: &Root) -> Result<Vec<Notice>, TuneError> {
        let live = Live::new();
        let mut executor = Executor::new(Journal::open(&self.folder, &self.boot)?, Live::new());
        for begun in executor.entries().iter().filter(|entry| entry.replaces.is_some()) {
            let status = change_status(std::slice::from_ref(begun), &live, &self.boot);
            let is_there = status.iter().any(|s| s.standing == Some(Standing::Applied));
            executor.settle(begun, is_there)?;
        }
        let mut notices = Vec::new();
        for status in change_status(&executor.entries(), &live, &self.boot) {
            if !self.is_lost(&status) {
                continue;
            }
            let ChangeStatus { entry, reason, .. } = status;
            let restored = match live.anew(root, &entry.change) {
                Ok(Some(anew)) => executor.restore(&entry, anew),
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

    /// Those that were not told before, and remembers what was.
    fn new_ones(&mut self, notices: Vec<Notice>, statuses: &[ChangeStatus]) -> Vec<Notice> {
        let mut now: BTreeMap<u64, Noticed> = BTreeMap::new();
        let mut news = Vec::new();
        for notice in notices {
            if matches!(notice.what, Noticed::Restored { .. }) {
                news.push(notice);
            } else if let Entry::Vacant(first) = now.entry(notice.id) {
                first.insert(notice.what.clone());
                if self.told.get(&notice.id) != Some(&notice.what) {
                    news.push(notice);
                }
            }
        }
        now.retain(|id, _| statuses.iter().any(|status| status.entry.id == *id));
        self.told = now;
        news
    }
}

/// The last change of the journal that writes there.
fn number_of(executor: &Executor<Live>, target: &str) -> Option<u64> {
    let entries = executor.entries();
    entries.iter().rev().find(|entry| entry.change.target.to_string() == target).map(|e| e.id)
}

/// What there is to tell of a change that is not made again.
fn noticed(status: &ChangeStatus) -> Option<Notice> {
    let reason = || status.reason.clone().unwrap_or_default();
    let what = match status.standing? {
        Standing::Applied | Standing::Undone => return None,
        Standing::Lost if status.set_back => Noticed::Drifted("changed back externally".to_owned()),
        Standing::Drifted => Noticed::Drifted(reason()),
        Standing::Lost => Noticed::Lost(reason()),
    };
    let entry = &status.entry;
    Some(Notice { id: entry.id, target: entry.change.target.to_string(), what })
}
