//! A shell script that applies the settings, undoes them, and shows their state: `apply`, `undo`, `status`. It
//! needs only a POSIX shell and basic tools; busybox is enough.
//!
//! Input: settings. Output: the script `nearpath-tune.sh` of this directory with the settings filled in. Other
//! formats run it for settings that they cannot express themselves.

use super::quote::{comment, comments, file_name, is_plain, sh};
use super::setting::{Kind, NicCommands, Setting};
use super::{Context, Document, Exporter};
use nearpath_model::{Form, NodeId, OvsSetting};
use std::fmt::Write;

pub(super) const EXPORTER: Exporter = Exporter {
    name: "sh",
    writes: "a shell script with apply, undo and status",
    several: false,
    carries: |setting| match setting.kind {
        Kind::Ovs(OvsSetting { interface: Some(name), .. }) if !is_plain(name) => {
            Err("the interface name has characters that are special to ovs-vsctl")
        }
        Kind::Ovs(_) => Ok(()),
        _ => carries(setting),
    },
    render: |settings, context| vec![script(&settings.iter().collect::<Vec<_>>(), context)],
};

/// The script's installed name.
pub(super) const NAME: &str = "nearpath-tune.sh";

const TEMPLATE: &str = include_str!("nearpath-tune.sh");

/// Accepts settings that a script can apply at any time, and that a boot loses.
pub(super) fn carries(setting: &Setting<'_>) -> Result<(), &'static str> {
    match setting.kind {
        Kind::Thread(_) => Err("a thread's affinity ends with the thread"),
        Kind::Ovs(_) => {
            Err("Open vSwitch's database keeps it across reboots; for another host use --as sh")
        }
        Kind::CommandLine => Err("the kernel reads its command line at boot: use --as grub"),
        _ => Ok(()),
    }
}

/// The script.
pub(super) fn script(settings: &[&Setting<'_>], context: &Context) -> Document {
    let title = "Settings that keep packets near the CPU that reads them, exported by nearpath.";
    let left_out = context.left_out.iter().map(String::as_str);
    let header = comments(std::iter::once(title).chain(left_out));
    let mut lines = String::new();
    for (setting, number) in settings.iter().zip(1u32..) {
        // Writing to a string does not fail.
        let _ = writeln!(lines, "    # {}", comment(&setting.change.why));
        let _ = writeln!(lines, "    {number}) {} ;;", call(setting));
    }
    let filled = TEMPLATE
        .replacen("#@HEADER@\n", &header, 1)
        .replacen("@COUNT@", &settings.len().to_string(), 1)
        .replacen("#@SETTINGS@\n", &lines, 1);
    Document { name: NAME.to_owned(), text: filled, program: true }
}

/// The call that applies a setting.
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
    if let Kind::Ovs(OvsSetting { key, interface, .. }) = &setting.kind {
        let saved = sh(&file_name(&setting.change.target.to_string()));
        let record = match interface {
            Some(name) => format!("Interface {}", sh(name)),
            None => "Open_vSwitch .".to_owned(),
        };
        return format!("ovs {saved} {record} {} {before} {after}", key.name());
    }
    if let Kind::Hugepages { pools, before, after } = &setting.kind {
        let pool = |(node, after): (Option<NodeId>, u64)| {
            let before = before.of(node).filter(|before| *before != after)?;
            let path = format!("{}/nr_hugepages", pools.folder(node));
            let (key, path) = (sh(&file_name(&path)), sh(&path));
            Some(format!("file {key} numbers {path} '{before}' '{after}'"))
        };
        return after.iter().filter_map(pool).collect::<Vec<_>>().join("; ");
    }
    let form = match setting.form {
        Some(Form::Mask | Form::CpuMask) => "mask",
        Some(Form::Numbers(_) | Form::PowerOfTwo) => "numbers",
        Some(Form::Choice) => "choice",
        Some(Form::CpuList) | None => "cpulist",
    };
    let path = setting.change.target.to_string();
    format!("file {} {form} {} {before} {after}", sh(&file_name(&path)), sh(&path))
}
