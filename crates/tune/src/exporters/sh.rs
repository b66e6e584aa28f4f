//! A shell script that makes the settings, undoes them, and says how they stand: `apply`, `undo`,
//! `status`. It needs a POSIX shell and the basic tools alone, also those of busybox.
//!
//! In go settings, out comes the script: `nearpath-tune.sh` of this folder with the settings filled in.
//! It is what other forms run where they have no means of their own.

use super::quote::{comment, comments, file_name, sh};
use super::setting::{Kind, NicCommands, Setting};
use super::{Context, Document, Exporter};
use nearpath_model::Form;
use std::fmt::Write;

pub(super) const EXPORTER: Exporter = Exporter {
    name: "sh",
    writes: "a shell script with apply, undo and status",
    several: false,
    carries,
    render: |settings, context| vec![script(&settings.iter().collect::<Vec<_>>(), context)],
};

/// The script's name, as it is to be installed.
pub(super) const NAME: &str = "nearpath-tune.sh";

const TEMPLATE: &str = include_str!("nearpath-tune.sh");

/// Settings that a script can make at any time.
pub(super) fn carries(setting: &Setting<'_>) -> Result<(), &'static str> {
    match setting.kind {
        Kind::Thread(_) => Err("what a thread may run on ends with the thread"),
        Kind::CommandLine => {
            Err("the kernel reads its command line as it boots: export it as grub")
        }
        _ => Ok(()),
    }
}

/// The script.
pub(super) fn script(settings: &[&Setting<'_>], context: &Context) -> Document {
    let title = "Settings that bring packets near the CPU that needs them, exported by nearpath.";
    let left_out = context.left_out.iter().map(String::as_str);
    let header = comments(std::iter::once(title).chain(left_out));
    let mut lines = String::new();
    for (setting, number) in settings.iter().zip(1u32..) {
        // Writing to a String cannot fail.
        let _ = writeln!(lines, "    # {}", comment(&setting.change.why));
        let _ = writeln!(lines, "    {number}) {} ;;", call(setting));
    }
    let filled = TEMPLATE
        .replacen("#@HEADER@\n", &header, 1)
        .replacen("@COUNT@", &settings.len().to_string(), 1)
        .replacen("#@SETTINGS@\n", &lines, 1);
    Document { name: NAME.to_owned(), text: filled, program: true }
}

/// The call that makes a setting.
fn call(setting: &Setting<'_>) -> String {
    let (before, after) = (sh(&setting.before), sh(&setting.after));
    if let Kind::Interrupt(irq) = &setting.kind {
        let key = file_name(&format!("irq {} {}", irq.nic, irq.name));
        let pattern = nearpath_host::irq_pattern(irq).unwrap_or_default();
        let names = [&irq.nic, &irq.name, &pattern].map(|name| sh(name)).join(" ");
        return format!("irq {} {names} {before} {after}", sh(&key));
    }
    if let Kind::Nic(NicCommands { nic, show, set, after, before }) = &setting.kind {
        let key = sh(&file_name(&setting.change.target.to_string()));
        let words = [nic, *show, set, before, after].map(sh).join(" ");
        return format!("nic {key} {words}");
    }
    let form = match setting.form {
        Some(Form::Mask) => "mask",
        Some(Form::Numbers(_) | Form::PowerOfTwo) => "numbers",
        Some(Form::Choice) => "choice",
        Some(Form::CpuList) | None => "cpulist",
    };
    let path = setting.change.target.to_string();
    format!("file {} {form} {} {before} {after}", sh(&file_name(&path)), sh(&path))
}
