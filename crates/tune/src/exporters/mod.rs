//! Exporters: changes in, files out by which the system itself makes them at its next boot.
//!
//! ```text
//! PlannedChange ──> Setting ──> EXPORTERS: carries it? ──> rendered: Document, Document, …
//!                                            └─ no: LeftOut, with the reason
//! ```
//! One file for each form, in one registry. What a form cannot carry is named, in the files and to
//! whoever asked. Which means a change has (`persist` of a plan) follows from the same registry.
//! Nothing here reads or writes the machine. Changes come from files that somebody may have edited, so
//! what is no setting that nearpath makes, or has a value that is none, goes into no file.

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
use nearpath_model::PlannedChange;
use setting::Setting;
use std::collections::BTreeMap;

/// A form that changes can be exported in.
#[derive(Debug, Clone, Copy)]
pub struct Exporter {
    /// Its name: `systemd`.
    pub name: &'static str,
    /// What is written, in one line.
    pub writes: &'static str,
    /// Whether it is several files, which take a folder.
    pub several: bool,
    /// Whether a setting can be made this way, or why not.
    carries: fn(&Setting<'_>) -> Result<(), &'static str>,
    /// The files; of settings that it carries.
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

/// A file that is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its name, with folders before it where the form asks for them.
    pub name: String,
    /// What is in it.
    pub text: String,
    /// Whether it is a program.
    pub program: bool,
}

/// A change that a form cannot carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Its name within the plan.
    pub id: String,
    /// What it would have written to.
    pub target: String,
    /// Why it cannot be carried.
    pub reason: String,
}

/// What was exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Export {
    /// The files.
    pub documents: Vec<Document>,
    /// How many changes they carry.
    pub carried: usize,
    /// The others.
    pub left_out: Vec<LeftOut>,
}

/// What a form may tell beside its settings.
#[derive(Debug, Default)]
struct Context {
    /// Lines, without the sign of a comment, about what is not in the files.
    left_out: Vec<String>,
}

/// The exporter of that name.
pub fn exporter(name: &str) -> Option<&'static Exporter> {
    EXPORTERS.iter().find(|exporter| exporter.name == name)
}

/// Renders changes in a form. `units` are the systemd services of processes, by number; `left_out` is
/// what has been left out already.
///
/// # Errors
/// The form carries none of the changes; the message says why.
pub fn export(
    exporter: &Exporter,
    changes: &[PlannedChange],
    units: &BTreeMap<u32, String>,
    mut left_out: Vec<LeftOut>,
) -> Result<Export, TuneError> {
    let mut settings = Vec::new();
    for change in changes {
        let carried = Setting::of(change, units).and_then(|setting| {
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
    let context = Context { left_out: told(exporter.name, &left_out) };
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

/// What is left out in sentences, one for each reason.
pub fn told(form: &str, left_out: &[LeftOut]) -> Vec<String> {
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

/// The names of the forms by which a change can be made to outlast a reboot.
pub(crate) fn means(change: &PlannedChange) -> Vec<String> {
    let units = BTreeMap::new();
    let Ok(setting) = Setting::of(change, &units) else { return Vec::new() };
    let carrying = EXPORTERS.iter().filter(|exporter| (exporter.carries)(&setting).is_ok());
    carrying.map(|exporter| exporter.name.to_owned()).collect()
}

#[cfg(test)]
mod tests;
