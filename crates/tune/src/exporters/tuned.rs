//! A profile for tuned (tuned-profiles(7), tuned.conf(5)): sysctls, sysfs files and transparent huge pages through
//! its own plugins; interrupts and ethtool settings through the script of `sh`, which tuned calls with start, stop
//! and verify.

use super::quote::{comments, is_plain};
use super::setting::{Kind, Setting};
use super::{Context, Document, Exporter, sh};
use std::fmt::Write;

pub(super) const EXPORTER: Exporter =
    Exporter { name: "tuned", writes: "a profile for tuned", several: true, carries, render };

fn carries(setting: &Setting<'_>) -> Result<(), &'static str> {
    match setting.kind {
        Kind::Queue { nic, .. } | Kind::Interface { nic, .. } if !is_plain(nic) => {
            Err("the interface name has characters that are special to tuned")
        }
        _ => sh::carries(setting),
    }
}

fn render(settings: &[Setting<'_>], context: &Context) -> Vec<Document> {
    let title = [
        "A tuned profile by nearpath. Install this directory in /etc/tuned (newer versions:",
        "/etc/tuned/profiles), then run 'tuned-adm profile nearpath'. It replaces the active",
        "profile; to keep that, name both: 'tuned-adm profile OTHER nearpath'.",
    ];
    let left_out = context.left_out.iter().map(String::as_str);
    let mut text = comments(title.into_iter().chain(left_out));
    text += "\n[main]\nsummary=Settings that keep packets near the CPU that reads them\n";
    section(&mut text, "sysctl", settings, |setting| match &setting.kind {
        Kind::Sysctl(name) => Some(format!("{name}={}", setting.after)),
        _ => None,
    });
    section(&mut text, "vm", settings, |setting| match setting.kind {
        Kind::HugePages => Some(format!("transparent_hugepages={}", setting.after)),
        _ => None,
    });
    section(&mut text, "sysfs", settings, |setting| match setting.kind {
        Kind::Queue { .. } | Kind::Interface { .. } | Kind::File => {
            Some(format!("{}={}", setting.change.target, setting.after))
        }
        _ => None,
    });
    let of_script =
        |setting: &&Setting<'_>| matches!(setting.kind, Kind::Interrupt(_) | Kind::Nic(_));
    let scripted: Vec<&Setting<'_>> = settings.iter().filter(of_script).collect();
    let folder = |name: &str| format!("nearpath/{name}");
    let mut documents = Vec::new();
    if !scripted.is_empty() {
        let _ = write!(text, "\n[script]\nscript=${{i:PROFILE_DIR}}/{}\n", sh::NAME);
        let script = sh::script(&scripted, context);
        documents.push(Document { name: folder(&script.name), ..script });
    }
    documents.push(Document { name: folder("tuned.conf"), text, program: false });
    documents
}

/// A section, if it has any line.
fn section(
    text: &mut String,
    name: &str,
    settings: &[Setting<'_>],
    line: impl Fn(&Setting<'_>) -> Option<String>,
) {
    let lines: Vec<String> = settings.iter().filter_map(line).collect();
    if !lines.is_empty() {
        let _ = write!(text, "\n[{name}]\n{}\n", lines.join("\n"));
    }
}
