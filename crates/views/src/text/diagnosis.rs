//! `diagnose`: the host in a line, the ranked findings with their evidence and the changes that would fix them, where
//! packets spent their time, and what could not be checked.

use super::commands::Command;
use super::cpus::count;
use super::locality::locality_rates;
use super::measurement::{not_observable, overview};
use super::paths::summary;
use super::tcp::in_a_line;
use super::units::{digits, percent, printable};
use super::verdict::{answer, fixes, impact};
use super::{heading, line};
use anstyle::{AnsiColor, Style};
use nearpath_model::accepts::Listener;
use nearpath_model::locality::Method;
use nearpath_model::{
    Diagnosis, Finding, HostSummary, Measurement, NotChecked, Protocol, Severity,
};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Maximum number of interfaces named in the host's summary; the rest is counted.
const NICS_NAMED: usize = 4;
/// Maximum number of listeners shown, those with the most accepts; the JSON has all.
const LISTENERS_SHOWN: usize = 8;

/// The whole diagnosis; `width` is that of the terminal, `None` for other outputs.
pub fn diagnosis(diagnosis: &Diagnosis, width: Option<usize>) -> String {
    let mut out = with_evidence(diagnosis);
    line!(out);
    match &diagnosis.measurement {
        Some(measurement) => {
            out.push_str(&overview(measurement, width));
            out.push_str(&diagnosis.other_look.as_ref().map_or_else(String::new, other_look));
            let blind = not_observable(&measurement.not_observable);
            if !blind.is_empty() {
                line!(out);
                out.push_str(&blind);
            }
        }
        None if diagnosis.locality.is_some() || diagnosis.accepts.is_some() => {
            line!(out, "packet latency was not measured");
        }
        None if diagnosis.tcp.is_some() => line!(
            out,
            "no packets were measured: findings are based on TCP connections and the host's configuration"
        ),
        None => line!(
            out,
            "no packets were measured: findings are based on the host's configuration only"
        ),
    }
    out.push_str(&locality(diagnosis));
    if let Some(measured) = &diagnosis.tcp {
        line!(out, "\n{}", in_a_line(measured));
    }
    let unchecked = not_checked(&diagnosis.not_checked);
    if !unchecked.is_empty() {
        line!(out);
        out.push_str(&unchecked);
    }
    out
}

/// The findings with their evidence, and what could not be checked.
pub fn findings(diagnosis: &Diagnosis) -> String {
    let mut out = with_evidence(diagnosis);
    let unchecked = not_checked(&diagnosis.not_checked);
    if !unchecked.is_empty() {
        line!(out);
        out.push_str(&unchecked);
    }
    out
}

fn with_evidence(diagnosis: &Diagnosis) -> String {
    let mut out = answer(diagnosis);
    if let Some(measured) = &diagnosis.measurement {
        out.push_str(&summary(measured));
    }
    out.push_str(&host(&diagnosis.host));
    if !diagnosis.findings.is_empty() {
        line!(out);
        heading(&mut out, &headline(diagnosis));
    }
    for (rank, finding) in diagnosis.findings.iter().enumerate() {
        line!(out);
        out.push_str(&one(rank + 1, finding));
    }
    out
}

/// The packets that are not in the tables.
fn other_look(other: &Measurement) -> String {
    let (stages, packets) = (count(other.stages.len(), "stage"), &other.packets);
    format!(
        "\nother measurement ({}s, {stages}): {} packets started, {} completed; not counted above\n",
        digits(other.observed_time_s()),
        packets.started,
        packets.completed
    )
}

/// Shares of packets and connections that stayed on their CPU, one line each.
fn locality(diagnosis: &Diagnosis) -> String {
    let mut out = String::new();
    if let Some(m) = &diagnosis.locality {
        let how = match m.method {
            Method::Exact => "exact",
            Method::Tracepoints => "by tracepoints",
        };
        line!(
            out,
            "\npackets on their CPU ({how}): {}",
            locality_rates(&m.rx, &m.tx, m.duration_s)
        );
    }
    if let Some(m) = &diagnosis.accepts {
        let (what, none) = match m.protocol {
            Protocol::Udp => ("datagrams read", "none was read"),
            _ => ("connections accepted", "none was accepted"),
        };
        line!(out, "\n{what} on their CPU, by address:");
        let mut busiest: Vec<&Listener> = m.listeners.iter().collect();
        busiest.sort_by_key(|l| (Reverse(l.places.accepts), l.local.clone()));
        if busiest.is_empty() {
            line!(out, "  {none}");
        }
        for Listener { local, places, workers, .. } in busiest.into_iter().take(LISTENERS_SHOWN) {
            let share = percent(places.same_cpu as f64 / places.accepts.max(1) as f64);
            let threads = count(workers.len(), "thread");
            let local = printable(local);
            line!(out, "  {local}: {share} of {} by {threads}", places.accepts);
        }
        let hidden = m.listeners.len().saturating_sub(LISTENERS_SHOWN);
        if hidden > 0 {
            line!(out, "  and {}", count(hidden, "more listener"));
        }
    }
    out
}

fn host(host: &HostSummary) -> String {
    if *host == HostSummary::default() {
        // A recording has no host.
        return String::new();
    }
    let kernel = host.kernel.as_ref().map(|release| format!("Linux {release}"));
    let virtualisation = match host.virtualisation.as_deref() {
        None => None,
        Some("none") => Some("bare metal".to_owned()),
        Some(hypervisor) => Some(format!("{} guest", hypervisor_name(hypervisor))),
    };
    let sizes = [
        count(host.online_cpus, "CPU"),
        count(host.packages, "package"),
        count(host.nodes, "node"),
        count(host.llcs, "LLC"),
    ];
    let mut nics: Vec<String> = host.nics.iter().take(NICS_NAMED).cloned().collect();
    if host.nics.len() > NICS_NAMED {
        nics.push(count(host.nics.len() - NICS_NAMED, "more interface"));
    }
    let facts: Vec<String> = kernel.into_iter().chain(virtualisation).chain(sizes).collect();
    let mut out = format!("host: {}\n", printable(&facts.join(", ")));
    if !nics.is_empty() {
        line!(out, "nics: {}", printable(&nics.join("; ")));
    }
    out
}

/// The display name of a hypervisor, from the names of `systemd-detect-virt`.
fn hypervisor_name(name: &str) -> &str {
    match name {
        "kvm" => "KVM",
        "qemu" => "QEMU",
        "xen" => "Xen",
        "vmware" => "VMware",
        "microsoft" => "Hyper-V",
        "amazon" => "AWS Nitro",
        other => other,
    }
}

/// `3 findings: 1 critical, 2 warnings`.
fn headline(diagnosis: &Diagnosis) -> String {
    let findings = &diagnosis.findings;
    let of = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let critical = of(Severity::Critical);
    let parts = [
        (critical, format!("{critical} critical")),
        (of(Severity::Warning), count(of(Severity::Warning), "warning")),
        (of(Severity::Info), format!("{} informational", of(Severity::Info))),
    ];
    let parts = parts.into_iter().filter(|(number, _)| *number > 0).map(|(_, text)| text);
    format!("{}: {}", count(findings.len(), "finding"), parts.collect::<Vec<_>>().join(", "))
}

/// A finding with its evidence, what it costs, and what would fix it.
pub(super) fn one(rank: usize, finding: &Finding) -> String {
    let (word, style) = match finding.severity {
        Severity::Critical => ("critical", AnsiColor::Red.on_default().bold()),
        Severity::Warning => ("warning", AnsiColor::Yellow.on_default().bold()),
        Severity::Info => ("info", Style::new().bold()),
    };
    let mut out = String::new();
    let (title, check) = (printable(&finding.title), printable(&finding.check));
    line!(out, "{rank}. {style}{word}{style:#}  {title}  [{check}]");
    for sentence in &finding.evidence {
        line!(out, "   - {}", printable(sentence));
    }
    let impact = impact(&finding.cost, None);
    if !impact.is_empty() {
        line!(out, "   impact: {impact}");
    }
    for symptom in &finding.symptoms {
        let (title, check) = (printable(&symptom.title), printable(&symptom.check));
        line!(out, "   causes: {title}  [{check}]");
        for sentence in &symptom.evidence {
            line!(out, "           - {}", printable(sentence));
        }
    }
    for (alternative, label) in [(false, "fix:"), (true, "or:")] {
        let fixes = fixes(finding, alternative);
        for (place, Command { line: command, was, why }) in fixes.iter().enumerate() {
            let was = if was.is_empty() {
                String::new()
            } else {
                format!("    (was {})", printable(was))
            };
            line!(out, "   {label:<7} {}{was}", printable(command));
            // A reason that several commands in a row share stands once, after the last of them.
            if !why.is_empty() && fixes.get(place + 1).is_none_or(|next| next.why != *why) {
                line!(out, "           {}", printable(why));
            }
        }
    }
    out
}

/// Skipped checks, grouped by reason.
fn not_checked(items: &[NotChecked]) -> String {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for item in items {
        by_reason.entry(item.reason.as_str()).or_default().push(item.check.as_str());
    }
    let mut out = String::new();
    if !by_reason.is_empty() {
        heading(&mut out, "not checked:");
    }
    for (reason, checks) in by_reason {
        line!(out, "  {}", printable(&format!("{}: {reason}", checks.join(", "))));
    }
    out
}
