//! `nearpath demo tune`: measures the misplaced path, plans a fix, tests it with a trial, and restores every
//! setting byte for byte.

use super::misplaced::report_load;
use crate::demo::Demo;
use crate::demo::memory::MemoryFolder;
use crate::failure::{Failure, say};
use crate::guardian::Asker;
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::{Time, duration};
use crate::trial::{
    ABOVE_NS, BLOCK, Bench, Compared, MINIMUM_EFFECT, Measured, Meter, TrialConfig,
};
use anyhow::{Context, anyhow};
use clap::Args;
use nearpath_diagnose::diagnose;
use nearpath_host::{NetnsRef, Root, Wanted, current_netns, in_netns};
use nearpath_instruments::Filter;
use nearpath_instruments::stages::{Options, Stages};
use nearpath_model::{Measurement, Plan, Sysctl, Target, TrialReport};
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
Creates the path of 'nearpath demo', where RPS sends packets to one CPU and they are read on
another. Here the packets arrive near their readers, at a lower rate. Then it measures the path,
plans a fix, and tries the plan under load: applied and undone at random, with the verdict of
'tune try'. The plan is kept if it made packets faster. Finally it shows the journal, rolls
everything back, and compares all settings with their original values, byte for byte.

Requires root and a kernel with BTF. It changes only what it created, and leaves nothing behind,
even when killed: the journal is in memory.

EXAMPLES
  nearpath demo tune                    half a minute
  nearpath demo tune --json | jq '.trial | {figures, verdict}'";

/// Arguments of `demo tune`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct TuneArguments {
    /// Duration of the measurement before planning: 500ms, 5s, 1m
    #[arg(long = "for", value_name = "TIME", default_value = "5s", value_parser = duration)]
    duration: Duration,
    /// Undecided after this time, the trial ends
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration)]
    try_for: Duration,
    /// Read the kernel's BTF from this file, for kernels without /sys/kernel/btf/vmlinux
    #[arg(long, value_name = "FILE")]
    btf: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl TuneArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let here = nearpath_host::read(&Root::live(), &Wanted::default())
            .context("cannot read the host")?;
        let demo = Demo::start_near(&here, OsStr::new(super::PROGRAM))?;
        demo.story().iter().for_each(|line| say(line));
        let netns = demo.server_netns().context("the demo's namespace")?;
        let shown = in_netns(&NetnsRef::Fd(netns), |root| self.show(&demo, &root, &interrupt));
        // The path is torn down on success and on failure.
        report_load(&demo.stop()?);
        let shown = shown.context("the demo's namespace")??;
        if self.json {
            output::json(&shown)?;
        } else {
            output::text(&text::tune_demo(&shown))?;
        }
        match shown.not_restored.as_slice() {
            [] => Ok(()),
            left => Err(anyhow!("not restored: {}", left.join(", ")).into()),
        }
    }

    /// All of it, in the server's namespace.
    fn show(&self, demo: &Demo, root: &Root, interrupt: &Interrupt) -> anyhow::Result<TuneDemo> {
        let before = all_settings(root, demo.server_pid())?;
        let mut shown = self.planned(demo, root, interrupt)?;
        // In memory, so that nothing is left of it however this ends.
        let (folder, boot) = (MemoryFolder::new()?, steering::boot(root)?);
        let executor = Executor::new(Journal::open(&folder.path(), &boot)?, Live::new());
        let trial = TrialRun { plan: &shown.plan, boot: &boot, root, interrupt };
        let (tried, mut executor) = self.tried(demo, &trial, executor)?;
        match tried {
            Ok(report) => shown.trial = Some(report),
            Err(reason) => shown.not_tried = Some(reason),
        }
        shown.journal = journal(&change_status(&executor.entries(), &Live::new(), &boot)).journal;
        shown.undone = rolled_back(&executor.rollback(None, &boot), None).changes;
        let after = all_settings(root, demo.server_pid())?;
        shown.settings = before.len();
        shown.not_restored = differing(&before, &after);
        Ok(shown)
    }

    /// The measurement, and the plan that would fix what it shows.
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
        let mut plan = plan(&host, &findings, &request, &workloads, boot, netns)?;
        // What is of the whole kernel is not the demonstration's to change.
        plan.changes.retain(|change| !is_of_kernel(&change.target));
        Ok(TuneDemo::new(&measured, findings, plan))
    }

    /// The report of the trial, or why there is none; and the executor with the applied changes.
    fn tried(
        &self,
        demo: &Demo,
        attempt: &TrialRun<'_>,
        executor: Executor<Live>,
    ) -> anyhow::Result<(Result<TrialReport, String>, Executor<Live>)> {
        let TrialRun { plan, boot, root, interrupt } = *attempt;
        let ids: Vec<String> = plan.changes.iter().map(|change| change.id.clone()).collect();
        if ids.is_empty() {
            return Ok((Err("the plan has no changes".to_owned()), executor));
        }
        let steps = plan.steps(&[], boot, current_netns(root).inode)?;
        let config = TrialConfig {
            compared: Compared::Packets { above_ns: ABOVE_NS },
            limit: self.try_for,
            block: BLOCK,
            settling: None,
            minimum_effect: MINIMUM_EFFECT,
            trials: 1,
            // It does not place the interrupts of a path without hardware.
            irqbalance: false,
        };
        let host = nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
        say(&format!("trying the plan of {} for at most {:?}", ids.len(), config.limit));
        let measured = Measured {
            metric: Metric::of(Figure::Mean),
            options: self.options(demo)?,
            nics: vec![demo.device().to_owned()],
            probes: None,
            loads: Vec::new(),
        };
        let meter = Meter::start(root, &host, measured)?;
        let boot = boot.to_owned();
        let asker = Asker::parent();
        let mut bench = Bench { root, executor, meter, interrupt, asker, config, boot };
        let report = match bench.trial(ids, steps) {
            Ok(report) => Ok(report),
            Err(error) if interrupt.happened() => Err(format!("{error:#}")),
            Err(error) => return Err(error),
        };
        Ok((report, bench.executor))
    }

    /// Only packets of the server's namespace.
    fn options(&self, demo: &Demo) -> anyhow::Result<Options> {
        let netns = u32::try_from(demo.server_netns_inode()).context("the namespace's inode")?;
        let filter = Filter { netns: Some(netns), ..Filter::default() };
        Ok(Options { filter, btf_file: self.btf.clone(), ..Options::default() })
    }
}

/// What to try, and where.
#[derive(Clone, Copy)]
struct TrialRun<'a> {
    plan: &'a Plan,
    boot: &'a str,
    root: &'a Root,
    interrupt: &'a Interrupt,
}

/// Every setting of the namespace that nearpath may change, and the CPU affinity of the server's threads: the
/// raw bytes by name. Settings of the host are not included, as others may change them meanwhile.
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

/// Whether it is a sysctl that no network namespace has for itself.
fn is_of_kernel(target: &Target) -> bool {
    let Target::File(file) = target else { return false };
    file.sysctl().is_some_and(Sysctl::is_of_initial_namespace)
}

/// Names of settings that differ or are missing.
fn differing(a: &BTreeMap<String, Vec<u8>>, b: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    names.into_iter().filter(|&name| a.get(name) != b.get(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_and_a_missing_file_are_differences() {
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
