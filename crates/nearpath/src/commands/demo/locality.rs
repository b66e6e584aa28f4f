//! `nearpath demo locality`: puts the locality of a running server right, step by step.

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
use nearpath_model::{Change, Proposal, ProposedChange, Target, Topology};
use nearpath_trial::load::CallersReport;
use nearpath_views::json::{LOCALITY_STEPS_SCHEMA, LocalityStep, LocalitySteps, NotMade};
use nearpath_views::text;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
Builds two network namespaces joined by a veth pair with a queue for each CPU, a server of workers
that share a port (SO_REUSEPORT) in one and clients in the other. Then it does what keeps packets
and connections on the CPU that they come in on, one thing after the other: pins the workers, pins
the queues, steers connections to the worker on their CPU, switches RPS off, maps transmit queues to
CPUs (XPS). After each step it measures how many packets and connections stay on their CPU.

It takes root, changes nothing but what it made itself, and leaves nothing behind, also when it is
killed.

EXAMPLES
  nearpath demo locality                some ten seconds, a row for each step
  nearpath demo locality --for 10s      ten seconds of measuring after each
  nearpath demo locality --json | jq '.steps[] | {name, rx: (.rx.same_cpu / .rx.packets)}'";

/// Before the first step.
const AS_FOUND: &str = "as found";

/// Arguments of `demo locality`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct LocalityArguments {
    /// How long to measure after each step: 500ms, 2s, 1m
    #[arg(long = "for", value_name = "TIME", default_value = "2s", value_parser = duration)]
    duration: Duration,
    /// The kernel's BTF from a file, for a kernel that has none of its own
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
        // Whatever came of it, first the scene is taken down.
        tell(&scene.stop()?);
        let steps = steps?;
        if self.json { output::json(&steps) } else { output::text(&text::locality_steps(&steps)) }
    }

    /// Makes each step and measures after it, until all are made or a signal comes.
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
                    Err("there is one CPU: on it everything is local, whatever is done".to_owned())
                }
                Some(step) => step.apply(scene).map_err(|error| format!("{error:#}")),
            };
            let changes = match changes {
                Ok(changes) => changes.iter().map(|change| in_words(root, change)).collect(),
                Err(reason) => {
                    say(&format!("{name}: not made: {reason}"));
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
            say("ended early by a signal");
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
        format!(", {:.0} % of {} accepts local", local * 100.0, step.accepts.accepts)
    });
    format!("{number} {}: {rates}{accepts}", step.name)
}

/// A change as people read it: threads with their name.
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
    }
}

/// What the load was, and that nothing of it is left.
fn tell(report: &CallersReport) {
    let CallersReport { planned, connected, answered, failed, failures } = report;
    say(&format!(
        "load: {connected} connections, {answered} requests answered, {failed} connections failed; \
         veth pair and namespaces are gone"
    ));
    if *connected < planned / 10 * 9 {
        say(&format!(
            "the machine could not keep up: of {planned} connections {connected} were made"
        ));
    }
    failures.iter().for_each(|failure| say(&format!("the load failed in part: {failure}")));
}
