//! `nearpath tune status`, `verify` and `rollback`: shows, checks and undoes the changes in the journal.

use crate::failure::{Failure, say};
use crate::output;
use crate::source::Namespace;
use anyhow::anyhow;
use clap::Args;
use nearpath_host::Root;
use nearpath_model::{ChangeState, ChangeStatus, Entry};
use nearpath_tune::{Executor, Journal, Live, TuneError, change_status, steering};
use nearpath_views::{json, text};

/// Arguments of `tune status`.
#[derive(Debug, Args)]
pub struct StatusArguments {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
}

/// Arguments of `tune verify`.
#[derive(Debug, Args)]
pub struct Verify {
    /// Print one JSON document, the same as that of 'nearpath tune status'
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
}

const AFTER_HELP: &str = "\
Without --to, every change in the journal is undone, including steering by 'nearpath steer'. A value
that was changed externally (drift) is skipped and stays in the journal, unless --force is given.
Changes of an earlier boot are dropped from the journal: the reboot has undone them. Where the journal
cannot be written, the host is restored all the same, and the changes stay in the journal.

EXAMPLES
  nearpath tune rollback
  nearpath tune rollback --to 12        keep change 12 and earlier ones
  nearpath tune rollback --netns blue   undo changes in the namespace blue";

/// Arguments of `tune rollback`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Rollback {
    /// Undo only the changes after this one (a number in 'nearpath tune status')
    #[arg(long, value_name = "ID")]
    to: Option<u64>,
    /// Overwrite values that were changed externally since
    #[arg(long)]
    force: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
}

/// The changes in the journal; prints a warning for each damaged line.
fn entries() -> Result<Vec<Entry>, TuneError> {
    let contents = Journal::contents(&Journal::folder())?;
    contents.warnings().iter().for_each(|warning| say(warning));
    Ok(contents.entries)
}

/// The state of each change in the journal.
pub(super) fn statuses(root: &Root) -> anyhow::Result<Vec<ChangeStatus>> {
    let entries = entries()?;
    if entries.is_empty() {
        return Ok(Vec::new());
    }
    Ok(change_status(&entries, &Live::new(), &steering::boot(root)?))
}

fn show(json: bool, statuses: &[ChangeStatus]) -> Result<(), Failure> {
    if json {
        output::json(&json::journal(statuses))
    } else {
        output::text(&text::journal(statuses))
    }
}

impl StatusArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        show(self.json, &self.namespace.read(statuses)?)
    }
}

impl Verify {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let statuses = self.namespace.read(statuses)?;
        show(self.json, &statuses)?;
        Journal::check(&Journal::folder()).map_err(anyhow::Error::from)?;
        let not_there = statuses.iter().filter(|s| s.state != Some(ChangeState::Applied)).count();
        match not_there {
            0 => Ok(()),
            _ => {
                Err(anyhow!("{not_there} of {} changes are no longer in effect", statuses.len())
                    .into())
            }
        }
    }
}

impl Rollback {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let (mut results, boot) = self.namespace.read(|root| {
            let boot = steering::boot(root)?;
            Ok((self.undo(&boot)?, boot))
        })?;
        let (mut unrecorded, mut not_recorded) = (0, None);
        for (_, result) in &mut results {
            if let Err(error @ TuneError::Journal { .. }) = result {
                unrecorded += 1;
                not_recorded = Some(error.to_string());
                *result = Ok(());
            }
        }
        let are = if unrecorded == 1 { "change is" } else { "changes are" };
        if self.json {
            output::json(&json::rolled_back(&results, not_recorded))?;
        } else {
            let first = not_recorded.map_or_else(String::new, |reason| {
                format!("{unrecorded} {are} undone, but this cannot be recorded: {reason}\n")
            });
            output::text(&(first + &text::rolled_back(&results, &boot)))?;
        }
        Journal::check(&Journal::folder()).map_err(anyhow::Error::from)?;
        let kept = results.iter().filter(|(_, result)| result.is_err()).count();
        match (kept, unrecorded) {
            (0, 0) => Ok(()),
            (0, _) => Err(anyhow!(
                "{unrecorded} undone {are} still in the journal: repeat 'nearpath tune rollback' as soon as it \
                 can be written, or 'nearpath tune watch' may apply them again"
            )
            .into()),
            _ => Err(anyhow!("{kept} of {} changes were not undone", results.len()).into()),
        }
    }

    fn undo(&self, boot: &str) -> anyhow::Result<Vec<(Entry, Result<(), TuneError>)>> {
        let folder = Journal::folder();
        // With nothing to undo the journal is not opened, which would require root.
        if entries()?.is_empty() {
            say("nothing to undo");
            return Ok(Vec::new());
        }
        let journal = Journal::open_to_undo(&folder, boot)?;
        let mut executor = Executor::new(journal, Live::new().forced(self.force));
        if let Some(to) = self.to
            && !executor.entries().iter().any(|entry| entry.id == to)
        {
            return Err(anyhow!("no change {to} in the journal; see 'nearpath tune status'"));
        }
        Ok(executor.rollback(self.to, boot))
    }
}
