//! `tune`: a plan as a diff, its outcome, and the state of the journal.

use super::commands::{braces, queue_of, queues_folder};
use super::cpus::count;
use super::table::{Table, left, or_none, right};
use super::units::{bytes, percent, printable};
use super::{heading, line, time_of_day};
use anstyle::{AnsiColor, Style};
use nearpath_model::{
    Change, ChangeState, ChangeStatus, Crossings, Entry, Goal, MemoryMoved, Notice, Noticed,
    Outcome, Plan, PlannedChange, QueueFile, Target, Value,
};
use std::fmt::Display;

/// A value that is longer than this is cut in tables.
const VALUE_WIDTH: usize = 40;

/// A plan.
pub fn plan(plan: &Plan) -> String {
    let mut out = String::new();
    let goal = match plan.goal {
        Goal::Latency => "latency",
        Goal::Throughput => "throughput",
        Goal::Isolation => "isolation",
    };
    let changes = match plan.changes.len() {
        0 => "nothing to change".to_owned(),
        number => count(number, "change"),
    };
    heading(&mut out, &format!("plan for {goal}: {changes}"));
    for text in crossings(&plan.now, &plan.predicted) {
        line!(out, "{text}");
    }
    let mut before = plan.now;
    for alike in plan.changes.chunk_by(is_alike) {
        let Some(change) = alike.last() else { continue };
        line!(out);
        out.push_str(&difference(change, &names(alike)));
        let after = change.predicted.unwrap_or(before);
        if let Some(effect) = effect(&before, &after) {
            line!(out, "  {effect}");
        }
        before = after;
    }
    if !plan.notes.is_empty() {
        line!(out);
        heading(&mut out, "notes:");
        for note in &plan.notes {
            line!(out, "  {}", printable(note));
        }
    }
    out
}

/// The known shares before and after.
fn crossings(now: &Crossings, then: &Crossings) -> Vec<String> {
    let rows = [
        ("CPU", now.other_cpu, then.other_cpu),
        ("LLC", now.other_llc, then.other_llc),
        ("node", now.other_node, then.other_node),
    ];
    let text = |(what, now, then): (&str, Option<f64>, Option<f64>)| {
        let (now, then) = (now?, then?);
        let (now, then) = (percent(now), percent(then));
        Some(format!("packets that cross to another {what}: {now} -> {then} (predicted)"))
    };
    rows.into_iter().filter_map(text).collect()
}

/// The shares that a change affects.
fn effect(before: &Crossings, after: &Crossings) -> Option<String> {
    let rows = [
        ("CPU", before.other_cpu, after.other_cpu),
        ("LLC", before.other_llc, after.other_llc),
        ("node", before.other_node, after.other_node),
    ];
    let moved = |(what, before, after): (&str, Option<f64>, Option<f64>)| {
        let (before, after) = (before?, after?);
        // Less than this is noise of the prediction.
        ((after - before).abs() >= 0.0005)
            .then(|| format!("{} cross to another {what}", percent(after)))
    };
    let moved: Vec<String> = rows.into_iter().filter_map(moved).collect();
    if moved.is_empty() {
        return None;
    }
    Some(format!("predicted: {}", moved.join(", ")))
}

/// Whether two changes set the same value on two queues of one interface.
fn is_alike(a: &PlannedChange, b: &PlannedChange) -> bool {
    let place = |change: &PlannedChange| {
        queue_of(&change.target).map(|(nic, _, file)| (nic.to_owned(), file))
    };
    let rest = |change: &PlannedChange| {
        let PlannedChange { before, after, why, finding, optional, reboot, .. } = change;
        (before.clone(), after.clone(), why.clone(), finding.clone(), *optional, *reboot)
    };
    place(a).is_some() && place(a) == place(b) && rest(a) == rest(b)
}

/// What the change is called, and where it is made: of several queues one name and one path, `…/rx-{0..3}/rps_cpus`.
fn names(alike: &[PlannedChange]) -> (String, String) {
    let (Some(first), Some(last)) = (alike.first(), alike.last()) else { return <_>::default() };
    let queues = || {
        let queues = alike.iter().map(|change| queue_of(&change.target).map(|(_, queue, _)| queue));
        queues.collect::<Option<Vec<_>>>()
    };
    match queue_of(&first.target).zip(queues()) {
        Some(((nic, _, file), queues)) if alike.len() > 1 => {
            let nic = queues_folder(nic);
            let id = format!("{} … {} ({} queues)", first.id, last.id, alike.len());
            (id, format!("{nic}/{}/{file}", braces(&queues, file)))
        }
        _ => (first.id.clone(), first.target.to_string()),
    }
}

fn difference(change: &PlannedChange, (id, target): &(String, String)) -> String {
    let (red, green) = (AnsiColor::Red.on_default(), AnsiColor::Green.on_default());
    let bold = Style::new().bold();
    let mut out = String::new();
    let finding = change.finding.as_ref().map(|name| format!("  [{name}]")).unwrap_or_default();
    let optional = if change.optional { "  (optional)" } else { "" };
    let reboot = if change.reboot { "  (requires a reboot)" } else { "" };
    let (before, after) = (values(change, &change.before), values(change, &change.after));
    let target = printable(&format!("{target}{finding}{optional}{reboot}"));
    line!(out, "{bold}{}{bold:#}  {target}", printable(id));
    for text in before {
        line!(out, "  {red}- {text}{red:#}");
    }
    for text in after {
        line!(out, "  {green}+ {text}{green:#}");
    }
    line!(out, "  {}", printable(&change.why));
    out
}

/// A value, of a file its lines.
fn values(change: &PlannedChange, value: &Value) -> Vec<String> {
    let of_file = !change.target.takes_effect_immediately();
    match value.text() {
        Some("") if of_file => vec!["(none)".to_owned()],
        Some(text) if of_file => text.lines().map(printable).collect(),
        _ => vec![with_cpus(change, value)],
    }
}

/// A value, a mask with the CPUs that it means.
fn with_cpus(change: &PlannedChange, value: &Value) -> String {
    let masked = queue_of(&change.target)
        .is_some_and(|(_, _, file)| matches!(file, QueueFile::RpsCpus | QueueFile::XpsCpus));
    let text = printable(&value.to_string().replace('\t', " "));
    match change.target.set_of(value).filter(|_| masked) {
        Some(cpus) if cpus.is_empty() => format!("{text} (off)"),
        Some(cpus) if cpus.len() == 1 => format!("{text} (CPU {cpus})"),
        Some(cpus) => format!("{text} (CPUs {cpus})"),
        None => text,
    }
}

/// The outcome of a plan, or of a dry run.
pub fn applied(applied: bool, outcome: &Outcome) -> String {
    let mut out = String::new();
    let verb = if applied { "made" } else { "would make" };
    heading(&mut out, &format!("{verb} {}", count(outcome.made.len(), "change")));
    for change in &outcome.made {
        let (before, after) = (short(change, &change.before), short(change, &change.after));
        line!(out, "  {}: {before} -> {after}", printable(&change.target.to_string()));
    }
    for skipped in &outcome.skipped {
        line!(out, "  skipped: {}", printable(&skipped.reason.to_string()));
    }
    out
}

/// The state of the changes in the journal.
pub fn journal(statuses: &[ChangeStatus]) -> String {
    let mut out = String::new();
    if statuses.is_empty() {
        line!(out, "no changes by nearpath");
        return out;
    }
    line!(out, "{}", in_a_line(statuses));
    line!(out);
    let columns = [
        right("ID"),
        left("STATE"),
        left("TARGET"),
        left("BEFORE"),
        left("AFTER"),
        left("APPLIED-AT"),
    ];
    let mut table = Table::new(&columns);
    for ChangeStatus { entry, state, .. } in statuses {
        let Entry { id, time_s, change, .. } = entry;
        let state = state.map(state_name);
        let (target, time) = (change.target.to_string(), time_of_day(*time_s));
        let (before, after) = (short(change, &change.before), short(change, &change.after));
        table.row([id.to_string(), or_none(state), target, before, after, time]);
    }
    out.push_str(&table.render());
    for status in statuses {
        if let Some(reason) = &status.reason {
            line!(out, "change {}: {}", status.entry.id, printable(reason));
        }
    }
    out
}

fn state_name(state: ChangeState) -> &'static str {
    match state {
        ChangeState::Applied => "applied",
        ChangeState::Drifted => "drifted",
        ChangeState::Undone => "undone",
        ChangeState::Lost => "lost",
    }
}

/// `5 changes: 3 applied, 1 drifted, 1 not visible`.
fn in_a_line(statuses: &[ChangeStatus]) -> String {
    let states = [
        Some(ChangeState::Applied),
        Some(ChangeState::Drifted),
        Some(ChangeState::Undone),
        Some(ChangeState::Lost),
        None,
    ];
    let counts = states.into_iter().filter_map(|state| {
        let number = statuses.iter().filter(|status| status.state == state).count();
        (number > 0).then(|| format!("{number} {}", state.map_or("not visible", state_name)))
    });
    let counts = counts.collect::<Vec<_>>().join(", ");
    format!("{}: {counts}", count(statuses.len(), "change"))
}

/// The changes that were and were not undone.
pub fn rolled_back<E: Display>(results: &[(Entry, Result<(), E>)], boot: &str) -> String {
    let mut out = String::new();
    for (entry, result) in results {
        let target = printable(&entry.change.target.to_string());
        match result {
            Ok(()) if entry.lost_by_reboot(boot) => {
                line!(out, "removed: change {}, {target}: undone by reboot", entry.id);
            }
            Ok(()) => match entry.change.target.one_way() {
                Some(stays) => line!(out, "removed: change {}, {target}: {stays}", entry.id),
                None => line!(out, "undone: change {}, {target}", entry.id),
            },
            Err(error) => {
                line!(out, "kept:   change {}, {}", entry.id, printable(&error.to_string()));
            }
        }
    }
    out
}

/// A notice of a watch, as one line.
pub fn watched(notice: &Notice, time_s: u64) -> String {
    let Notice { id, target, what } = notice;
    let said = match what {
        Noticed::Restored { lost, reason, before, after } => {
            let (before, after) = (cut(before), cut(after));
            let why = printable(reason);
            format!("re-applied: {before} -> {after} (was change {lost}: {why})")
        }
        Noticed::Applied { device, after } => {
            format!("applied for {}: {}", printable(device), cut(after))
        }
        Noticed::Dropped(reason) => format!("device gone, dropped: {}", printable(reason)),
        Noticed::Lost(reason) => format!("lost: {}", printable(reason)),
        Noticed::Drifted(reason) => format!("skipped: {}", printable(reason)),
        Noticed::Failed(reason) => format!("lost and not re-applied: {}", printable(reason)),
    };
    format!("{}  change {id}, {}: {said}\n", time_of_day(time_s), printable(target))
}

/// What a watch did about memory on the wrong node, as one line.
pub fn memory_moved(moved: &MemoryMoved, time_s: u64) -> String {
    let MemoryMoved { pid, node, pages_elsewhere, pages_moved, reason, .. } = moved;
    let (before, after) = (bytes(moved.remote_bytes_before), bytes(moved.remote_bytes_after));
    let comm = printable(&moved.comm);
    let time = time_of_day(time_s);
    let why = reason.as_ref().map(|reason| format!("; {}", printable(reason))).unwrap_or_default();
    if *pages_moved == 0 {
        return format!(
            "{time}  memory of {comm} ({pid}) not moved to node {node}: {before} elsewhere{why}\n"
        );
    }
    format!(
        "{time}  memory of {comm} ({pid}) moved to node {node}: {pages_moved} of {pages_elsewhere} pages; elsewhere \
         {before} -> {after}{why}\n"
    )
}

/// A value that fits a table: of a file its lines, without the comments.
fn short(change: &Change, value: &Value) -> String {
    let text = value.to_string();
    if !matches!(change.target, Target::ConfigFile(_)) {
        return cut(&text);
    }
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    if lines.is_empty() { "(none)".to_owned() } else { cut(&lines.join(" ")) }
}

/// A text that fits a table.
fn cut(text: &str) -> String {
    // The kernel separates the numbers of a setting by tabs.
    let text = printable(&text.replace('\t', " "));
    if text.is_empty() {
        return "\"\"".to_owned();
    }
    if text.chars().count() <= VALUE_WIDTH {
        return text;
    }
    let cut: String = text.chars().take(VALUE_WIDTH - 1).collect();
    format!("{cut}…")
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{Persistence, State};

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    fn planned(target: &str, before: &str, after: &str) -> PlannedChange {
        let target = Target::parse(target, None).unwrap();
        PlannedChange {
            id: "a/b".to_owned(),
            optional: target.may_be_refused(),
            finding: (target.kind() == "rps_cpus").then(|| "rps_placement".to_owned()),
            target,
            before: before.into(),
            after: after.into(),
            why: "because".to_owned(),
            persist: vec![],
            reboot: false,
            predicted: None,
        }
    }

    #[test]
    fn tabs_between_numbers_are_shown_as_blanks() {
        let change = planned("/proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456", "1 2 3");
        assert_eq!(with_cpus(&change, &change.before), "4096 131072 6291456");
        assert_eq!(cut("4096\t131072\t6291456"), "4096 131072 6291456");
        assert_eq!(cut("a\u{1b}"), "a\\u{1b}");
    }

    #[test]
    fn a_plan_is_a_difference_with_reasons() {
        let shares =
            |share| Crossings { other_cpu: None, other_llc: None, other_node: Some(share) };
        let irq = planned("/proc/irq/4/smp_affinity_list", "0-3", "2");
        let shown = plan(&Plan {
            schema: 1,
            goal: Goal::Latency,
            boot: None,
            made_ticks: None,
            netns: None,
            changes: vec![
                PlannedChange { predicted: Some(shares(0.0)), ..irq },
                planned("/sys/class/net/x/queues/rx-0/rps_cpus", "0000000c", "00000000"),
                planned("/sys/class/net/x/queues/rx-1/rps_cpus", "0000000c", "00000000"),
                planned("/sys/class/net/x/queues/rx-2/rps_cpus", "0000000c", "00000000"),
                planned("/sys/class/net/x/queues/rx-3/rps_cpus", "00000001", "00000000"),
            ],
            now: shares(0.525),
            predicted: shares(0.0),
            notes: vec!["a note\u{1b}".to_owned()],
        });
        assert_eq!(
            plain(&shown),
            "plan for latency: 5 changes\n\
             packets that cross to another node: 52.5% -> 0% (predicted)\n\
             \n\
             a/b  /proc/irq/4/smp_affinity_list  (optional)\n\
             \x20 - 0-3\n\
             \x20 + 2\n\
             \x20 because\n\
             \x20 predicted: 0% cross to another node\n\
             \n\
             a/b … a/b (3 queues)  /sys/class/net/x/queues/rx-{0..2}/rps_cpus  [rps_placement]\n\
             \x20 - 0000000c (CPUs 2-3)\n\
             \x20 + 00000000 (off)\n\
             \x20 because\n\
             \n\
             a/b  /sys/class/net/x/queues/rx-3/rps_cpus  [rps_placement]\n\
             \x20 - 00000001 (CPU 0)\n\
             \x20 + 00000000 (off)\n\
             \x20 because\n\
             \n\
             notes:\n\
             \x20 a note\\u{1b}\n"
        );
    }

    fn entry(id: u64, before: &str) -> Entry {
        let path = "/proc/irq/4/smp_affinity_list";
        let change = Change {
            target: Target::parse(path, None).unwrap(),
            before: Value::Text(before.to_owned()),
            after: Value::Text("2".to_owned()),
            why: "because".to_owned(),
            persistence: Persistence::UntilReboot,
            snapshot: Vec::new(),
        };
        Entry {
            id,
            time_s: 0,
            boot: "b".to_owned(),
            state: State::Done,
            change,
            replaces: None,
            pending: None,
        }
    }

    #[test]
    fn the_journal_shows_the_state_of_each_change() {
        let status = |id, before: &str, state, reason: Option<&str>| ChangeStatus {
            entry: entry(id, before),
            state,
            reason: reason.map(str::to_owned),
            set_back: false,
            unplugged: false,
        };
        let long = (0..40).map(|n| (2 * n).to_string()).collect::<Vec<_>>().join(",");
        let shown = journal(&[
            status(9, "0-3", Some(ChangeState::Applied), None),
            status(10, &long, Some(ChangeState::Drifted), Some("changed externally")),
            status(11, "", None, Some("elsewhere")),
        ]);
        let shown = plain(&shown);
        let lines: Vec<&str> = shown.lines().collect();
        let target = "/proc/irq/4/smp_affinity_list";
        let time = "1970-01-01 00:00:00 UTC";
        let cut = "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28…";
        assert_eq!(lines[..2], ["3 changes: 1 applied, 1 drifted, 1 not visible", ""]);
        assert_eq!(
            lines[2],
            format!("ID  STATE    {:29}  {:40}  AFTER  APPLIED-AT", "TARGET", "BEFORE")
        );
        assert_eq!(lines[3], format!(" 9  applied  {target}  {:40}  2      {time}", "0-3"));
        assert_eq!(lines[4], format!("10  drifted  {target}  {cut}  2      {time}"));
        assert_eq!(lines[5], format!("11  -        {target}  {:40}  2      {time}", "\"\""));
        assert_eq!(lines[6..], ["change 10: changed externally", "change 11: elsewhere"]);
        assert_eq!(journal(&[]), "no changes by nearpath\n");
    }

    #[test]
    fn a_watch_says_a_line_for_each_notice() {
        let target = "/proc/irq/5/smp_affinity_list".to_owned();
        let (reason, before, after) = ("why".to_owned(), "0-3".to_owned(), "2".to_owned());
        let what = Noticed::Restored { lost: 4, reason, before, after };
        let shown = watched(&Notice { id: 9, target: target.clone(), what }, 0);
        assert_eq!(
            shown,
            format!(
                "1970-01-01 00:00:00 UTC  change 9, {target}: re-applied: 0-3 -> 2 (was change 4: why)\n"
            )
        );
        let what = Noticed::Drifted("a script\u{1b}".to_owned());
        let shown = watched(&Notice { id: 9, target, what }, 0);
        assert!(shown.ends_with(": skipped: a script\\u{1b}\n"), "{shown}");
    }

    #[test]
    fn a_rollback_lists_kept_changes() {
        let error = "no";
        let old = Entry { boot: "older".to_owned(), ..entry(1, "0") };
        let results = [(entry(3, "0"), Ok(())), (entry(2, "0"), Err(error)), (old, Ok(()))];
        let shown = rolled_back(&results, "b");
        assert_eq!(
            shown,
            "undone: change 3, /proc/irq/4/smp_affinity_list\n\
             kept:   change 2, no\n\
             removed: change 1, /proc/irq/4/smp_affinity_list: undone by reboot\n"
        );
    }
}
