//! What `nearpath fix` has done, on one screen. The first line is the answer.

use super::cpus::count;
use super::table::{Table, left, right};
use super::units::{latency, printable};
use super::{line, trial};
use nearpath_model::fix::{Attempt, Fixed, PacketFigures};
use nearpath_model::{FigureUnit, TrialFigure, Whose};

/// Changes of an attempt that are shown.
const SHOWN: usize = 4;

/// All of it; `netns` are the words of the network namespace, as ` --netns blue`, if commands need them.
pub fn fixed(fixed: &Fixed, netns: &str) -> String {
    let mut out = String::new();
    line!(out, "{}", answer(fixed));
    if let (Some(before), Some(after)) = (&fixed.before, &fixed.after)
        && !fixed.kept.is_empty()
    {
        out.push_str(&packets(before, after));
    }
    let (kept, others): (Vec<&Attempt>, Vec<&Attempt>) =
        fixed.tried.iter().partition(|attempt| attempt.kept);
    attempts(&mut out, "kept", &kept);
    attempts(&mut out, "did not help, undone", &others);
    if !fixed.not_tried.is_empty() {
        line!(out, "not tried");
        for one in &fixed.not_tried {
            line!(out, "  {}: {}", printable(&one.title), printable(&one.reason));
        }
    }
    if !fixed.left.is_empty() {
        line!(out, "left");
        for one in &fixed.left {
            line!(out, "  {} ({})", printable(&one.title), owner(one.whose));
        }
    }
    if let Some(first) = fixed.kept.iter().map(|kept| kept.id).min() {
        line!(out, "undo: nearpath tune rollback --to {}{netns}", first.saturating_sub(1));
        line!(
            out,
            "keep across boots: nearpath tune export --applied --as boot -o nearpath-boot{netns}"
        );
    }
    out
}

/// What came of trying one finding's changes, in a line.
pub fn attempt(attempt: &Attempt) -> String {
    let verdict = trial::verdict(attempt.verdict);
    let end = if attempt.kept { "kept" } else { "undone" };
    let reason = attempt.reason.as_ref().filter(|reason| !reason.is_empty());
    let reason = reason.map_or_else(String::new, |reason| format!(": {}", printable(reason)));
    let figures = effects(attempt);
    let figures = if figures.is_empty() { figures } else { format!(", {figures}") };
    format!("{verdict} after {:.0} s{figures}, {end}{reason}", attempt.seconds)
}

fn answer(fixed: &Fixed) -> String {
    let left = count(fixed.left.len(), "problem");
    match fixed.kept.len() {
        0 if fixed.left.is_empty() && fixed.tried.is_empty() => "Nothing to fix".to_owned(),
        0 => format!("No change helped: {left} left"),
        kept => {
            let p99 = |figures: &Option<PacketFigures>| figures.as_ref()?.p99_ns.map(latency);
            let both = p99(&fixed.before).zip(p99(&fixed.after));
            let p99 = both
                .map_or_else(String::new, |(before, after)| format!(": p99 {before} -> {after}"));
            let left = if fixed.left.is_empty() { String::new() } else { format!(", {left} left") };
            format!("{} kept{p99}{left}", count(kept, "change"))
        }
    }
}

fn packets(before: &PacketFigures, after: &PacketFigures) -> String {
    let columns =
        [left(""), right("PACKETS"), right("P50"), right("P99"), right("P99.9"), right("LONGEST")];
    let mut table = Table::new(&columns);
    for (name, of) in [("before", before), ("after", after)] {
        let time = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), latency);
        table.row([
            name.to_owned(),
            of.packets.to_string(),
            time(of.p50_ns),
            time(of.p99_ns),
            time(of.p999_ns),
            time(of.max_ns),
        ]);
    }
    table.render()
}

fn attempts(mut out: &mut String, heading: &str, attempts: &[&Attempt]) {
    if attempts.is_empty() {
        return;
    }
    line!(out, "{heading}");
    for one in attempts {
        line!(out, "  {}: {}", printable(&one.title), attempt(one));
        for change in one.changes.iter().take(SHOWN) {
            line!(out, "    {}", printable(change));
        }
        if let Some(more) = one.changes.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            line!(out, "    and {more} more");
        }
    }
}

/// `p50 0.52x, p99 0.01x`.
fn effects(attempt: &Attempt) -> String {
    let deciding = attempt.figures.iter().filter(|figure| figure.decides);
    let words = |figure: &TrialFigure| {
        let effect = figure.effect?;
        match figure.unit {
            FigureUnit::LostPerS if effect.abs() >= 1.0 => Some(format!("{effect:+.0} lost/s")),
            unit if unit.is_ratio() => Some(format!("{} {effect:.2}x", figure.name)),
            _ => None,
        }
    };
    deciding.filter_map(words).collect::<Vec<_>>().join(", ")
}

fn owner(whose: Whose) -> &'static str {
    match whose {
        Whose::Host => "this host's configuration",
        Whose::Application => "the application's",
        Whose::Peer => "the peer's",
        Whose::Network => "the network's",
        Whose::Hypervisor => "the hypervisor's",
        Whose::Quota => "the owner's of the quota",
        Whose::Shaper => "the owner's of the queueing discipline",
        Whose::Nearpath => "of the measurement",
    }
}
