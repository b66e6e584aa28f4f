//! `nearpath tune export`: changes as files by which the system itself makes them at its next boot.

use super::apply::plan_of;
use super::journal::statuses;
use super::plan::Asked;
use crate::failure::{Failure, say};
use crate::output;
use crate::source::Source;
use anyhow::{Context, anyhow, bail};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use nearpath_host::{Root, cgroup_of};
use nearpath_model::{Plan, PlannedChange, Target, Thread};
use nearpath_tune::exporters::{
    Document, EXPORTERS, Export, Exporter, LeftOut, applied, export, exporter, told,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const AFTER_HELP: &str = "\
Nothing is changed or installed: the files say in their first lines where they belong. Without PLAN
one is made as by 'nearpath tune plan', with the same options. Changes that a form cannot carry are
named on standard error and in the files. Interrupts, whose numbers another boot gives to others,
are found again by the interface and the handler's name. The script undoes what it makes.

EXAMPLES
  nearpath tune export plan.json --as sh -o nearpath-tune.sh
  nearpath tune export --applied --as systemd -o /tmp/units    what 'tune apply' has made
  nearpath tune export --nic eth0 --as udev                    rules on standard output
  nearpath tune export plan.json --as sysctl --only somaxconn
  nearpath tune export --snapshot host.tar.zst --as ansible    for another machine";

/// Arguments of `tune export`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct ExportArguments {
    /// A plan that 'nearpath tune plan --json' wrote; '-' is standard input
    #[arg(value_name = "PLAN")]
    #[arg(conflicts_with_all = ["goal", "nic", "pid", "port", "unit", "cpus", "housekeeping", "findings"])]
    plan: Option<PathBuf>,
    /// What nearpath has changed on this machine and not undone
    #[arg(long, conflicts_with_all = ["plan", "root", "snapshot"])]
    #[arg(conflicts_with_all = ["goal", "nic", "pid", "port", "unit", "cpus", "housekeeping", "findings"])]
    applied: bool,
    /// The form
    #[arg(long = "as", value_name = "FORM", value_parser = form())]
    form: &'static Exporter,
    /// The file, or the folder, that is written; else standard output, for forms of one file
    #[arg(short, long, value_name = "FILE|DIR")]
    output: Option<PathBuf>,
    /// Only the change with this id; may be given again
    #[arg(long, value_name = "ID")]
    only: Vec<String>,
    #[command(flatten)]
    asked: Asked,
    #[command(flatten)]
    source: Source,
}

/// Names of the forms, with what each writes.
fn form() -> impl TypedValueParser<Value = &'static Exporter> {
    let value = |form: &Exporter| PossibleValue::new(form.name).help(form.writes);
    PossibleValuesParser::new(EXPORTERS.iter().map(value))
        .try_map(|name| exporter(&name).ok_or_else(|| anyhow!("no such form")))
}

impl ExportArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        if self.form.several && self.output.is_none() {
            let name = self.form.name;
            return Err(Failure::Usage(format!(
                "--as {name} is several files; name a folder for them with --output DIR"
            )));
        }
        let plan: Option<Plan> = self.plan.as_deref().map(plan_of).transpose()?;
        let made = self.source.read(|root| self.export(root, plan))?;
        for line in told(self.form.name, &made.left_out) {
            say(&line);
        }
        match (&self.output, made.documents.as_slice()) {
            (None, [document]) => output::text(&document.text),
            (Some(path), [document]) if !self.form.several && !path.is_dir() => {
                output::program(path, document.text.as_bytes(), document.program)
            }
            (Some(folder), documents) => write_all(folder, documents),
            (None, _) => Err(anyhow!("--as {} is no file", self.form.name).into()),
        }
    }

    fn export(&self, root: &Root, plan: Option<Plan>) -> anyhow::Result<Export> {
        let live = self.source.is_live();
        let (mut changes, gone) = match plan {
            _ if self.applied => applied(&statuses(root)?),
            Some(plan) => (plan.changes, Vec::new()),
            None => (self.asked.plan(root, live)?.changes, Vec::new()),
        };
        if let Some(unknown) = self.only.iter().find(|id| !changes.iter().any(|c| c.id == **id)) {
            bail!("there is no change with the id {unknown:?}");
        }
        changes.retain(|change| self.only.is_empty() || self.only.contains(&change.id));
        let units = if live { units(root, &changes) } else { BTreeMap::new() };
        let wanted = |left: &LeftOut| self.only.is_empty() || self.only.contains(&left.id);
        let gone = gone.into_iter().filter(wanted).collect();
        Ok(export(self.form, &changes, &units, gone)?)
    }
}

/// The systemd services of the threads' processes, by the number of the process. A process that is not
/// the one of the plan any more has none.
fn units(root: &Root, changes: &[PlannedChange]) -> BTreeMap<u32, String> {
    let threads = changes.iter().filter_map(|change| match &change.target {
        Target::Thread(thread) => Some(thread.clone()),
        _ => None,
    });
    let here = threads.filter(|t| {
        nearpath_tune::find_thread(root, t.pid, t.tid).is_some_and(|now| now.same_place(t))
    });
    let unit = |thread: Thread| {
        let cgroup = cgroup_of(thread.pid)?;
        let unit = cgroup.split('/').rfind(|part| part.ends_with(".service"))?;
        Some((thread.pid, unit.to_owned()))
    };
    here.filter_map(unit).collect()
}

/// Writes files into a folder, which is made if it is not there.
fn write_all(folder: &Path, documents: &[Document]) -> Result<(), Failure> {
    for document in documents {
        let path = folder.join(&document.name);
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent)
            .with_context(|| format!("cannot make the folder {}", parent.display()))?;
        output::program(&path, document.text.as_bytes(), document.program)?;
        say(&format!("wrote {}", path.display()));
    }
    Ok(())
}
