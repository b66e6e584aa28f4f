//! `nearpath tune export`: writes changes as files that the system applies at the next boot.

use super::apply::plan_of;
use super::journal::statuses;
use super::plan::PlanOptions;
use crate::failure::{Failure, say};
use crate::output;
use crate::source::Source;
use anyhow::{Context, anyhow, bail};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use nearpath_host::{Root, cgroup_of};
use nearpath_model::{CpuSet, Plan, PlannedChange, Target, Thread};
use nearpath_tune::exporters::{
    Document, EXPORTERS, Export, ExportHost, Exporter, LeftOut, applied, export, exporter,
    skipped_lines,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const AFTER_HELP: &str = "\
Nothing is changed or installed: the first lines of each file say where to put it. Without PLAN, a
plan is made with the options of 'nearpath tune plan'. Changes that a format cannot express are
listed on standard error and in the files. Interrupts are identified by interface and handler name,
as their numbers may differ after a reboot. The script can also undo its changes.

EXAMPLES
  nearpath tune export plan.json --as sh -o nearpath-tune.sh
  nearpath tune export --applied --as systemd -o /tmp/units    what 'tune apply' has changed
  nearpath tune export --nic eth0 --as udev                    rules on standard output
  nearpath tune export plan.json --as sysctl --only somaxconn
  nearpath tune export --snapshot host.tar.zst --as ansible    for another host";

/// Arguments of `tune export`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct ExportArguments {
    /// Plan written by 'nearpath tune plan --json'; '-' is standard input
    #[arg(value_name = "PLAN")]
    #[arg(conflicts_with_all = ["goal", "nic", "pid", "port", "unit", "mode", "irq_cpus", "app_cpus", "exclude_cpus", "findings"])]
    plan: Option<PathBuf>,
    /// Export the changes in the journal of this host instead of a plan
    #[arg(long, conflicts_with_all = ["plan", "root", "snapshot"])]
    #[arg(conflicts_with_all = ["goal", "nic", "pid", "port", "unit", "mode", "irq_cpus", "app_cpus", "exclude_cpus", "findings"])]
    applied: bool,
    /// Output format
    #[arg(long = "as", value_name = "FORM", value_parser = form())]
    form: &'static Exporter,
    /// File or directory to write [default: standard output, for formats with a single file]
    #[arg(short, long, value_name = "FILE|DIR")]
    output: Option<PathBuf>,
    /// Only the change with this id; repeatable
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    #[command(flatten)]
    source: Source,
    // Expert options (see help.rs) stand last.
    #[command(flatten, next_help_heading = None::<&'static str>)]
    plan_options: PlanOptions,
}

/// The format names, each with a description.
fn form() -> impl TypedValueParser<Value = &'static Exporter> {
    let value = |form: &Exporter| PossibleValue::new(form.name).help(form.writes);
    PossibleValuesParser::new(EXPORTERS.iter().map(value))
        .try_map(|name| exporter(&name).ok_or_else(|| anyhow!("unknown format")))
}

impl ExportArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        if self.form.several && self.output.is_none() {
            let name = self.form.name;
            return Err(Failure::Usage(format!(
                "--as {name} writes several files; give a directory with --output DIR"
            )));
        }
        let plan: Option<Plan> = self.plan.as_deref().map(plan_of).transpose()?;
        let made = self.source.read(|root| self.export(root, plan))?;
        for line in skipped_lines(self.form.name, &made.left_out) {
            say(&line);
        }
        match (&self.output, made.documents.as_slice()) {
            (None, [document]) => output::text(&document.text),
            (Some(path), [document]) if !self.form.several && !path.is_dir() => {
                output::program(path, document.text.as_bytes(), document.program)
            }
            (Some(folder), documents) => write_all(folder, documents),
            (None, _) => Err(anyhow!("--as {} wrote no file", self.form.name).into()),
        }
    }

    fn export(&self, root: &Root, plan: Option<Plan>) -> anyhow::Result<Export> {
        let live = self.source.is_live();
        let (mut changes, gone) = match plan {
            _ if self.applied => applied(&statuses(root)?),
            Some(plan) => (plan.changes, Vec::new()),
            None => (self.plan_options.plan(root, live)?.changes, Vec::new()),
        };
        if let Some(unknown) = self.only.iter().find(|id| !changes.iter().any(|c| c.id == **id)) {
            bail!("no change has the id {unknown:?}");
        }
        changes.retain(|change| self.only.is_empty() || self.only.contains(&change.id));
        let units = if live { units(root, &changes) } else { BTreeMap::new() };
        let isolated = root.text("/sys/devices/system/cpu/isolated").ok();
        let isolated = isolated.and_then(|list| CpuSet::from_list(&list).ok()).unwrap_or_default();
        let functions = nearpath_host::read_devices(root).into_iter();
        let devices = functions.flat_map(|function| {
            let device = function.driver.map(|driver| (function.address, driver));
            let names = function.interfaces.into_iter();
            names.filter_map(move |name| Some((name, device.clone()?))).collect::<Vec<_>>()
        });
        let host = ExportHost { units, isolated, devices: devices.collect() };
        let wanted = |left: &LeftOut| self.only.is_empty() || self.only.contains(&left.id);
        let gone = gone.into_iter().filter(wanted).collect();
        Ok(export(self.form, &changes, &host, gone)?)
    }
}

/// The systemd services of the threads' processes, by process id. A process that is no longer the one in the
/// plan has none.
fn units(root: &Root, changes: &[PlannedChange]) -> BTreeMap<u32, String> {
    let threads = changes.iter().filter_map(|change| match &change.target {
        Target::Thread(thread) => Some(thread.clone()),
        _ => None,
    });
    let here = threads.filter(|t| {
        nearpath_tune::find_thread(root, t.pid, t.tid).is_some_and(|now| now.same_place(t))
    });
    let unit = |thread: Thread| {
        let cgroup = cgroup_of(root, thread.pid)?;
        let unit = cgroup.split('/').rfind(|part| part.ends_with(".service"))?;
        Some((thread.pid, unit.to_owned()))
    };
    here.filter_map(unit).collect()
}

/// Writes files into a directory, which is created if missing.
fn write_all(folder: &Path, documents: &[Document]) -> Result<(), Failure> {
    for document in documents {
        let path = folder.join(&document.name);
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot create the directory {}", parent.display()))?;
        output::program(&path, document.text.as_bytes(), document.program)?;
        say(&format!("wrote {}", path.display()));
    }
    Ok(())
}
