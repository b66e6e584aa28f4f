//! `nearpath tune apply`: applies the changes of a plan, all or none.

use super::confirm::ConfirmWithin;
use super::plan::{MAX_FILE, PlanOptions};
use crate::failure::{Failure, say};
use crate::guardian::executor;
use crate::output;
use crate::source::Namespace;
use anyhow::{Context, anyhow, bail};
use clap::Args;
use nearpath_host::{Root, current_netns};
use nearpath_model::{
    AtBoot, Change, DpdkPlan, Outcome, Plan, Step, TRIAL_SCHEMA, Target, TrialReport,
};
use nearpath_tune::{DryRun, Executor, Journal, Live, TuneError, steering};
use nearpath_views::{json, text};
use rustix::fs::{OFlags, fcntl_setfl};
use serde::Deserialize;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most trials of a file.
const TRIALS_MAX: usize = 100;

const AFTER_HELP: &str = "\
Without PLAN, a plan is made with the options of 'nearpath tune plan'. If a change fails, the
earlier ones are undone. --boot is for the service that 'nearpath tune export --as boot' writes:
interrupts are found by name, current values are overwritten, and a change that fails does not stop
the others, but sets the exit status to 1. Changes that the host already has are skipped, as are
optional changes that the kernel does not support (such as the affinity of a managed interrupt).
Requires root.

EXAMPLES
  nearpath tune apply plan.json
  nearpath tune apply plan.json --only irq-40 --only irq-41
  nearpath tune plan --json --nic eth0 | nearpath tune apply -
  nearpath tune apply --nic eth0 --port 443 --dry-run
  nearpath tune apply --boot /etc/nearpath/plan.json";

/// Arguments of `tune apply`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Apply {
    /// Plan written by 'nearpath tune plan --json'; '-' is standard input
    #[arg(value_name = "PLAN")]
    #[arg(conflicts_with_all = ["goal", "nic", "pid", "port", "unit", "mode", "irq_cpus", "app_cpus", "exclude_cpus", "channels", "priority", "cpuset", "stop_irqbalance", "napi", "performance", "wakeup_latency", "reasons", "move_memory", "hugepages", "sysctl", "findings"])]
    plan: Option<PathBuf>,
    /// Only the change with this id; repeatable
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// Check the plan against this host and show what would be changed, without changing it
    #[arg(long)]
    dry_run: bool,
    /// Overwrite values that were changed externally since the plan was made
    #[arg(long)]
    force: bool,
    /// Re-apply a plan from an earlier boot, as far as possible
    #[arg(long, requires = "plan", conflicts_with_all = ["dry_run", "force"])]
    boot: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
    // Expert options (see help.rs) stand last.
    #[command(flatten, next_help_heading = None::<&'static str>)]
    plan_options: PlanOptions,
    #[command(flatten, next_help_heading = None::<&'static str>)]
    confirm_within: ConfirmWithin,
}

impl Apply {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let plan: Option<Plan> = self.plan.as_deref().map(plan_of).transpose()?;
        if let Some(plan) = plan.as_ref().filter(|_| self.boot) {
            return self.at_boot(plan);
        }
        let outcome = self.namespace.read(|root| self.apply(root, plan))?;
        if self.json {
            output::json(&json::applied(!self.dry_run, &outcome))
        } else {
            output::text(&text::applied(!self.dry_run, &outcome))
        }
    }

    fn apply(&self, root: &Root, plan: Option<Plan>) -> anyhow::Result<Outcome> {
        let boot = steering::boot(root)?;
        let plan = match plan {
            Some(plan) => plan,
            None => self.plan_options.plan(root, true)?,
        };
        let steps = plan.steps(&self.only, &boot, current_netns(root).inode)?;
        if steps.is_empty() {
            return Ok(Outcome { made: vec![], skipped: vec![] });
        }
        Journal::check(&Journal::folder())?;
        let live = Live::new().forced(self.force);
        if self.dry_run {
            return dry(steps, &live);
        }
        let executor = executor(&boot, live)?;
        self.confirm_within.make(executor, |executor| executor.apply_steps(steps))
    }
}

impl Apply {
    /// Re-applies a plan in this boot, and reports the changes that failed.
    fn at_boot(&self, plan: &Plan) -> Result<(), Failure> {
        let Made { outcome, refused } = self.namespace.read(|root| {
            let boot = steering::boot(root)?;
            let AtBoot { steps, left_out } = plan.at_boot(&self.only, current_netns(root).inode)?;
            left_out.iter().for_each(|(id, reason)| say(&format!("{id}: skipped: {reason}")));
            let mut executor = executor(&boot, Live::new())?;
            executor.forget_lost(&boot)?;
            Ok::<_, anyhow::Error>(make_each(root, &mut executor, steps))
        })?;
        if self.json {
            output::json(&json::applied(true, &outcome))?;
        } else {
            output::text(&text::applied(true, &outcome))?;
        }
        refused.iter().for_each(|reason| say(reason));
        match refused.len() {
            0 => Ok(()),
            1 => Err(anyhow!("1 change failed").into()),
            count => Err(anyhow!("{count} changes failed").into()),
        }
    }
}

/// The outcome of a plan whose changes are applied individually.
struct Made {
    outcome: Outcome,
    refused: Vec<String>,
}

/// Applies each step individually. The target is looked up just before, as an earlier step may have re-created
/// the queues.
fn make_each(root: &Root, executor: &mut Executor<Live>, steps: Vec<Step>) -> Made {
    let mut made = Made { outcome: Outcome { made: vec![], skipped: vec![] }, refused: Vec::new() };
    for Step { change, optional } in steps {
        let target = change.target.to_string();
        let now = Live::new().retargeted(root, &change);
        let ended = match now {
            Ok(Some(change)) => executor.apply_steps(vec![Step { change, optional }]),
            Ok(None) => {
                made.refused.push(format!("{target}: not present"));
                continue;
            }
            Err(error) => Err(error),
        };
        match ended {
            Ok(Outcome { made: changes, skipped }) => {
                made.outcome.made.extend(changes);
                made.outcome.skipped.extend(skipped);
            }
            Err(error) => made.refused.push(error.to_string()),
        }
    }
    made
}

/// A dry run: the changes that would be made. It refuses what a real run would refuse, as far as that does not
/// depend on changes that it does not make.
fn dry(steps: Vec<Step>, live: &Live) -> anyhow::Result<Outcome> {
    let mut earlier: Vec<Target> = Vec::new();
    let check = |change: Change| {
        let target = change.target.clone();
        let checked = match live.check(change.clone()) {
            Err(TuneError::Drift { .. } | TuneError::Kernel { .. })
                if earlier.iter().any(|its| its.may_change(&target)) =>
            {
                say(&format!("{target}: not checked: depends on an earlier change of the plan"));
                Ok(change)
            }
            checked => checked,
        };
        earlier.push(target);
        checked
    };
    let (made, undone) = (|_: &Change| {}, |_: &Change| {});
    let mut executor = Executor::dry(DryRun { check, made, undone });
    Ok(executor.apply_steps(steps)?)
}

/// Reads a plan from a file.
pub(in crate::commands) fn plan_of(file: &Path) -> anyhow::Result<Plan> {
    let bytes = read(file, MAX_FILE)?;
    let no_plan = || format!("{} is not a plan of 'nearpath tune plan --json'", file.display());
    // A plan for an application on DPDK has the changes in it.
    match serde_json::from_slice::<DpdkPlan>(&bytes) {
        Ok(DpdkPlan { changes: Some(plan), .. }) => Ok(plan),
        Ok(_) => bail!(
            "{} is a plan of --dpdk without changes: run its commands, or plan while Open vSwitch is running",
            file.display()
        ),
        Err(_) => serde_json::from_slice(&bytes).with_context(no_plan),
    }
}

/// Reads the trial, or the trials, in a file.
pub(in crate::commands) fn trials_of(file: &Path) -> anyhow::Result<Vec<TrialReport>> {
    #[derive(Deserialize)]
    struct Version {
        schema: u32,
    }
    #[derive(Deserialize)]
    struct Several {
        trials: Vec<TrialReport>,
    }
    let bytes = read(file, MAX_FILE)?;
    let name = file.display();
    let no_trial = || format!("{name} is not a trial of 'nearpath tune try --json'");
    let Version { schema } = serde_json::from_slice(&bytes).with_context(no_trial)?;
    if schema != TRIAL_SCHEMA {
        bail!("{name} has trials of version {schema}, expected {TRIAL_SCHEMA}");
    }
    let several = match serde_json::from_slice::<Several>(&bytes) {
        Ok(several) => several,
        Err(_) => Several { trials: vec![serde_json::from_slice(&bytes).with_context(no_trial)?] },
    };
    if several.trials.len() > TRIALS_MAX {
        bail!("{name} has more than {TRIALS_MAX} trials");
    }
    Ok(several.trials)
}

/// Opens a file or a pipe of the shell (`<(…)`), without waiting until a FIFO is opened for writing.
fn open(file: &Path) -> std::io::Result<File> {
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let opened = File::options().read(true).custom_flags(nonblocking).open(file)?;
    fcntl_setfl(&opened, OFlags::empty())?;
    Ok(opened)
}

/// Reads a file given by the user, or standard input for `-`, of at most so many bytes.
pub(in crate::commands) fn read(file: &Path, max: u64) -> anyhow::Result<Vec<u8>> {
    let cannot = || format!("cannot read {}", file.display());
    let mut bytes = Vec::new();
    let length = if file == Path::new("-") {
        std::io::stdin().take(max + 1).read_to_end(&mut bytes).with_context(cannot)?
    } else {
        let opened = open(file).with_context(cannot)?;
        opened.take(max + 1).read_to_end(&mut bytes).with_context(cannot)?
    };
    if length as u64 > max {
        bail!("{} is larger than {} MiB", file.display(), max >> 20);
    }
    Ok(bytes)
}
