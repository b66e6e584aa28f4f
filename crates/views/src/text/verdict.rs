//! The verdict of a diagnosis on one screen: what is wrong, what it costs, and the command that fixes it.
//!
//! The first line is the answer. Evidence and tables are [`super::findings`] and [`super::diagnosis`].

use super::commands::{Command, commands, wrapped};
use super::cpus::count;
use super::line;
use super::paths::name;
use super::units::{latency, percent, percentage, printable, seconds, short};
use anstyle::{AnsiColor, Style};
use nearpath_model::drops::in_short;
use nearpath_model::{
    Diagnosis, Finding, FindingCost, Measurement, Packets, PathKind, PathLatency, Severity, Watch,
};
use std::collections::BTreeSet;

/// Lines of a terminal, which the verdict fills at most.
pub const SCREEN_LINES: usize = 24;
/// Columns of a line; a command that is longer is wrapped.
const COLUMNS: usize = 100;
/// Columns before a command.
const INDENT: usize = 10;
/// Commands of a finding that are shown.
const COMMANDS: usize = 2;
/// Findings for information that are named, a line each.
const NOTES: usize = 3;
/// Kinds of paths whose latency is shown.
const PATHS: usize = 2;
/// Cells of a bar.
const BAR: usize = 10;
/// Between two facts on a line.
const BETWEEN: &str = " · ";
/// Share of a measurement that counts as the whole of it.
const MOST_OF_IT: f64 = 0.99;

/// The verdict in at most so many lines; `-v` and `-vv` have the rest. `next` is the command to go on with where there is
/// something to fix.
pub fn verdict(diagnosis: &Diagnosis, next: Option<&str>, lines: usize) -> String {
    let mut out = String::new();
    let end = figures(diagnosis, next);
    // One line reports what is not shown.
    let room = lines.saturating_sub(end.lines().count() + 1);
    let is_serious = |finding: &&Finding| finding.severity > Severity::Info;
    // Ranked by severity: what is shown is the first of them.
    let (serious, notes): (Vec<&Finding>, Vec<&Finding>) =
        diagnosis.findings.iter().partition(is_serious);
    let mut shown = 0;
    for finding in &serious {
        let text = one(finding);
        // Of the worst at least the title.
        let text = if shown == 0 && text.lines().count() > room { title(finding) } else { text };
        if shown > 0 && out.lines().count() + text.lines().count() > room {
            break;
        }
        out.push_str(&text);
        shown += 1;
    }
    let mut hidden: Vec<&Finding> = serious.iter().skip(shown).copied().collect();
    if serious.is_empty() {
        line!(out, "{}", nothing_found(diagnosis));
    }
    let space = if hidden.is_empty() { room.saturating_sub(out.lines().count()) } else { 0 };
    notes.iter().take(space.min(NOTES)).for_each(|finding| out.push_str(&title(finding)));
    hidden.extend(notes.iter().skip(space.min(NOTES)));
    let rest: Vec<String> =
        [others(&hidden), not_checked(diagnosis)].into_iter().flatten().collect();
    if !rest.is_empty() {
        line!(out, "{}", rest.join(" · "));
    }
    out + &end
}

/// The last lines: packets, latency, and what to do next.
fn figures(diagnosis: &Diagnosis, next: Option<&str>) -> String {
    let mut out = String::new();
    if let Some(measured) = &diagnosis.measurement {
        measured.watch.iter().for_each(|watch| line!(out, "{}", watched(watch)));
        line!(out, "{}", packets(measured));
        let paths = measured.paths.iter().filter_map(end_to_end).take(PATHS);
        paths.for_each(|path| line!(out, "{path}"));
    }
    if let Some(next) = next
        && diagnosis.findings.iter().any(|finding| !finding.changes.is_empty())
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
    let (skipped, all) = (checks_skipped(diagnosis), diagnosis.checks);
    if all > 0 && skipped >= all && diagnosis.findings.is_empty() {
        let reason = diagnosis.not_checked.first().map_or("", |missing| missing.reason.as_str());
        return elided(&format!("Nothing could be checked: {}", printable(reason)), COLUMNS);
    }
    // Nothing was late, and an application waits or takes long.
    let is_told = |finding: &&Finding| OF_APPLICATIONS.contains(&finding.check.as_str());
    let watch = diagnosis.measurement.as_ref().and_then(|measured| measured.watch.as_ref());
    let is_clean = watch.is_some_and(|watch| watch.not_watched.is_none() && watch.late == 0);
    if let Some(finding) = diagnosis.findings.iter().find(is_told).filter(|_| is_clean) {
        let said = format!("No problems found in the kernel's path: {}", printable(&finding.title));
        return elided(&said, COLUMNS);
    }
    let measured = match &diagnosis.measurement {
        None => "; no packets were measured".to_owned(),
        Some(m) => covered(m),
    };
    match (skipped, all) {
        (0, _) => format!("No problems found{measured}"),
        // From a nearpath that did not report how many there are.
        (_, 0) => format!("No problems found{measured}; {} could not run", count(skipped, "check")),
        _ => format!("No problems found{measured}; {skipped} of {all} checks could not run"),
    }
}

/// What was looked at: `: none of 201k received packets was later than 1.00ms`.
fn covered(measured: &Measurement) -> String {
    let watch = measured.watch.as_ref().filter(|watch| watch.not_watched.is_none());
    if let Some(watch) = watch.filter(|watch| watch.packets > 0) {
        let (all, than) = (short(watch.packets), latency(watch.late_ns));
        let part = if watch.unstamped > 0 { "with a time stamp " } else { "" };
        return match watch.late {
            0 => format!(": none of {all} received packets {part}was later than {than}"),
            1 => format!(": 1 of {all} received packets {part}was later than {than}"),
            late => {
                format!(": {} of {all} received packets {part}were later than {than}", short(late))
            }
        };
    }
    if measured.packets.started == 0 {
        return "; no packets were seen".to_owned();
    }
    let share = measured.observed_time_s() / measured.duration_s.max(f64::MIN_POSITIVE);
    match share < MOST_OF_IT {
        true => format!(
            " in the {} of the time that was watched: a fault that comes and goes can be missed",
            percent(share)
        ),
        false => String::new(),
    }
}

/// `watched 201k received packets in 10.0s: 812 later than 1.00ms (98.0% explained), 21 unstamped`.
fn watched(watch: &Watch) -> String {
    if let Some(reason) = &watch.not_watched {
        return elided(&format!("not every packet is watched: {}", printable(reason)), COLUMNS);
    }
    let late = match watch.late {
        0 => format!("none later than {}", latency(watch.late_ns)),
        late => {
            let explained = percent((watch.explained as f64 / late as f64).min(1.0));
            format!("{} later than {} ({explained} explained)", short(late), latency(watch.late_ns))
        }
    };
    let unstamped = match watch.unstamped {
        0 => String::new(),
        some => format!(", {} unstamped", short(some)),
    };
    let (packets, time) = (short(watch.packets), seconds(watch.watched_s));
    format!("watched {packets} received packets in {time}: {late}{unstamped}")
}

/// Checks about what an application does, whatever the way of its packets.
const OF_APPLICATIONS: [&str; 3] = ["answer_time", "tcp_reader", "tcp_unaccepted"];
/// What is noted as not checked and is no check: evidence that is missing, and names that were refused.
const NOT_CHECKS: [&str; 2] = ["measurement", "nics"];

/// How many checks could not run, or only in part.
fn checks_skipped(diagnosis: &Diagnosis) -> usize {
    let checks = diagnosis.not_checked.iter().map(|missing| missing.check.as_str());
    checks.filter(|check| !NOT_CHECKS.contains(check)).collect::<BTreeSet<_>>().len()
}

/// `1 more critical, 2 more warnings (-v)`.
fn others(hidden: &[&Finding]) -> Option<String> {
    let of = |severity| hidden.iter().filter(|finding| finding.severity == severity).count();
    let parts = [
        (of(Severity::Critical), format!("{} more critical", of(Severity::Critical))),
        (of(Severity::Warning), count(of(Severity::Warning), "more warning")),
        (of(Severity::Info), format!("{} more info", of(Severity::Info))),
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
        (missing, format!("{} skipped or incomplete (-v)", count(missing, "check"))),
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
    let title = elided(&title, COLUMNS.saturating_sub(INDENT + 4 + check.chars().count()));
    line!(out, "{style}{word:<8}{style:#}  {title}  [{check}]");
    out
}

/// A text of at most so many columns; what is cut off is an ellipsis.
fn elided(text: &str, columns: usize) -> String {
    if text.chars().count() <= columns {
        return text.to_owned();
    }
    let kept: String = text.chars().take(columns.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// A finding: its title, what it costs, the commands that fix it, and what else it shows in.
fn one(finding: &Finding) -> String {
    let mut out = title(finding);
    let impact = impact(&finding.cost, Some(COLUMNS - INDENT));
    if !impact.is_empty() {
        line!(out, "  impact  {impact}");
    }
    for (alternative, label) in [(false, "fix"), (true, "or")] {
        let commands = fixes(finding, alternative);
        for (place, command) in commands.iter().take(COMMANDS).enumerate() {
            let label = if place == 0 { label } else { "" };
            for (row, part) in on_screen(command).iter().enumerate() {
                let label = if row == 0 { label } else { "" };
                line!(out, "  {label:<6}  {part}");
            }
        }
        if commands.len() > COMMANDS {
            line!(out, "          and {} (-v)", count(commands.len() - COMMANDS, "more command"));
        }
    }
    let symptoms: BTreeSet<&str> = finding.symptoms.iter().map(|f| f.check.as_str()).collect();
    if !symptoms.is_empty() {
        let symptoms: Vec<String> = symptoms.into_iter().map(printable).collect();
        let symptoms = elided(&symptoms.join(", "), COLUMNS - INDENT - " (-v)".len());
        line!(out, "  causes  {symptoms} (-v)");
    }
    out
}

/// The commands that fix a finding, or those that would instead.
pub(super) fn fixes(finding: &Finding, alternative: bool) -> Vec<Command> {
    let changes: Vec<_> =
        finding.changes.iter().filter(|change| change.alternative == alternative).collect();
    let mut fixes = commands(&changes);
    if !alternative {
        let manual = |line: &String| Command { line: line.clone(), ..Command::default() };
        fixes.extend(finding.manual.iter().map(manual));
    }
    fixes
}

/// A command as it fits: wrapped, with the value before where there is room for it.
fn on_screen(command: &Command) -> Vec<String> {
    let columns = COLUMNS - INDENT;
    let mut lines = wrapped(&printable(&command.line), columns);
    if lines.iter().any(|line| line.chars().count() > columns) {
        return vec!["a command longer than the screen (-v)".to_owned()];
    }
    let was = format!("    (was {})", printable(&command.was));
    if let Some(last) = lines.last_mut()
        && !command.was.is_empty()
        && last.chars().count() + was.chars().count() <= columns
    {
        last.push_str(&was);
    }
    lines
}

/// `32.0% of 369k packets  ███▎······  +16.4µs median, max 656µs, 147ms of waiting per second`. Where that is more than so
/// many columns, the last of it is left out.
pub(super) fn impact(cost: &FindingCost, columns: Option<usize>) -> String {
    let share = cost.share_percent.map(|share| {
        let of = match cost.share_of.as_str() {
            "" => "affected".to_owned(),
            of => format!("of {}", elided(&printable(of), 40)),
        };
        let (number, bar) = (percentage(share), bar(share / 100.0));
        let plain = format!("{number} {of}  {bar}").chars().count();
        let style = stands_out(share / 100.0);
        (format!("{number} {of}  {style}{bar}{style:#}"), plain)
    });
    let waiting = cost.seconds_per_second.filter(|seconds| *seconds > 0.0);
    let more = [
        cost.per_packet_ns.map(|ns| format!("+{} median", latency(ns))),
        cost.max_ns.map(|ns| format!("max {}", latency(ns))),
        waiting.map(|s| format!("{} of waiting per second", seconds(s))),
    ];
    let (mut text, mut used) = share.unwrap_or_default();
    let mut between = if text.is_empty() { "" } else { "  " };
    for part in more.into_iter().flatten() {
        used += between.len() + part.chars().count();
        if columns.is_some_and(|columns| used > columns) {
            break;
        }
        text.push_str(between);
        text.push_str(&part);
        between = ", ";
    }
    text
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

/// `packets 20.5k in 378ms of 10.0s, 99.9% followed · overhead 1.30% of one CPU`; the overhead is on a line of its own if
/// they do not fit on one.
fn packets(measured: &Measurement) -> String {
    let Packets { started, completed, dropped, .. } = measured.packets;
    let followed = match started {
        0 => String::new(),
        _ => {
            let ended = completed.saturating_add(dropped).min(started);
            format!(", {} followed", percent(ended as f64 / started as f64))
        }
    };
    // With an overhead limit packets are observed in slices: what was not looked at is said.
    let observed = measured
        .observed_s
        .filter(|observed| *observed < MOST_OF_IT * measured.duration_s)
        .map_or_else(String::new, |observed| {
            format!(" in {} of {}", seconds(observed), seconds(measured.duration_s))
        });
    let cost = measured.cost.map_or_else(String::new, |cost| {
        format!("overhead {} of one CPU", percentage(cost.cpu_percent))
    });
    let lost = match dropped {
        0 => String::new(),
        _ => {
            let meaning = measured.drops.first().and_then(|drop| drop.meaning.as_deref());
            let why = meaning.map(|meaning| format!(" ({})", printable(in_short(meaning))));
            format!(", {} dropped{}", short(dropped), why.unwrap_or_default())
        }
    };
    let packets = format!("packets {}{observed}{followed}{lost}", short(started));
    let packets = elided(&packets, COLUMNS);
    match packets.chars().count() + BETWEEN.chars().count() + cost.chars().count() {
        _ if cost.is_empty() => packets,
        width if width <= COLUMNS => format!("{packets}{BETWEEN}{cost}"),
        _ => format!("{packets}\n{cost}"),
    }
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
    use nearpath_model::{
        Cost, NotChecked, ProposedChange, QueueFile, QueueId, SettingFile, StageDrop,
    };

    #[test]
    fn a_bar_has_ten_cells() {
        assert_eq!(bar(0.0), "··········");
        assert_eq!(bar(0.35), "███▌······");
        assert_eq!(bar(1.0), "██████████");
        assert_eq!(bar(7.0), "██████████");
    }

    fn empty() -> Diagnosis {
        serde_json::from_value(serde_json::json!({
            "schema": 1, "findings": [], "not_checked": [], "checks": 3, "measurement": null,
            "host": {"kernel": null, "virtualisation": null, "online_cpus": 1, "packages": 1,
                     "nodes": 1, "llcs": 1, "nics": []},
        }))
        .unwrap()
    }

    #[test]
    fn what_was_not_looked_at_is_said_and_a_long_line_is_two() {
        let mut measured = Measurement {
            duration_s: 10.0,
            observed_s: Some(0.378),
            packets: Packets { started: 20_500, completed: 20_500, ..Packets::default() },
            ..Measurement::default()
        };
        assert_eq!(packets(&measured), "packets 20.5k in 378ms of 10.0s, 100% followed");
        measured.cost = Some(Cost { cpu_percent: 1.3, ..Cost::default() });
        let both = "packets 20.5k in 378ms of 10.0s, 100% followed · overhead 1.3% of one CPU";
        assert_eq!(packets(&measured), both);
        measured.observed_s = Some(9.95);
        assert!(packets(&measured).starts_with("packets 20.5k, 100% followed"));
        measured.observed_s = Some(0.378);
        measured.packets = Packets { completed: 10_000, dropped: 10_400, ..measured.packets };
        let drop: StageDrop = serde_json::from_value(serde_json::json!({
            "direction": "rx", "after": "udp", "reason": null, "meaning": "m".repeat(40),
            "function": "f", "device": null, "netns": null, "packets": 1,
        }))
        .unwrap();
        measured.drops.push(drop);
        let text = packets(&measured);
        assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert!(text.ends_with("\noverhead 1.3% of one CPU"), "{text}");
    }

    #[test]
    fn nothing_found_is_no_more_than_was_looked_at() {
        let missing =
            |check: &str| NotChecked { check: check.to_owned(), reason: "no root".to_owned() };
        let mut diagnosis = empty();
        let said = |diagnosis: &Diagnosis| {
            let text = verdict(diagnosis, None, SCREEN_LINES);
            text.lines().next().unwrap().to_owned()
        };
        assert_eq!(said(&diagnosis), "No problems found; no packets were measured");
        diagnosis.not_checked =
            ["measurement", "a", "b", "a", "nics"].into_iter().map(missing).collect();
        assert_eq!(
            said(&diagnosis),
            "No problems found; no packets were measured; 2 of 3 checks could not run"
        );
        diagnosis.not_checked.push(missing("c"));
        assert_eq!(said(&diagnosis), "Nothing could be checked: no root");
    }

    /// A finding of four lines.
    fn finding(severity: Severity, number: usize) -> Finding {
        let change = |queue| {
            let file = SettingFile::queue("eth0", QueueId(queue), QueueFile::RpsCpus);
            ProposedChange::new(file, Some("1".to_owned()), queue.to_string(), "Why.")
        };
        let finding = Finding::new(severity, format!("{severity:?} {number}"));
        [change(0), change(1)].into_iter().fold(finding.share(Some(0.5), "all"), Finding::change)
    }

    #[test]
    fn what_is_hidden_is_counted_by_severity() {
        let of = |severity, n| (0..n).map(move |number| finding(severity, number));
        let mut diagnosis = empty();
        diagnosis.findings = of(Severity::Critical, 3)
            .chain(of(Severity::Warning, 5))
            .chain(of(Severity::Info, 5))
            .collect();
        let shown = |lines| verdict(&diagnosis, Some("nearpath fix"), lines);
        let text = shown(SCREEN_LINES);
        let plain = |text: &str| anstream::adapter::strip_str(text).to_string();
        let count = |text: &str, word: &str| {
            plain(text).lines().filter(|line| line.starts_with(word)).count()
        };
        assert_eq!(text.lines().count(), 22, "{text}");
        assert_eq!(count(&text, "CRITICAL") + count(&text, "WARNING"), 5, "{text}");
        // No note stands above a warning that is hidden.
        assert_eq!(count(&text, "INFO"), 0, "{text}");
        assert!(text.contains("\n3 more warnings, 5 more info (-v)\nnext: "), "{text}");
        assert!(shown(12).contains("\n1 more critical, 5 more warnings, 5 more info (-v)\n"));
        assert!(shown(1).starts_with("\u{1b}") && shown(1).lines().count() == 3, "{}", shown(1));
        let text = shown(40);
        assert_eq!(count(&text, "INFO"), NOTES, "{text}");
        assert!(text.contains("\n2 more info (-v)\n"), "{text}");
    }

    #[test]
    fn long_lines_are_cut_and_commands_wrapped() {
        let mut long = finding(Severity::Warning, 0);
        long.title = "t".repeat(150);
        long.check = "name_of_check".to_owned();
        long.cost.share_of = "p".repeat(90);
        long.cost.max_ns = Some(1);
        long.changes.clear();
        long.cost.seconds_per_second = Some(0.5);
        long.manual = vec![format!("ethtool -X {} {}", "n".repeat(60), "w".repeat(40))];
        long.symptoms = (0..9).map(|number| finding(Severity::Info, number)).collect();
        for (number, symptom) in long.symptoms.iter_mut().enumerate() {
            symptom.check = format!("a_long_name_{number}");
        }
        let mut diagnosis = empty();
        diagnosis.findings = vec![long];
        let text = verdict(&diagnosis, None, SCREEN_LINES);
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert!(plain.lines().all(|line| line.chars().count() <= COLUMNS), "{plain}");
        assert!(plain.contains("…  [name_of_check]"), "{plain}");
        assert!(plain.contains(" \\\n            wwww"), "{plain}");
    }
}
