//! `nearpath demo tune`: the misplaced path is measured, planned for, put right and proved by a trial,
//! and everything is undone to the byte.

use super::misplaced::tell;
use crate::demo::Demo;
use crate::demo::memory::MemoryFolder;
use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::{Time, duration};
use crate::trial::{Bench, Course, Measured, Meter};
use anyhow::{Context, anyhow};
use clap::Args;
use nearpath_diagnose::diagnose;
use nearpath_host::{NetnsRef, Root, Wanted, current_netns, in_netns};
use nearpath_instruments::Filter;
use nearpath_instruments::stages::{Options, Stages};
use nearpath_model::{Demands, Measurement, Plan, TrialReport};
use nearpath_trial::comparison::CYCLES_MIN;
use nearpath_trial::live::{Figure, Metric};
use nearpath_tune::planners::{Request, Traffic, Worker, plan, workloads};
use nearpath_tune::{Executor, Journal, Live, change_status, settings, steering};
use nearpath_views::json::{TuneDemo, journal, rolled_back};
use nearpath_views::text;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
Builds the path of 'nearpath demo', whose packets RPS sends to one CPU and which are read on another;
they come in near their readers, and there are fewer of them. Measures it, plans what would mend it, and tries the plan on the running load: applied and undone in
turns, with the verdict of 'tune try'. The plan is kept if it made packets faster; how the journal
then stands is shown, everything is rolled back, and all settings are compared with what they were
before, byte for byte.

It takes root and a kernel with BTF, changes nothing but what it made itself, and leaves nothing
behind, also when it is killed: the journal is in memory.

EXAMPLES
  nearpath demo tune                    some forty seconds
  nearpath demo tune --cycles 4 --block 500ms
  nearpath demo tune --json | jq '.trial | {baseline, with_plan, verdict}'";

/// Arguments of `demo tune`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct TuneArguments {
    /// How long to measure before planning: 500ms, 5s, 1m
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = duration)]
    duration: Duration,
    /// How many cycles of four blocks the trial has
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(CYCLES_MIN as i64..=1000))]
    cycles: u16,
    /// How long a block is
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    block: Duration,
    /// The kernel's BTF from a file, for a kernel that has none of its own
    #[arg(long, value_name = "FILE")]
    btf: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// How long the path settles after it was switched.
const WARM_UP: Duration = Duration::from_millis(200);

impl TuneArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let here = nearpath_host::read(&Root::live(), &Wanted::default())
            .context("cannot read the host")?;
        let demo = Demo::start_near(&here, OsStr::new(super::PROGRAM))?;
        demo.story().iter().for_each(|line| say(line));
        let netns = demo.server_netns().context("the demo's namespace")?;
        let shown = in_netns(&NetnsRef::Fd(netns), |root| self.show(&demo, &root, &interrupt));
        // Whatever came of it, the path is taken down.
        tell(&demo.stop()?);
        let shown = shown.context("the demo's namespace")??;
        if self.json {
            output::json(&shown)?;
        } else {
            output::text(&text::tune_demo(&shown))?;
        }
        match shown.not_restored.as_slice() {
            [] => Ok(()),
            left => Err(anyhow!("not as before: {}", left.join(", ")).into()),
        }
    }

    /// All of it, in the server's namespace.
    fn show(&self, demo: &Demo, root: &Root, interrupt: &Interrupt) -> anyhow::Result<TuneDemo> {
        let before = all_settings(root, demo.server_pid())?;
        let mut shown = self.planned(demo, root, interrupt)?;
        // In memory, so that nothing is left of it, whatever ends this.
        let (folder, boot) = (MemoryFolder::new()?, steering::boot(root)?);
        let executor = Executor::new(Journal::open(&folder.path(), &boot)?, Live::new());
        let trial = Attempt { plan: &shown.plan, boot: &boot, root, interrupt };
        let (tried, mut executor) = self.tried(demo, &trial, executor)?;
        match tried {
            Ok(report) => shown.trial = Some(report),
            Err(reason) => shown.not_tried = Some(reason),
        }
        shown.journal = journal(&change_status(&executor.entries(), &Live::new(), &boot)).journal;
        shown.undone = rolled_back(&executor.rollback(None, &boot)).changes;
        let after = all_settings(root, demo.server_pid())?;
        shown.settings = before.len();
        shown.not_restored = differing(&before, &after);
        Ok(shown)
    }

    /// What is measured, and what would mend it.
    fn planned(&self, demo: &Demo, root: &Root, interrupt: &Interrupt) -> anyhow::Result<TuneDemo> {
        let wanted = Wanted { sockets: true, memory_of: vec![demo.server_pid()] };
        let read = || nearpath_host::read(root, &wanted).context("cannot read the host");
        let before = read()?;
        let time = Time { duration: self.duration, interval: None, btf: self.btf.clone() };
        let mut stages = Stages::new(&before.topology, self.options(demo)?);
        let each = |measurement: &Measurement| format!("{} packets", measurement.packets.started);
        let measured = time.measure(&mut stages, interrupt, each)?;
        drop(stages);
        let host = read()?;
        let findings = diagnose(&host, Some(&before), Some(&measured)).findings;
        let traffic = Traffic::of_measurement(&measured, &host.topology);
        let nics = vec![demo.device().to_owned()];
        let request = Request { nics, traffic, ..Request::default() };
        let workloads = workloads(root, &[demo.server_pid()])?;
        let (boot, netns) = (Some(steering::boot(root)?), current_netns(root).inode);
        let plan = plan(&host, &findings, &request, &workloads, boot, netns)?;
        Ok(TuneDemo::new(&measured, findings, plan))
    }

    /// The report of the trial, or why there is none; and the executor with what is in force.
    fn tried(
        &self,
        demo: &Demo,
        attempt: &Attempt<'_>,
        executor: Executor<Live>,
    ) -> anyhow::Result<(Result<TrialReport, String>, Executor<Live>)> {
        let Attempt { plan, boot, root, interrupt } = *attempt;
        let ids: Vec<String> = plan.changes.iter().map(|change| change.id.clone()).collect();
        if ids.is_empty() {
            return Ok((Err("the plan has no changes".to_owned()), executor));
        }
        let steps = plan.steps(&[], boot, current_netns(root).inode)?;
        let course = Course {
            cycles: self.cycles.into(),
            block: self.block,
            warm_up: WARM_UP,
            minimum_effect_percent: Demands::default().minimum_effect_percent,
        };
        let host = nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
        say(&format!(
            "tries the plan of {} for {:?}: {} blocks without it and with it in turns",
            ids.len(),
            course.time(),
            4 * course.cycles
        ));
        let measured = Measured {
            metric: Metric::of(Figure::Percentile(0.99)),
            options: self.options(demo)?,
            nics: vec![demo.device().to_owned()],
            probes: None,
            loads: Vec::new(),
        };
        let meter = Meter::start(&host, measured)?;
        let boot = boot.to_owned();
        let mut bench = Bench { root, executor, meter, interrupt, course, boot };
        let report = match bench.trial(ids, steps) {
            Ok(report) => Ok(report),
            Err(error) if interrupt.happened() => Err(format!("{error:#}")),
            Err(error) => return Err(error),
        };
        Ok((report, bench.executor))
    }

    /// Packets of the server's namespace, whatever else goes on on the machine.
    fn options(&self, demo: &Demo) -> anyhow::Result<Options> {
        let netns = u32::try_from(demo.server_netns_inode()).context("the namespace's inode")?;
        let filter = Filter { netns: Some(netns), ..Filter::default() };
        Ok(Options { filter, btf_file: self.btf.clone(), ..Options::default() })
    }
}

/// What is tried, and where.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    plan: &'a Plan,
    boot: &'a str,
    root: &'a Root,
    interrupt: &'a Interrupt,
}

/// Every setting of the namespace that nearpath may change, and where the server's threads may run; by
/// name, with every byte. The machine's own settings may be changed by others meanwhile.
fn all_settings(root: &Root, server: u32) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let mut all = settings(root);
    let of_namespace = ["/sys/class/net/", "/proc/sys/net/"];
    all.retain(|path, _| of_namespace.iter().any(|prefix| path.starts_with(prefix)));
    for workload in workloads(root, &[server])? {
        let of_thread =
            |worker: Worker| (worker.thread.to_string(), worker.cpus.to_string().into());
        all.extend(workload.threads.into_iter().map(of_thread));
    }
    Ok(all)
}

/// Names of settings that are not the same any more, or not there.
fn differing(a: &BTreeMap<String, Vec<u8>>, b: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    names.into_iter().filter(|&name| a.get(name) != b.get(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_makes_a_difference_and_so_does_a_file() {
        let of = |files: &[(&str, &str)]| -> BTreeMap<String, Vec<u8>> {
            files
                .iter()
                .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
                .collect()
        };
        let before = of(&[("a", "0"), ("b", "1\n"), ("c", "2")]);
        assert!(differing(&before, &before.clone()).is_empty());
        let after = of(&[("a", "0"), ("b", "1"), ("d", "2")]);
        assert_eq!(differing(&before, &after), ["b", "c", "d"]);
    }
}
