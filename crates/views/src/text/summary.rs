//! `show all`: the kernel and its isolated CPUs, then every other view.

use super::units::printable;
use super::unknown::unknown;
use super::{cpus, devices, heading, irqs, line, nics, nodes, queues, softnet};
use nearpath_model::{CpuSet, Host};

/// Everything, part after part; what is unknown once, at the end. (What is unknown of the host as a whole stands in its
/// part, too, if that is empty.)
pub fn all(host: &Host) -> String {
    let mut out = kernel(host);
    let mut without_unknown = host.clone();
    without_unknown.unknown.retain(|item| item.subject == "host");
    for (title, part) in [
        ("CPUs", cpus(&without_unknown)),
        ("Nodes", nodes(&without_unknown)),
        ("NICs", nics(&without_unknown)),
        ("Devices", devices_of(&without_unknown)),
        ("Queues", queues(&without_unknown)),
        ("Interrupts", irqs(&without_unknown)),
        ("Softnet", softnet(&without_unknown)),
    ] {
        if part.is_empty() {
            continue;
        }
        line!(out);
        heading(&mut out, &format!("== {title}"));
        out.push_str(&part);
    }
    let unknown = unknown(&host.unknown, &[]);
    if !unknown.is_empty() {
        line!(out);
        out.push_str(&unknown);
    }
    out
}

/// Nothing on a machine without a PCI bus.
fn devices_of(host: &Host) -> String {
    if host.devices.is_empty() { String::new() } else { devices(host, false) }
}

fn kernel(host: &Host) -> String {
    let kernel = &host.kernel;
    let cpus = |cpus: &Option<CpuSet>| match cpus {
        Some(cpus) if cpus.is_empty() => Some("none".to_owned()),
        Some(cpus) => Some(cpus.to_string()),
        None => None,
    };
    let runs = |runs: Option<bool>| runs.map(|runs| if runs { "runs" } else { "does not run" });
    let tuned = runs(host.daemons.tuned).map(|runs| match &host.daemons.tuned_profile {
        Some(profile) => format!("{runs}, profile {profile}"),
        None => runs.to_owned(),
    });
    let facts = [
        ("host", kernel.hostname.clone()),
        ("kernel", kernel.release.clone()),
        ("virtualisation", kernel.virtualisation.clone()),
        ("isolated CPUs", cpus(&kernel.isolated)),
        ("nohz_full CPUs", cpus(&kernel.nohz_full)),
        ("rcu_nocbs CPUs", cpus(&kernel.rcu_nocbs)),
        ("irqbalance", runs(host.daemons.irqbalance).map(str::to_owned)),
        ("tuned", tuned),
    ];
    let mut out = String::new();
    for (name, value) in facts {
        let value = value.unwrap_or_else(|| "unknown".to_owned());
        line!(out, "{:<16}{}", format!("{name}:"), printable(&value));
    }
    if let Some(kubelet) = &host.kubelet {
        let alone = kubelet.exclusive_cpus();
        let given = match alone.is_empty() {
            true => "none".to_owned(),
            false => alone.to_string(),
        };
        let text = format!("{}, CPUs of containers alone: {given}", kubelet.policy);
        line!(out, "{:<16}{}", "kubelet:", printable(&text));
    }
    out
}
