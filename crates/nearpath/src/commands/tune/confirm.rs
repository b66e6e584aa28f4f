//! `nearpath tune confirm`: keeps changes that were applied with --confirm-within. `tune guard`, which nearpath starts
//! itself, undoes them when that does not happen.

use crate::failure::{Failure, say};
use crate::guardian::{self, Guardian, executor};
use crate::session::duration;
use crate::source::Namespace;
use anyhow::{Context, anyhow};
use clap::Args;
use nearpath_model::Pending;
use nearpath_tune::{Executor, Live, now_s, steering};
use std::time::Duration;

const AFTER_HELP: &str = "\
Changes made with --confirm-within are undone after that time unless they are confirmed: if a change
has cut the connection through which it was made, nobody can. Requires root.

EXAMPLES
  nearpath tune apply plan.json --confirm-within 2m
  nearpath tune confirm                  after having seen that the host can still be reached";

/// Arguments of `tune confirm`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Confirm {}

/// Arguments of `tune guard`.
#[derive(Debug, Args)]
pub struct Guard {
    #[arg(long)]
    confirm_by: Option<u64>,
}

impl Guard {
    pub(super) fn run(&self) -> Result<(), Failure> {
        Ok(guardian::guard(self.confirm_by)?)
    }
}

impl Confirm {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let confirmed = Namespace::default().read(|root| {
            let mut executor = executor(&steering::boot(root)?, Live::new())?;
            let entries = executor.entries();
            let pending = || entries.iter().filter(|entry| entry.pending.is_some());
            let confirmed = pending().count();
            if let Some(first) = pending().next() {
                executor.decide(first.id.saturating_sub(1), None)?;
            }
            Ok(confirmed)
        })?;
        match confirmed {
            0 => return Err(anyhow!("no changes to confirm; see 'nearpath tune status'").into()),
            1 => say("1 change confirmed"),
            count => say(&format!("{count} changes confirmed")),
        }
        Ok(())
    }
}

/// Changes that are undone unless they are confirmed.
#[derive(Debug, Args)]
pub struct ConfirmWithin {
    /// Undo the changes after this time, unless 'nearpath tune confirm' is run before
    #[arg(long, value_name = "TIME", value_parser = duration)]
    confirm_within: Option<Duration>,
}

impl ConfirmWithin {
    fn pending(&self) -> Option<Pending> {
        // Whole seconds, and not less than asked for.
        self.confirm_within.map(|time| Pending::ConfirmBy(now_s() + time.as_secs().max(1)))
    }

    /// Makes changes, which are undone unless they are confirmed, if requested.
    ///
    /// # Errors
    /// As `make`; or no process can be started that would undo them.
    pub(in crate::commands) fn make<T, E: Into<anyhow::Error>>(
        &self,
        executor: Executor<Live>,
        make: impl FnOnce(&mut Executor<Live>) -> Result<T, E>,
    ) -> anyhow::Result<T> {
        let pending = self.pending();
        let guardian = pending.map(Guardian::start).transpose()?;
        let made = make(&mut executor.pending(pending)).map_err(Into::into)?;
        if let Some(guardian) = guardian {
            guardian.finish()?;
            self.remind();
        }
        Ok(made)
    }

    /// The changes later than `after` stay, or are undone unless they are confirmed, if requested.
    ///
    /// # Errors
    /// The journal cannot be written, or no process can be started that would undo them.
    pub(in crate::commands) fn decide(
        &self,
        executor: &mut Executor<Live>,
        after: u64,
    ) -> anyhow::Result<()> {
        let pending = self.pending().filter(|_| executor.last() > after);
        let guardian = pending.map(Guardian::start).transpose()?;
        executor.decide(after, pending).context("cannot keep the plan")?;
        if let Some(guardian) = guardian {
            guardian.finish()?;
            self.remind();
        }
        Ok(())
    }

    fn remind(&self) {
        let time = humantime::format_duration(self.confirm_within.unwrap_or_default());
        say(&format!("undone in {time}, unless 'nearpath tune confirm' is run"));
    }
}
