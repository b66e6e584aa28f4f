//! `nearpath tune try`: applies a plan and undoes it in turns while traffic flows, and keeps it only if
//! it made things better.

use super::apply::plan_of;
use super::plan::Asked;
use crate::failure::{Failure, say};
use crate::filters::Filters;
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::{Progress, duration};
use crate::source::Namespace;
use anyhow::{Context, anyhow, bail};
use clap::Args;
use nearpath_host::{CpuTime, Host, Root, Wanted, current_netns};
use nearpath_instruments::Instrument;
use nearpath_instruments::stages::{Options, Stages};
use nearpath_trial::comparison::{Block, CYCLES_MIN, Comparison, Demands, Verdict, compare};
use nearpath_trial::experiment::{self, Experiment};
use nearpath_trial::live::{Hops, METRICS, Metric, Reading, block};
use nearpath_trial::{Moved, TRIAL_SCHEMA, TrialReport};
use nearpath_tune::{Executor, Journal, Live, Plan, Step, steering};
use nearpath_views::text;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
The traffic must flow meanwhile: it is the host's own. Blocks of time without the plan (A) and with
it (B) take turns, A B B A, so that slow drift cancels out; the difference is given with a
confidence interval of 95 % (bootstrap over the cycles), beside what the blocks without the plan
differ among themselves. The plan is kept only when it is better: beyond noise and --minimum-effect,
without more loss, CPU time or fewer packets than the guards allow. Otherwise, at the first error
and at ^C it is undone. What was changed stands in the journal meanwhile.

METRICS
  p50 p90 p99 p99.9   sum over the receive path's spans of this percentile, each by the share of
                      packets that pass it
  mean                mean time of a packet on the receive path
  stage:FROM..TO      the 99th percentile of one span, as 'nearpath measure stages' names it
  pps                 packets that reach their end, per second

EXAMPLES
  nearpath tune try --nic eth0 --port 443
  nearpath tune try plan.json --metric mean --cycles 20 --block 5s
  nearpath tune try plan.json --each           one change after the other; keep those that help";

/// How many cycles a trial has, unless told.
const CYCLES: usize = 12;
/// Of resampling: the same blocks give the same numbers.
const SEED: u64 = 1;

/// Arguments of `tune try`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Try {
    /// A plan that 'nearpath tune plan --json' wrote; '-' is standard input
    #[arg(value_name = "PLAN")]
    #[arg(conflicts_with_all = ["goal", "nic", "pid", "unit", "cpus", "housekeeping", "findings"])]
    plan: Option<PathBuf>,
    /// Only the change with this id; may be given again
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    /// What is compared, of received packets (of --port, where one is given)
    #[arg(long, default_value = "p99", value_name = "METRIC", value_parser = metric)]
    metric: Metric,
    /// Only packets that come by this interface
    #[arg(long, value_name = "NAME")]
    dev: Option<String>,
    /// How many cycles of four blocks
    #[arg(long, value_name = "N", default_value_t = CYCLES, value_parser = cycles)]
    cycles: usize,
    /// How long a block is
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    block: Duration,
    /// How long the host settles after it was switched
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = duration)]
    warm_up: Duration,
    /// A smaller difference counts as none, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = Demands::default().minimum_effect_percent)]
    #[arg(value_parser = percent)]
    minimum_effect: f64,
    /// Try the changes one by one, in the plan's order, and keep those that help
    #[arg(long)]
    each: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    namespace: Namespace,
}

fn metric(text: &str) -> Result<Metric, String> {
    text.parse().map_err(|_| format!("there are {METRICS}"))
}

fn cycles(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(cycles) if (CYCLES_MIN..=1000).contains(&cycles) => Ok(cycles),
        _ => Err(format!("from {CYCLES_MIN} to 1000")),
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("from 0 to 100".to_owned()),
    }
}

/// `tune try --each --json`.
#[derive(Serialize)]
struct Trials {
    schema: u32,
    trials: Vec<TrialReport>,
}

impl Try {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let plan = self.plan.as_deref().map(plan_of).transpose()?;
        let netns = self.namespace.inode()?;
        let reports = self.namespace.read(|root| self.trials(root, plan, netns, &interrupt))?;
        match reports.as_slice() {
            [report] if self.json && !self.each => output::json(report),
            _ if self.json => output::json(&Trials { schema: TRIAL_SCHEMA, trials: reports }),
            _ => {
                let texts: Vec<String> = reports.iter().map(|report| self.text(report)).collect();
                output::text(&texts.join("\n"))
            }
        }
    }

    fn text(&self, report: &TrialReport) -> String {
        let of = if self.each {
            format!("{}\n", text::printable(&report.changes.join(", ")))
        } else {
            String::new()
        };
        of + &text::trial(report)
    }

    fn trials(
        &self,
        root: &Root,
        plan: Option<Plan>,
        netns: Option<u64>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Vec<TrialReport>> {
        let boot = steering::boot(root)?;
        let plan = match plan {
            Some(plan) => plan,
            None => self.asked.plan(root, true)?,
        };
        let is_wanted = |id: &String| self.only.is_empty() || self.only.contains(id);
        let ids: Vec<String> =
            plan.changes.iter().map(|change| change.id.clone()).filter(is_wanted).collect();
        // Also says so when an id is not in the plan.
        plan.steps(&self.only, &boot, current_netns(root).inode)?;
        if ids.is_empty() {
            bail!("the plan has no changes: there is nothing to try");
        }
        let tried: Vec<Vec<String>> =
            if self.each { ids.into_iter().map(|id| vec![id]).collect() } else { vec![ids] };
        let host = Host::read(root, &Wanted::default()).context("cannot read the host")?;
        let filter =
            Filters::received(self.dev.clone(), self.asked.only_port()).resolve(&host, netns)?;
        let options = Options { filter, ..Options::default() };
        let mut stages = Stages::new(&host.topology, options);
        let executor = Executor::new(Journal::open(&Journal::folder(), &boot)?, Live::new());
        stages.start().context("cannot measure")?;
        let mut state = Switched {
            root,
            executor,
            stages,
            interrupt,
            settings: self,
            boot: boot.clone(),
            steps: Vec::new(),
            base: 0,
            with: false,
            hops: [Vec::new(), Vec::new()],
        };
        let mut reports = Vec::new();
        for changes in tried {
            let steps = plan.steps(&changes, &boot, current_netns(root).inode)?;
            reports.push(state.trial(changes, steps)?);
        }
        Ok(reports)
    }
}

/// The host with its journal: the plan can be put into force and undone, and packets are followed all
/// the time.
struct Switched<'a> {
    root: &'a Root,
    executor: Executor<Live>,
    stages: Stages,
    interrupt: &'a Interrupt,
    settings: &'a Try,
    boot: String,
    steps: Vec<Step>,
    /// The journal's last change before the trial.
    base: u64,
    with: bool,
    /// Of the blocks without the plan, and with it.
    hops: [Vec<Hops>; 2],
}

impl Switched<'_> {
    /// Tries these steps, and leaves them in force only if they make it better.
    fn trial(&mut self, changes: Vec<String>, steps: Vec<Step>) -> anyhow::Result<TrialReport> {
        self.steps = steps;
        self.base = self.executor.entries().last().map_or(0, |entry| entry.id);
        self.hops = [Vec::new(), Vec::new()];
        let compared = self.compared();
        let keep = matches!(&compared, Ok(comparison) if comparison.verdict == Verdict::Better);
        let left = if keep { self.set(true) } else { self.undo() };
        let comparison = match (compared, left) {
            (Ok(comparison), Ok(())) => comparison,
            (Ok(_), Err(error)) => return Err(error),
            (Err(error), Ok(())) => return Err(error.context("the plan is undone")),
            (Err(error), Err(undo)) => {
                say(&format!("{undo:#}; see 'nearpath tune status'"));
                return Err(error);
            }
        };
        let [without, with] = self.hops.each_ref().map(|hops| mean(hops));
        Ok(TrialReport {
            schema: TRIAL_SCHEMA,
            changes,
            metric: self.settings.metric.to_string(),
            comparison,
            mechanism: Moved { without, with },
            kept: keep,
        })
    }

    fn compared(&mut self) -> anyhow::Result<Comparison> {
        let settings = self.settings;
        let blocks = u32::try_from(4 * settings.cycles).unwrap_or(u32::MAX);
        // Two switches a cycle, and one at the begin.
        let time = settings.block * blocks + settings.warm_up * (blocks / 2 + 1);
        let progress = Progress::new(time);
        let began = std::time::Instant::now();
        let cycles = experiment::run(self, settings.cycles, |done| {
            progress.show(began.elapsed(), &format!("block {done} of {blocks}"));
        })?;
        drop(progress);
        let demands =
            Demands { minimum_effect_percent: settings.minimum_effect, ..Demands::default() };
        compare(&cycles, &demands, SEED).context("a block has no metric to compare")
    }

    /// Undoes what the trial has in force.
    fn undo(&mut self) -> anyhow::Result<()> {
        self.with = false;
        for (entry, undone) in self.executor.rollback(Some(self.base), &self.boot) {
            undone.with_context(|| format!("change {} could not be undone", entry.id))?;
        }
        Ok(())
    }

    fn reading(&mut self) -> anyhow::Result<Reading> {
        let measurement = self.stages.read().context("cannot measure")?;
        Ok(Reading { measurement, cpu_time: CpuTime::read_all(self.root) })
    }

    fn wait(&self, time: Duration) -> anyhow::Result<()> {
        if self.interrupt.wait(time) {
            bail!("ended early by a signal");
        }
        Ok(())
    }
}

impl Experiment for Switched<'_> {
    type Error = anyhow::Error;

    fn set(&mut self, with: bool) -> anyhow::Result<()> {
        if with && !self.with {
            let outcome = self.executor.apply_steps(self.steps.clone())?;
            if outcome.made.is_empty() {
                let why = outcome.skipped.first().map(|skipped| skipped.reason.to_string());
                return Err(anyhow!(
                    "nothing of the plan can be changed: {}",
                    why.unwrap_or_else(|| "it is empty".to_owned())
                ));
            }
            self.with = true;
        } else if !with && self.with {
            self.undo()?;
        }
        self.wait(self.settings.warm_up)
    }

    fn block(&mut self) -> anyhow::Result<Block> {
        let begin = self.reading()?;
        self.wait(self.settings.block)?;
        let end = self.reading()?;
        let (measured, hops) =
            block(&self.settings.metric, &begin, &end).map_err(anyhow::Error::msg)?;
        self.hops[usize::from(self.with)].push(hops);
        Ok(measured)
    }
}

fn mean(hops: &[Hops]) -> Hops {
    let count = hops.len().max(1) as f64;
    let optional = |of: fn(&Hops) -> Option<f64>| {
        let all: Option<Vec<f64>> = hops.iter().map(of).collect();
        all.map(|all| all.iter().sum::<f64>() / count)
    };
    Hops {
        other_cpu: hops.iter().map(|hops| hops.other_cpu).sum::<f64>() / count,
        other_llc: optional(|hops| hops.other_llc),
        other_node: optional(|hops| hops.other_node),
    }
}
