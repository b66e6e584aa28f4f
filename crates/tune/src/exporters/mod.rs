//! Exporters. Input: changes. Output: files that make the system apply them at its next boot.
//!
//! ```text
//! PlannedChange ──> Setting ──> EXPORTERS: carries it? ──> rendered: Document, Document, …
//!                                            └─ no: LeftOut, with the reason
//! ```
//! One file per format, in one registry. Changes that a format cannot express are listed in the files and to the
//! user. The formats of a change (`persist` of a plan) follow from the same registry. Nothing here accesses the
//! host. Changes are untrusted input: unknown settings and invalid values are never written to a file.

mod ansible;
mod applied;
mod boot;
mod grub;
mod quote;
mod setting;
mod sh;
mod sysctl;
mod systemd;
mod tuned;
mod udev;

pub use applied::applied;

use crate::TuneError;
use crate::configuration::command_line_parameters;
use nearpath_model::{CpuSet, PlannedChange, Target};
use setting::{Kind, Setting};
use std::collections::{BTreeMap, BTreeSet};

/// A format that changes can be exported in.
#[derive(Debug, Clone, Copy)]
pub struct Exporter {
    /// Its name: `systemd`.
    pub name: &'static str,
    /// One line on what is written.
    pub writes: &'static str,
    /// Whether it is several files, which need a directory.
    pub several: bool,
    /// Whether a setting can be expressed, or why not.
    carries: fn(&Setting<'_>) -> Result<(), &'static str>,
    /// Renders the files, from settings that can be expressed.
    render: fn(&[Setting<'_>], &Context) -> Vec<Document>,
}

/// All exporters.
pub const EXPORTERS: &[Exporter] = &[
    sh::EXPORTER,
    boot::EXPORTER,
    systemd::EXPORTER,
    udev::EXPORTER,
    sysctl::EXPORTER,
    tuned::EXPORTER,
    grub::EXPORTER,
    ansible::EXPORTER,
];

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its name, with directories if the format needs them.
    pub name: String,
    /// Its contents.
    pub text: String,
    /// Whether it is executable.
    pub program: bool,
}

/// A change that a format cannot express.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Its id in the plan.
    pub id: String,
    /// Its target.
    pub target: String,
    /// Why it cannot be expressed.
    pub reason: String,
}

/// The result of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The files.
    pub documents: Vec<Document>,
    /// Number of changes in them.
    pub carried: usize,
    /// The others.
    pub left_out: Vec<LeftOut>,
}

/// What a format may write besides its settings.
#[derive(Debug, Default)]
struct Context {
    /// Lines, without comment markers, about what is not in the files.
    left_out: Vec<String>,
    /// As [`ExportHost::devices`].
    devices: BTreeMap<String, (String, String)>,
}

/// The exporter with this name.
pub fn exporter(name: &str) -> Option<&'static Exporter> {
    EXPORTERS.iter().find(|exporter| exporter.name == name)
}

/// What is known of the host that changes are exported for.
#[derive(Debug, Default)]
pub struct ExportHost {
    /// The systemd services of processes, by process id.
    pub units: BTreeMap<u32, String>,
    /// The CPUs between which the kernel balances no load.
    pub isolated: CpuSet,
    /// The PCI functions of interfaces, by interface: their address and driver.
    pub devices: BTreeMap<String, (String, String)>,
}

impl ExportHost {
    /// The services whose threads would share several isolated CPUs, by these changes.
    fn unbalanced(&self, changes: &[PlannedChange]) -> BTreeSet<&str> {
        let mut units: BTreeMap<&str, CpuSet> = BTreeMap::new();
        for change in changes {
            let Target::Thread(thread) = &change.target else { continue };
            let Some(unit) = self.units.get(&thread.pid) else { continue };
            let cpus = units.entry(unit).or_default();
            *cpus = cpus.union(&change.cpus_after().unwrap_or_default());
        }
        let isolated = isolated_by(changes).union(&self.isolated);
        units.retain(|_, cpus| cpus.len() > 1 && !cpus.intersection(&isolated).is_empty());
        units.into_keys().collect()
    }
}

/// The CPUs that changes isolate at boot, with `isolcpus=domain`.
fn isolated_by(changes: &[PlannedChange]) -> CpuSet {
    let lines = changes.iter().filter_map(|change| change.after.text()).flat_map(str::lines);
    let words = lines.filter_map(command_line_parameters).flatten();
    let lists = words.filter_map(|word| word.strip_prefix("isolcpus=managed_irq,domain,"));
    lists
        .filter_map(|list| CpuSet::from_list(list).ok())
        .fold(CpuSet::new(), |all, cpus| all.union(&cpus))
}

/// Renders changes in a format, for this host; `left_out` lists the changes skipped so far.
///
/// # Errors
/// The format can express none of the changes; the message gives the reason.
pub fn export(
    exporter: &Exporter,
    changes: &[PlannedChange],
    host: &ExportHost,
    mut left_out: Vec<LeftOut>,
) -> Result<Export, TuneError> {
    let mut settings = Vec::new();
    let unbalanced = host.unbalanced(changes);
    for change in changes {
        let carried = Setting::of(change, &host.units).and_then(|mut setting| {
            setting.unbalanced =
                matches!(setting.kind, Kind::Thread(Some(unit)) if unbalanced.contains(unit));
            (exporter.carries)(&setting).map_err(str::to_owned).map(|()| setting)
        });
        match carried {
            Ok(setting) => settings.push(setting),
            Err(reason) => left_out.push(LeftOut {
                id: change.id.clone(),
                target: change.target.to_string(),
                reason,
            }),
        }
    }
    let context = Context {
        left_out: skipped_lines(exporter.name, &left_out),
        devices: host.devices.clone(),
    };
    if settings.is_empty() {
        let why = match context.left_out.as_slice() {
            [] => "there are no changes".to_owned(),
            lines => lines.join("; "),
        };
        return Err(TuneError::Refused(format!("nothing to export as {}: {why}", exporter.name)));
    }
    let documents = (exporter.render)(&settings, &context);
    Ok(Export { documents, carried: settings.len(), left_out })
}

/// The skipped changes as sentences, one per reason.
pub fn skipped_lines(form: &str, left_out: &[LeftOut]) -> Vec<String> {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for LeftOut { id, reason, .. } in left_out {
        by_reason.entry(reason).or_default().push(id);
    }
    let sentence = |(reason, ids): (&str, Vec<&str>)| {
        let ids: Vec<String> = ids.into_iter().map(quote::comment).collect();
        format!("not in this {form} export: {}: {reason}", ids.join(", "))
    };
    by_reason.into_iter().map(sentence).collect()
}

/// The names of the formats that can make a change survive a reboot.
pub(crate) fn means(change: &PlannedChange) -> Vec<String> {
    let units = BTreeMap::new();
    let Ok(setting) = Setting::of(change, &units) else { return Vec::new() };
    let carrying = EXPORTERS.iter().filter(|exporter| (exporter.carries)(&setting).is_ok());
    carrying.map(|exporter| exporter.name.to_owned()).collect()
}

#[cfg(test)]
mod tests;
