//! The executor: the only code path that changes a host.
//!
//! Input: changes of a planner. Each is prepared, recorded in the journal, and applied, in this order, so that after a
//! crash at any point the journal has everything that may have been changed. If one fails, the earlier ones are undone.

use crate::deferred::Deferred;
use crate::error::{Kept, NotUndone};
use crate::{Journal, TuneError, journal::now_s};
use nearpath_model::{Change, Entry, Outcome, Pending, Skipped, State, Step};

/// Applies changes, or shows them.
pub trait Writer {
    /// Prepares a change without touching the host; returns it as it will be applied.
    ///
    /// # Errors
    /// It cannot be applied.
    fn prepare(&mut self, change: Change) -> Result<Change, TuneError>;

    /// Applies a prepared change, and verifies it on the host.
    ///
    /// # Errors
    /// The kernel refused, or does not have it although it did not refuse.
    fn write(&mut self, change: &Change) -> Result<(), TuneError>;

    /// Restores the original value; succeeds if it is there already. The `state` says whether the change was
    /// completed, or may be partial.
    ///
    /// # Errors
    /// The kernel refused, or it was changed externally.
    fn undo(&mut self, change: &Change, state: State) -> Result<(), TuneError>;
}

/// Applies changes through a writer and records them.
pub struct Executor<W> {
    /// `None` if nothing is recorded, as in a dry run.
    journal: Option<Journal>,
    writer: W,
    /// Who decides whether the changes stay; `None` if they do.
    pending: Option<Pending>,
}

impl<W: Writer> Executor<W> {
    /// An executor that records in this journal.
    pub fn new(journal: Journal, writer: W) -> Self {
        Self { journal: Some(journal), writer, pending: None }
    }

    /// An executor that records nothing: for objects that do not outlive the process that changes them, such as the
    /// devices and servers of a demonstration, which leave nothing to undo.
    pub fn without_journal(writer: W) -> Self {
        Self { journal: None, writer, pending: None }
    }

    /// The same, for changes that stay only if that is decided ([`Executor::decide`]).
    #[must_use]
    pub fn pending(self, pending: Option<Pending>) -> Self {
        Self { pending, ..self }
    }

    /// The writer.
    pub(crate) fn writer(&self) -> &W {
        &self.writer
    }

    /// Applies all changes of a plan, or none; returns them as applied.
    ///
    /// # Errors
    /// One failed, and none is applied; or the journal cannot be written.
    pub fn apply(&mut self, plan: Vec<Change>) -> Result<Vec<Change>, TuneError> {
        let steps = plan.into_iter().map(|change| Step { change, optional: false });
        Ok(self.apply_steps(steps.collect())?.made)
    }

    /// Applies all steps of a plan, or none. Steps that the host already has are skipped, and optional steps that
    /// the kernel does not support or whose value it does not accept. A signal waits for the end of the current step;
    /// then the earlier ones are undone.
    ///
    /// # Errors
    /// As [`Executor::apply`]; or a signal arrived.
    pub fn apply_steps(&mut self, plan: Vec<Step>) -> Result<Outcome, TuneError> {
        self.check_undecided()?;
        let _deferred = Deferred::begin();
        let mut made: Vec<Made> = Vec::new();
        let mut skipped = Vec::new();
        for Step { change, optional } in plan {
            if Deferred::is_signalled() {
                let stopped = TuneError::Refused("stopped early by a signal".to_owned());
                return Err(self.take_back(stopped, made));
            }
            let before = made.len();
            let Err(reason) = self.make(change.clone(), None, &mut made) else { continue };
            let may_be_skipped = match &reason {
                TuneError::InPlace(_) => true,
                TuneError::Unsupported { .. } | TuneError::ValueNotTaken { .. } => optional,
                _ => false,
            };
            // A refused write may be partial: then the plan is aborted.
            let begun = made.split_off(before);
            if may_be_skipped && self.undo_made(begun.clone()).is_empty() {
                skipped.push(Skipped { change, reason: reason.to_string() });
                continue;
            }
            made.extend(begun);
            return Err(self.take_back(reason, made));
        }
        Ok(Outcome { made: made.into_iter().map(|made| made.change).collect(), skipped })
    }

    /// Re-applies a lost change; `change` is what to write now. The journal has both until it is applied, and then only
    /// the new one. If the object is still the `same`, the original value is the one to restore later, whatever the
    /// kernel or the driver has set meanwhile.
    ///
    /// # Errors
    /// It failed; the journal still has the lost change.
    pub fn restore(
        &mut self,
        lost: &Entry,
        change: Change,
        same: bool,
    ) -> Result<Change, TuneError> {
        let _deferred = Deferred::begin();
        let mut made = Vec::new();
        if let Err(reason) = self.make(change, Some((lost, same)), &mut made) {
            return Err(self.take_back(reason, made));
        }
        made.pop().map(|made| made.change).ok_or_else(|| {
            TuneError::Refused(format!("{}: no change was applied", lost.change.target))
        })
    }

    /// Finishes an interrupted [`Executor::restore`]: `is_there` says whether the host has the new change.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn settle(&mut self, begun: &Entry, is_there: bool) -> Result<(), TuneError> {
        match &mut self.journal {
            Some(journal) if is_there => journal.done(begun.id),
            _ => self.close(Some(begun.id)),
        }
    }

    /// Applies a change. It is added to `made` as soon as the journal has it, so that it is undone with the others if
    /// its write fails.
    fn make(
        &mut self,
        change: Change,
        replaces: Option<(&Entry, bool)>,
        made: &mut Vec<Made>,
    ) -> Result<(), TuneError> {
        let mut change = self.writer.prepare(change)?;
        if let Some((lost, true)) = replaces {
            change.before = lost.change.before.clone();
        }
        let pending = self.pending;
        let begin = |journal: &mut Journal| match replaces {
            Some((lost, _)) => journal.begin_again(&change, lost),
            None => journal.begin(&change, pending),
        };
        let id = self.journal.as_mut().map(begin).transpose()?;
        made.push(Made { id, change: change.clone(), state: State::Begun });
        self.writer.write(&change)?;
        if let Some(made) = made.last_mut() {
            made.state = State::Done;
        }
        match (&mut self.journal, id) {
            (Some(journal), Some(id)) => journal.done(id),
            _ => Ok(()),
        }
    }

    /// Undoes the changes of a failed plan; returns the reason, with the changes that could not be undone.
    fn take_back(&mut self, reason: TuneError, made: Vec<Made>) -> TuneError {
        match self.undo_made(made) {
            kept if kept.is_empty() => reason,
            kept => TuneError::NotUndone { error: Box::new(reason), kept: NotUndone(kept) },
        }
    }

    /// Undoes changes, the last first; returns those that could not be undone, which stay in the journal.
    fn undo_made(&mut self, made: Vec<Made>) -> Vec<Kept> {
        let ends = undo_backwards(made, |Made { id, change, state }| {
            self.writer.undo(change, *state)?;
            self.close(*id)
        });
        let kept = |(made, undone): (Made, Result<(), TuneError>)| {
            let Made { id, change, .. } = made;
            Some(Kept { id, target: change.target.to_string(), reason: undone.err()? })
        };
        ends.into_iter().filter_map(kept).collect()
    }

    /// Undoes a change in the journal.
    ///
    /// # Errors
    /// It cannot be undone; it stays in the journal.
    pub fn undo(&mut self, entry: &Entry) -> Result<(), TuneError> {
        let _deferred = Deferred::begin();
        self.writer.undo(&entry.change, entry.state)?;
        self.close(Some(entry.id))
    }

    /// Changes on top of some that may be undone at any time could not be undone in order.
    fn check_undecided(&self) -> Result<(), TuneError> {
        let all = self.journal.as_ref().map_or(&[][..], Journal::entries);
        let others = |entry: &&Entry| entry.pending.is_some() && entry.pending != self.pending;
        match all.iter().filter(others).count() {
            0 => Ok(()),
            count => Err(TuneError::Refused(format!(
                "{count} earlier change{} not confirmed yet: run 'nearpath tune confirm' or 'nearpath tune rollback' first",
                if count == 1 { " is" } else { "s are" }
            ))),
        }
    }

    /// The number of the last change in the journal.
    pub fn last(&self) -> u64 {
        self.journal.as_ref().and_then(|journal| journal.entries().last()).map_or(0, |last| last.id)
    }

    /// The changes later than `after` stay, or are pending from now on.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn decide(&mut self, after: u64, pending: Option<Pending>) -> Result<(), TuneError> {
        self.pending = pending;
        self.journal.as_mut().map_or(Ok(()), |journal| journal.decide(after, pending))
    }

    /// Undoes the changes about which nobody decides any more, or also those that may still be confirmed (`all`), the
    /// last first. Returns each with its result.
    pub fn undo_undecided(&mut self, all: bool, boot: &str) -> Vec<(Entry, Result<(), TuneError>)> {
        let now_s = now_s();
        let is_over =
            |entry: &Entry| entry.pending.is_some_and(|pending| all || pending.is_over(now_s));
        self.undo_those(is_over, boot)
    }

    /// Undoes the changes after the one with this number, or all, the last first. Returns each with its result:
    /// [`TuneError::Journal`] if it is undone, but the journal still has it. Changes undone by a reboot are dropped.
    ///
    /// Failed changes are retried as long as another one succeeds: a NIC accepts its table for four queues only when it
    /// has four queues again.
    pub fn rollback(&mut self, to: Option<u64>, boot: &str) -> Vec<(Entry, Result<(), TuneError>)> {
        self.undo_those(|entry| to.is_none_or(|to| entry.id > to), boot)
    }

    fn undo_those(
        &mut self,
        which: impl Fn(&Entry) -> bool,
        boot: &str,
    ) -> Vec<(Entry, Result<(), TuneError>)> {
        let _deferred = Deferred::begin();
        let mut entries = self.entries();
        entries.retain(which);
        undo_backwards(entries, |entry| {
            if entry.lost_by_reboot(boot) { self.forget(entry) } else { self.undo(entry) }
        })
    }

    /// Drops the changes undone by a reboot; returns their number.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn forget_lost(&mut self, boot: &str) -> Result<usize, TuneError> {
        let lost = self.entries().into_iter().filter(|entry| entry.lost_by_reboot(boot));
        lost.map(|entry| self.forget(&entry)).try_fold(0, |count, one| one.map(|()| count + 1))
    }

    /// The changes that have not been undone, in the order in which they were applied.
    pub fn entries(&self) -> Vec<Entry> {
        self.journal.as_ref().map(|journal| journal.entries().to_vec()).unwrap_or_default()
    }

    /// Drops a change that no longer exists.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn forget(&mut self, entry: &Entry) -> Result<(), TuneError> {
        self.close(Some(entry.id))
    }

    fn close(&mut self, id: Option<u64>) -> Result<(), TuneError> {
        match (&mut self.journal, id) {
            (Some(journal), Some(id)) => journal.undone(id),
            _ => Ok(()),
        }
    }
}

/// A started change, with its number in the journal.
#[derive(Debug, Clone)]
struct Made {
    id: Option<u64>,
    change: Change,
    state: State,
}

/// Undoes in reverse order, and retries failed ones as long as another one succeeds.
fn undo_backwards<T>(
    all: Vec<T>,
    mut undo: impl FnMut(&T) -> Result<(), TuneError>,
) -> Vec<(T, Result<(), TuneError>)> {
    let mut ends: Vec<_> = all
        .into_iter()
        .rev()
        .map(|one| {
            // At once: undoing those before may take away what it is undone on, as channels do with a table.
            let undone = undo(&one).or_else(|_| undo(&one));
            (one, undone)
        })
        .collect();
    let mut more = true;
    while more {
        more = false;
        for (one, undone) in ends.iter_mut().filter(|(_, undone)| !is_undone(undone)) {
            *undone = undo(one);
            more |= is_undone(undone);
        }
    }
    ends
}

/// Whether the host has the previous value, though the journal may still have the change.
fn is_undone(undone: &Result<(), TuneError>) -> bool {
    matches!(undone, Ok(()) | Err(TuneError::Journal { .. }))
}

/// A writer that only shows: `made` and `undone` see each change after `check` has accepted it
/// ([`crate::Live::check`]).
pub struct DryRun<C, M, U> {
    /// Refuses what the host would refuse, and returns the change as it would be applied.
    pub check: C,
    /// Sees a change that would be applied.
    pub made: M,
    /// Sees a change that would be undone.
    pub undone: U,
}

impl<C, M, U> Executor<DryRun<C, M, U>>
where
    C: FnMut(Change) -> Result<Change, TuneError>,
    M: FnMut(&Change),
    U: FnMut(&Change),
{
    /// An executor that changes and records nothing.
    pub fn dry(writer: DryRun<C, M, U>) -> Self {
        Self { journal: None, writer, pending: None }
    }
}

impl<C, M, U> Writer for DryRun<C, M, U>
where
    C: FnMut(Change) -> Result<Change, TuneError>,
    M: FnMut(&Change),
    U: FnMut(&Change),
{
    fn prepare(&mut self, change: Change) -> Result<Change, TuneError> {
        (self.check)(change)
    }

    fn write(&mut self, change: &Change) -> Result<(), TuneError> {
        (self.made)(change);
        Ok(())
    }

    fn undo(&mut self, change: &Change, _: State) -> Result<(), TuneError> {
        (self.undone)(change);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
