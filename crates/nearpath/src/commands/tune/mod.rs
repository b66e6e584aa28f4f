//! `nearpath tune`: plans changes, makes them, says how they stand, and undoes them.

mod apply;
mod export;
mod journal;
mod plan;
mod trial;
mod watch;

use crate::failure::Failure;
use clap::{Args, Subcommand};

const AFTER_HELP: &str = "\
A plan is made from the host's facts and findings. Applying it writes each change into the
journal (/var/lib/nearpath/journal.jsonl) before it is made, reads it back after, and undoes all
of them when one fails. What somebody else has changed since is shown, and not overwritten
without --force.

EXAMPLES
  nearpath tune plan --nic eth0 --port 443     what would be changed, and why
  nearpath tune plan --json >plan.json         the same, to be read, edited and applied
  nearpath tune apply plan.json                make it so
  nearpath tune apply --nic eth0 --dry-run     plan and show what would be made
  nearpath tune try --nic eth0 --port 443      apply and undo it in turns; keep it if it helps
  nearpath tune status                         the changes made, and whether they are there still
  nearpath tune verify                         the same as an exit status
  nearpath tune watch                          make again what a reset of an interface has lost
  nearpath tune export --applied --as systemd -o units   have it made at each boot
  nearpath tune rollback                       undo everything
  nearpath tune rollback --to 12               undo what was changed after change 12";

/// Arguments of `tune`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Tune {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show what would be changed, and why
    Plan(plan::PlanArguments),
    /// Make the changes of a plan
    Apply(apply::Apply),
    /// Prove by experiment whether a plan helps, and keep it only then
    Try(Box<trial::Try>),
    /// Show the changes that were made, and whether they are there still
    Status(journal::StatusArguments),
    /// Undo changes, the last first
    Rollback(journal::Rollback),
    /// Fail unless all changes are there still
    Verify(journal::Verify),
    /// Write files by which the system makes the changes at its next boot
    Export(Box<export::ExportArguments>),
    /// Make again what hot-plug, a reset or a reload of a driver has lost
    Watch(watch::Watch),
}

impl Tune {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.action {
            Action::Plan(plan) => plan.run(),
            Action::Apply(apply) => apply.run(),
            Action::Try(trial) => trial.run(),
            Action::Status(status) => status.run(),
            Action::Rollback(rollback) => rollback.run(),
            Action::Verify(verify) => verify.run(),
            Action::Export(export) => export.run(),
            Action::Watch(watch) => watch.run(),
        }
    }
}
