//! `nearpath demo locality`: fixes the locality of a running server, step by step.

use crate::demo::locality::Scene;
use crate::demo::locality::measure::{Instruments, Look};
use crate::demo::locality::steps::STEPS;
use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::duration;
use anyhow::Context;
use clap::Args;
use nearpath_host::{Root, Wanted};
use nearpath_model::units::percent;
use nearpath_model::{Change, Proposal, ProposedChange, Target, Topology};
use nearpath_trial::load::CallersReport;
use nearpath_views::json::{LOCALITY_STEPS_SCHEMA, LocalityStep, LocalitySteps, NotMade};
use nearpath_views::text;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
Creates two network namespaces joined by a veth pair with one queue per CPU, a server whose workers
share a port (SO_REUSEPORT) in one, and clients in the other. Then it makes packets and connections
stay on the CPU that received them, in steps: pins the workers, pins the queues, steers connections
to the worker on their CPU, turns RPS off, and maps transmit queues to CPUs (XPS). After each step
it measures how many packets and connections stay on their CPU.

Requires root. It changes only what it created, and leaves nothing behind, even when killed.

EXAMPLES
  nearpath demo locality                about ten seconds, one row per step
  nearpath demo locality --for 10s      measure for ten seconds after each step
  nearpath demo locality --json | jq '.steps[] | {name, rx: (.rx.same_cpu / .rx.packets)}'";

/// Before the first step.
const AS_FOUND: &str = "as found";

/// Arguments of `demo locality`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct LocalityArguments {
    /// Duration of the measurement after each step: 500ms, 2s, 1m
    #[arg(long = "for", value_name = "TIME", default_value = "2s", value_parser = duration)]
    duration: Duration,
    /// Read the kernel's BTF from this file, for kernels without /sys/kernel/btf/vmlinux
    #[arg(long, value_name = "FILE")]
    btf: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl LocalityArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let root = Root::live();
        let here =
            nearpath_host::read(&root, &Wanted::default()).context("cannot read the host")?;
        let scene = Scene::start(&here, OsStr::new(super::PROGRAM))?;
        scene.story().iter().for_each(|line| say(line));
        let steps = self.observe(&scene, &root, &here.topology, &interrupt);
        // The scene is torn down first, on success and on failure.
        report_load(&scene.stop()?);
        let steps = steps?;
        if self.json { output::json(&steps) } else { output::text(&text::locality_steps(&steps)) }
    }

    /// Applies each step and measures after it, until all are done or a signal arrives.
    fn observe(
        &self,
        scene: &Scene,
        root: &Root,
        topology: &Topology,
        interrupt: &Interrupt,
    ) -> anyhow::Result<LocalitySteps> {
        let mut instruments = Instruments::start(scene, root, topology, self.btf.as_deref())?;
        say(&format!("measuring for {:?} as found, and after each step", self.duration));
        let mut shown = LocalitySteps {
            schema: LOCALITY_STEPS_SCHEMA,
            cpus: scene.cpus().iter().copied().collect(),
            ..LocalitySteps::default()
        };
        for step in std::iter::once(None).chain(STEPS.map(Some)) {
            let name = step.map_or(AS_FOUND, |step| step.name()).to_owned();
            let changes = match step {
                None => Ok(Vec::new()),
                Some(_) if scene.cpus().len() < 2 => {
                    Err("only one CPU: everything is local".to_owned())
                }
                Some(step) => step.apply(scene).map_err(|error| format!("{error:#}")),
            };
            let changes = match changes {
                Ok(changes) => changes.iter().map(|change| in_words(root, change)).collect(),
                Err(reason) => {
                    say(&format!("{name}: skipped: {reason}"));
                    shown.not_made.push(NotMade { name, reason });
                    continue;
                }
            };
            scene.settle(|time| interrupt.wait(time))?;
            if interrupt.happened() && !shown.steps.is_empty() {
                break;
            }
            let before = instruments.look()?;
            interrupt.wait(self.duration);
            let after = instruments.look()?;
            let step = LocalityStep { name, changes, ..after.since(&before) };
            say(&progress(shown.steps.len(), &step));
            shown.steps.push(step);
            take_method(&mut shown, &after);
            if interrupt.happened() {
                break;
            }
        }
        if interrupt.happened() {
            say("stopped early by a signal");
        }
        Ok(shown)
    }
}

fn take_method(shown: &mut LocalitySteps, look: &Look) {
    shown.method = look.locality.method;
    shown.fallback.clone_from(&look.locality.fallback);
}

fn progress(number: usize, step: &LocalityStep) -> String {
    let rates = text::locality_rates(&step.rx, &step.tx, step.duration_s);
    let accepts = step.accepts.local().map_or_else(String::new, |local| {
        format!(", {} of {} accepts local", percent(local), step.accepts.accepts)
    });
    format!("{number} {}: {rates}{accepts}", step.name)
}

/// A change for display: threads with their names.
fn in_words(_root: &Root, change: &Change) -> ProposedChange {
    let target = match &change.target {
        Target::Thread(thread) => {
            let tid = Some(thread.tid).filter(|tid| *tid != thread.pid);
            Proposal::Affinity { pid: thread.pid, tid }
        }
        target => Proposal::Setting(target.clone()),
    };
    ProposedChange {
        target,
        before: Some(change.before.clone()),
        after: change.after.clone(),
        why: change.why.clone(),
        alternative: false,
        netns: None,
    }
}

/// Reports what the load did, and that nothing is left of it.
fn report_load(report: &CallersReport) {
    let CallersReport { planned, connected, answered, failed, failures } = report;
    say(&format!(
        "load: {connected} connections, {answered} requests answered, {failed} connections failed; \
         veth pair and namespaces removed"
    ));
    if *connected < planned / 10 * 9 {
        say(&format!("the host could not keep up: {connected} of {planned} connections were made"));
    }
    failures.iter().for_each(|failure| say(&format!("part of the load failed: {failure}")));
}
