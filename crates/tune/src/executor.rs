//! The executor: the one way in which a host is changed.
//!
//! In go changes that a planner made. Each is prepared, written into the journal, and made, in this
//! order, so that after a crash at any point the journal tells what may have been changed. When one
//! fails, those before it are undone.

use crate::error::{Kept, NotUndone};
use crate::{Journal, TuneError};
use nearpath_model::{Change, Entry, Outcome, Skipped, State, Step};

/// Makes changes, or shows them.
pub trait Writer {
    /// Gets everything ready without touching the host; returns the change as it will be made.
    ///
    /// # Errors
    /// It cannot be made.
    fn prepare(&mut self, change: Change) -> Result<Change, TuneError>;

    /// Makes a change that was prepared, and looks whether the host has it.
    ///
    /// # Errors
    /// The kernel refused, or does not have it although it did not refuse.
    fn write(&mut self, change: &Change) -> Result<(), TuneError>;

    /// Puts back what was before; fine when it is there already. The `state` says whether the change was made
    /// as a whole, or may be there in part.
    ///
    /// # Errors
    /// The kernel refused, or somebody else has changed it since.
    fn undo(&mut self, change: &Change, state: State) -> Result<(), TuneError>;
}

/// Makes changes by a writer and remembers them.
pub struct Executor<W> {
    /// `None` where there is nothing to remember, as in a dry run.
    journal: Option<Journal>,
    writer: W,
}

impl<W: Writer> Executor<W> {
    /// An executor that remembers in this journal.
    pub fn new(journal: Journal, writer: W) -> Self {
        Self { journal: Some(journal), writer }
    }

    /// An executor that remembers nothing: for what does not outlive the process that changes it,
    /// as the devices and servers of a demonstration, which leave nothing to undo.
    pub fn forgetful(writer: W) -> Self {
        Self { journal: None, writer }
    }

    /// Makes all changes of a plan, or none; returns them as they were made.
    ///
    /// # Errors
    /// One could not be made, and none is made now; or the journal cannot be written.
    pub fn apply(&mut self, plan: Vec<Change>) -> Result<Vec<Change>, TuneError> {
        let steps = plan.into_iter().map(|change| Step { change, optional: false });
        Ok(self.apply_steps(steps.collect())?.made)
    }

    /// Makes all steps of a plan, or none. Left out is what the host has already, and where the step is
    /// optional what the kernel can never do, or not with this value.
    ///
    /// # Errors
    /// As [`Executor::apply`].
    pub fn apply_steps(&mut self, plan: Vec<Step>) -> Result<Outcome, TuneError> {
        let mut made: Vec<Made> = Vec::new();
        let mut skipped = Vec::new();
        for Step { change, optional } in plan {
            let before = made.len();
            let Err(reason) = self.make(change.clone(), None, &mut made) else { continue };
            let may_be_skipped = match &reason {
                TuneError::InPlace(_) => true,
                TuneError::ByNature { .. } | TuneError::ValueNotTaken { .. } => optional,
                _ => false,
            };
            // A write that was refused may be there in part: then the plan does not go on.
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

    /// Makes a change again that the host has lost; `anew` is what is to be written now. The journal
    /// has both until it is made, and then the new one in the place of the other.
    ///
    /// # Errors
    /// It could not be made; the journal still has the one that is lost.
    pub fn restore(&mut self, lost: &Entry, anew: Change) -> Result<Change, TuneError> {
        let mut made = Vec::new();
        if let Err(reason) = self.make(anew, Some(lost.id), &mut made) {
            return Err(self.take_back(reason, made));
        }
        made.pop()
            .map(|made| made.change)
            .ok_or_else(|| TuneError::Refused(format!("{}: nothing was made", lost.change.target)))
    }

    /// Finishes what an interruption left between a change that was lost and the one in its place:
    /// `is_there` says whether the host has the latter.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn settle(&mut self, begun: &Entry, is_there: bool) -> Result<(), TuneError> {
        match &mut self.journal {
            Some(journal) if is_there => journal.done(begun.id),
            _ => self.close(Some(begun.id)),
        }
    }

    /// Makes a change. It is among those `made` from when the journal has it, so that it is undone
    /// with them when its write fails.
    fn make(
        &mut self,
        change: Change,
        replaces: Option<u64>,
        made: &mut Vec<Made>,
    ) -> Result<(), TuneError> {
        let change = self.writer.prepare(change)?;
        let begin = |journal: &mut Journal| match replaces {
            Some(lost) => journal.begin_again(&change, lost),
            None => journal.begin(&change),
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

    /// Undoes what was made in vain; the reason why it was, and what could not be undone.
    fn take_back(&mut self, reason: TuneError, made: Vec<Made>) -> TuneError {
        match self.undo_made(made) {
            kept if kept.is_empty() => reason,
            kept => TuneError::NotUndone { error: Box::new(reason), kept: NotUndone(kept) },
        }
    }

    /// Undoes changes, the last first; those that could not be. The journal keeps these.
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

    /// Undoes a change that the journal holds.
    ///
    /// # Errors
    /// It cannot be undone; the journal still holds it.
    pub fn undo(&mut self, entry: &Entry) -> Result<(), TuneError> {
        self.writer.undo(&entry.change, entry.state)?;
        self.close(Some(entry.id))
    }

    /// Undoes the changes after one of this number, or all, the last first; each that was undone, or
    /// why it was not. What a reboot has undone is forgotten.
    ///
    /// What could not be undone is tried again as long as that undoes one more: a NIC takes its table for four
    /// queues only when it has four again.
    pub fn rollback(&mut self, to: Option<u64>, boot: &str) -> Vec<(Entry, Result<(), TuneError>)> {
        let mut entries = self.entries();
        entries.retain(|entry| to.is_none_or(|to| entry.id > to));
        undo_backwards(entries, |entry| {
            if entry.lost_by_reboot(boot) { self.forget(entry) } else { self.undo(entry) }
        })
    }

    /// Forgets what a reboot has undone; how many changes that were.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn forget_lost(&mut self, boot: &str) -> Result<usize, TuneError> {
        let lost = self.entries().into_iter().filter(|entry| entry.lost_by_reboot(boot));
        lost.map(|entry| self.forget(&entry)).try_fold(0, |count, one| one.map(|()| count + 1))
    }

    /// The changes that have not been undone, in the order in which they were made.
    pub fn entries(&self) -> Vec<Entry> {
        self.journal.as_ref().map(|journal| journal.entries().to_vec()).unwrap_or_default()
    }

    /// Forgets a change that is gone by itself.
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

/// A change that was begun, with its number in the journal.
#[derive(Debug, Clone)]
struct Made {
    id: Option<u64>,
    change: Change,
    state: State,
}

/// Undoes the last first, and tries again what could not be undone as long as that undoes one more.
fn undo_backwards<T>(
    all: Vec<T>,
    mut undo: impl FnMut(&T) -> Result<(), TuneError>,
) -> Vec<(T, Result<(), TuneError>)> {
    let mut ends: Vec<_> = all
        .into_iter()
        .rev()
        .map(|one| {
            let undone = undo(&one);
            (one, undone)
        })
        .collect();
    let mut more = true;
    while more {
        more = false;
        for (one, undone) in ends.iter_mut().filter(|(_, undone)| undone.is_err()) {
            *undone = undo(one);
            more |= undone.is_ok();
        }
    }
    ends
}

/// A writer that only shows: `made` and `undone` see each change, once `check` has found that it could
/// be made ([`crate::Live::check`]).
pub struct DryRun<C, M, U> {
    /// Refuses what the host would refuse, and returns the change as it would be made.
    pub check: C,
    /// Sees a change that would be made.
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
    /// An executor that changes nothing and remembers nothing.
    pub fn dry(writer: DryRun<C, M, U>) -> Self {
        Self { journal: None, writer }
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
