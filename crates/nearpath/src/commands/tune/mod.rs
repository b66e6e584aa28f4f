//! `nearpath tune`: plans changes, applies them, shows their state, and undoes them.

mod apply;
mod check_dpvs;
mod check_ovs;
mod confirm;
mod export;
mod journal;
mod plan;
mod plan_dpdk;
mod trial;
mod watch;

pub(super) use apply::{plan_of, read, trials_of};
pub(super) use confirm::ConfirmWithin;
pub(super) use plan::{PlanOptions, plan_of_findings};

use crate::failure::Failure;
use clap::{Args, Subcommand};

const AFTER_HELP: &str = "\
A plan is made from the host's configuration and the findings of 'nearpath diagnose'. 'apply'
records each change in the journal (/var/lib/nearpath/journal.jsonl), makes it and reads it back; if
one fails, all are undone. Values that were changed externally since are reported, and are
overwritten with --force only.

EXAMPLES
  nearpath tune plan --nic eth0 --port 443     what would be changed, and why
  nearpath tune plan --json >plan.json         write the plan, to review, edit and apply
  nearpath tune apply plan.json                apply it
  nearpath tune apply --nic eth0 --dry-run     show what would be changed
  nearpath tune try --nic eth0 --port 443      A/B test; keep it if it helps
  nearpath tune apply plan.json --confirm-within 2m    undo it then, unless 'tune confirm' is run
  nearpath tune status                         list changes and their current state
  nearpath tune verify                         the same as an exit status
  nearpath tune watch                          re-apply changes lost by interface resets
  nearpath tune export --applied --as systemd -o units   apply at each boot
  nearpath tune check-dpvs dpvs.conf           check workers of DPVS before it starts
  nearpath tune check-ovs                      check PMD threads of Open vSwitch
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
    /// Plan changes and show the reason for each
    Plan(plan::PlanArguments),
    /// Apply the changes of a plan
    Apply(apply::Apply),
    /// Test whether a plan helps (A/B), and keep it only if it does
    Try(Box<trial::Try>),
    /// Keep changes that were applied with --confirm-within
    Confirm(confirm::Confirm),
    /// Undo changes when the process that made them ends without having decided that they stay
    #[command(hide = true)]
    Guard(confirm::Guard),
    /// List the changes made, and whether they are still in effect
    Status(journal::StatusArguments),
    /// Undo changes, most recent first
    #[command(alias = "undo")]
    Rollback(journal::Rollback),
    /// Fail unless all changes are still in effect
    Verify(journal::Verify),
    /// Write files that apply the changes at the next boot
    Export(Box<export::ExportArguments>),
    /// Re-apply changes lost by hot-plug, interface resets or driver reloads
    Watch(watch::Watch),
    /// Check a configuration of DPVS: whether it starts, and with what is written
    CheckDpvs(check_dpvs::CheckDpvs),
    /// Check PMD threads of the running Open vSwitch: whether ports are polled, and from their node
    CheckOvs(check_ovs::CheckOvs),
}

impl Tune {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.action {
            Action::Plan(plan) => plan.run(),
            Action::Apply(apply) => apply.run(),
            Action::Try(trial) => trial.run(),
            Action::Confirm(confirm) => confirm.run(),
            Action::Guard(guard) => guard.run(),
            Action::Status(status) => status.run(),
            Action::Rollback(rollback) => rollback.run(),
            Action::Verify(verify) => verify.run(),
            Action::Export(export) => export.run(),
            Action::Watch(watch) => watch.run(),
            Action::CheckDpvs(check) => check.run(),
            Action::CheckOvs(check) => check.run(),
        }
    }
}
