//! The verdict of a diagnosis on one screen: what is wrong, what it costs, and the command that fixes it.
//!
//! The first line is the answer. Evidence and tables are [`super::findings`] and [`super::diagnosis`].

use super::commands::{commands, short_value};
use super::cpus::count;
use super::line;
use super::paths::name;
use super::units::{digits, latency, percentage, printable, short};
use anstyle::{AnsiColor, Style};
use nearpath_model::{
    Diagnosis, Finding, FindingCost, Measurement, Packets, PathKind, PathLatency, Severity,
};
use std::collections::BTreeSet;

/// Lines that findings with their costs and commands may take; the rest is counted. With what follows them that
/// is a screen of 24 lines.
const LINES: usize = 19;
/// Commands of a finding that are shown.
const COMMANDS: usize = 2;
/// Findings for information that are named, a line each.
const NOTES: usize = 3;
/// Kinds of paths whose latency is shown.
const PATHS: usize = 2;
/// Cells of a bar.
const BAR: usize = 10;

/// The verdict; `-v` and `-vv` have the rest. `next` is the command to go on with where there is something to fix.
pub fn verdict(diagnosis: &Diagnosis, next: Option<&str>) -> String {
    let mut out = String::new();
    let findings = &diagnosis.findings;
    let mut shown = 0;
    // Ranked by severity: what is shown is the first of them.
    for finding in findings.iter().filter(|finding| finding.severity > Severity::Info) {
        let text = one(finding);
        if out.lines().count() + text.lines().count() > LINES {
            break;
        }
        out.push_str(&text);
        shown += 1;
    }
    if shown == 0 {
        line!(out, "{}", nothing_found(diagnosis));
    }
    let notes = findings.iter().filter(|finding| finding.severity == Severity::Info);
    let room = LINES.saturating_sub(out.lines().count()).min(NOTES);
    let notes: String = notes.take(room).map(title).collect();
    shown += notes.lines().count();
    out.push_str(&notes);
    let rest: Vec<String> =
        [others(findings, shown), not_checked(diagnosis)].into_iter().flatten().collect();
    if !rest.is_empty() {
        line!(out, "{}", rest.join(" · "));
    }
    if let Some(measured) = &diagnosis.measurement {
        line!(out, "{}", packets(measured));
        measured
            .paths
            .iter()
            .filter_map(end_to_end)
            .take(PATHS)
            .for_each(|path| line!(out, "{path}"));
    }
    if let Some(next) = next
        && findings.iter().any(|finding| !finding.changes.is_empty())
    {
        line!(out, "next: {next}");
    }
    out
}

/// The first line of a diagnosis: its worst finding, or that there is none.
pub(super) fn answer(diagnosis: &Diagnosis) -> String {
    match diagnosis.findings.iter().find(|finding| finding.severity > Severity::Info) {
        Some(worst) => title(worst),
        None => nothing_found(diagnosis) + "\n",
    }
}

/// What can be said where nothing serious was found: never more than was looked at.
fn nothing_found(diagnosis: &Diagnosis) -> String {
    let measured = match &diagnosis.measurement {
        None => "; no packets were measured",
        Some(m) if m.packets.started == 0 => "; no packets were seen",
        Some(_) => "",
    };
    match checks_skipped(diagnosis) {
        0 => format!("No problems found{measured}"),
        missing => {
            format!(
                "No problems found; {} could not run, or only in part{measured}",
                count(missing, "check")
            )
        }
    }
}

/// How many checks could not run, or only in part.
fn checks_skipped(diagnosis: &Diagnosis) -> usize {
    let checks = diagnosis.not_checked.iter().map(|missing| missing.check.as_str());
    checks.collect::<BTreeSet<_>>().len()
}

/// `1 more critical, 2 warnings (-v)`.
fn others(findings: &[Finding], shown: usize) -> Option<String> {
    let of = |severity| {
        let rest = findings.iter().skip(shown);
        rest.filter(|finding| finding.severity == severity).count()
    };
    let parts = [
        (of(Severity::Critical), format!("{} more critical", of(Severity::Critical))),
        (of(Severity::Warning), count(of(Severity::Warning), "more warning")),
        (of(Severity::Info), format!("{} more for information", of(Severity::Info))),
    ];
    let parts: Vec<String> =
        parts.into_iter().filter(|(number, _)| *number > 0).map(|(_, text)| text).collect();
    (!parts.is_empty()).then(|| format!("{} (-v)", parts.join(", ")))
}

fn not_checked(diagnosis: &Diagnosis) -> Option<String> {
    let unseen = diagnosis.measurement.as_ref().map_or(0, |m| m.not_observable.len());
    let missing = checks_skipped(diagnosis);
    let parts = [
        (unseen, format!("{} not observable (-vv)", count(unseen, "stage"))),
        (missing, format!("{} skipped (-v)", count(missing, "check"))),
    ];
    let parts: Vec<String> =
        parts.into_iter().filter(|(number, _)| *number > 0).map(|(_, text)| text).collect();
    (!parts.is_empty()).then(|| parts.join(" · "))
}

/// How bad a finding is, and its title.
fn title(finding: &Finding) -> String {
    let (word, style) = match finding.severity {
        Severity::Critical => ("CRITICAL", AnsiColor::Red.on_default().bold()),
        Severity::Warning => ("WARNING", AnsiColor::Yellow.on_default().bold()),
        Severity::Info => ("INFO", Style::new().bold()),
    };
    let mut out = String::new();
    let (title, check) = (printable(&finding.title), printable(&finding.check));
    line!(out, "{style}{word:<8}{style:#}  {title}  [{check}]");
    out
}

/// A finding: its title, what it costs, the commands that fix it, and what else it shows in.
fn one(finding: &Finding) -> String {
    let mut out = title(finding);
    let impact = impact(&finding.cost);
    if !impact.is_empty() {
        line!(out, "  impact  {impact}");
    }
    for (alternative, label) in [(false, "fix"), (true, "or")] {
        let changes: Vec<_> =
            finding.changes.iter().filter(|change| change.alternative == alternative).collect();
        let commands = commands(&changes);
        for (place, command) in commands.iter().take(COMMANDS).enumerate() {
            let label = if place == 0 { label } else { "" };
            let was = changes.first().and_then(|change| change.before.as_ref());
            let was = match was {
                Some(was)
                    if commands.len() == 1
                        && changes.iter().all(|c| c.before.as_ref() == Some(was)) =>
                {
                    format!("    (was {})", printable(&short_value(changes.first().copied(), was)))
                }
                _ => String::new(),
            };
            line!(out, "  {label:<6}  {}{was}", printable(command));
        }
        if commands.len() > COMMANDS {
            line!(out, "          and {} (-v)", count(commands.len() - COMMANDS, "more command"));
        }
    }
    let symptoms: BTreeSet<&str> = finding.symptoms.iter().map(|f| f.check.as_str()).collect();
    if !symptoms.is_empty() {
        let symptoms: Vec<String> = symptoms.into_iter().map(printable).collect();
        line!(out, "  causes  {} (-v)", symptoms.join(", "));
    }
    out
}

/// `32.0% of 369k packets  ███▎······  +16.4µs median, max 656µs, 0.147s of waiting per second`.
pub(super) fn impact(cost: &FindingCost) -> String {
    let share = cost.share_percent.map(|share| {
        let of = match cost.share_of.as_str() {
            "" => "affected".to_owned(),
            of => format!("of {}", printable(of)),
        };
        let style = stands_out(share / 100.0);
        format!("{} {of}  {style}{}{style:#}", percentage(share), bar(share / 100.0))
    });
    let more = [
        cost.per_packet_ns.map(|ns| format!("+{} median", latency(ns))),
        cost.max_ns.map(|ns| format!("max {}", latency(ns))),
        cost.seconds_per_second.map(|s| format!("{}s of waiting per second", digits(s))),
    ];
    let more: Vec<String> = more.into_iter().flatten().collect();
    let more = (!more.is_empty()).then(|| more.join(", "));
    [share, more].into_iter().flatten().collect::<Vec<_>>().join("  ")
}

/// The colour of a share: yellow from a tenth, red from a half.
pub(super) fn stands_out(share: f64) -> Style {
    match share {
        share if share >= 0.5 => AnsiColor::Red.on_default(),
        share if share >= 0.1 => AnsiColor::Yellow.on_default(),
        _ => Style::new(),
    }
}

/// A share from 0 to 1 as cells, in eighths of one.
fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * (8 * BAR) as f64).round() as usize;
    let (full, part) = (eighths / 8, EIGHTHS.get(eighths % 8).copied().unwrap_or_default());
    let used = full + usize::from(!part.is_empty());
    format!("{}{part}{}", "█".repeat(full), "·".repeat(BAR.saturating_sub(used)))
}

/// `packets 537k, 99.9% followed · overhead 1.90% of one CPU`.
fn packets(measured: &Measurement) -> String {
    let Packets { started, completed, dropped, .. } = measured.packets;
    let followed = match started {
        0 => String::new(),
        _ => format!(", {:.1}% followed", 100.0 * (completed + dropped) as f64 / started as f64),
    };
    let cost = measured.cost.map_or_else(String::new, |cost| {
        format!(" · overhead {}% of one CPU", digits(cost.cpu_percent))
    });
    format!("packets {}{followed}{cost}", short(started))
}

/// `receive, end to end: p50 12.1µs, p99 180µs, max 12.6ms`.
fn end_to_end(path: &PathLatency) -> Option<String> {
    if path.kind == PathKind::KernelTransmit || path.count == 0 {
        return None;
    }
    let figures = [("p50", path.p50_ns), ("p99", path.p99_ns), ("max", path.max_ns)];
    let figures: Vec<String> = figures
        .iter()
        .filter_map(|(what, ns)| Some(format!("{what} {}", latency((*ns)?))))
        .collect();
    Some(format!("{}, end to end: {}", name(path.kind), figures.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::NotChecked;

    #[test]
    fn a_bar_has_ten_cells() {
        assert_eq!(bar(0.0), "··········");
        assert_eq!(bar(0.35), "███▌······");
        assert_eq!(bar(1.0), "██████████");
        assert_eq!(bar(7.0), "██████████");
    }

    #[test]
    fn nothing_found_is_no_more_than_was_looked_at() {
        let missing =
            |check: &str| NotChecked { check: check.to_owned(), reason: "no root".to_owned() };
        let mut diagnosis: Diagnosis = serde_json::from_value(serde_json::json!({
            "schema": 1, "findings": [], "not_checked": [], "measurement": null,
            "host": {"kernel": null, "virtualisation": null, "online_cpus": 1, "packages": 1,
                     "nodes": 1, "llcs": 1, "nics": []},
        }))
        .unwrap();
        assert_eq!(verdict(&diagnosis, None), "No problems found; no packets were measured\n");
        diagnosis.not_checked = vec![missing("a"), missing("b"), missing("a")];
        let shown = verdict(&diagnosis, None);
        assert!(
            shown.starts_with(
                "No problems found; 2 checks could not run, or only in part; no packets"
            ),
            "{shown}"
        );
    }
}
