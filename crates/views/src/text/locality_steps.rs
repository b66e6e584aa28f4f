//! `demo locality`: a row per step, the changes of each, and the packets that are still not local after the last.

use super::table::{Table, left, or_none, right};
use super::units::{percent, printable};
use super::{heading, line};
use crate::json::{LocalityStep, LocalitySteps};
use nearpath_model::locality::Method;
use nearpath_model::{Direction, ProposedChange};

/// Maximum number of changes shown per step; the JSON has all.
const CHANGES_SHOWN: usize = 4;
/// Pairs of CPUs that are shown of what is not local.
const PLACES_SHOWN: usize = 8;

/// The whole demonstration.
pub fn locality_steps(m: &LocalitySteps) -> String {
    let mut out = String::new();
    let seen = match m.method {
        Method::Exact => "from allocation to freeing",
        Method::Tracepoints => "from first to last sighting",
    };
    let title =
        format!("packets (sk_buffs) and connections that stay on their CPU, on CPUs {}", m.cpus);
    heading(&mut out, &title);
    line!(out, "packets: {seen}");
    if let Some(refused) = &m.fallback {
        line!(out, "not exact: {}", printable(refused));
    }
    line!(out);
    out.push_str(&table(&m.steps));
    for (number, step) in m.steps.iter().enumerate().filter(|(_, step)| !step.changes.is_empty()) {
        line!(out);
        heading(&mut out, &format!("{number} {}", step.name));
        changes(&mut out, &step.changes);
    }
    if !m.not_made.is_empty() {
        line!(out);
    }
    for step in &m.not_made {
        line!(out, "skipped: {}: {}", step.name, printable(&step.reason));
    }
    if let Some((number, last)) = m.steps.iter().enumerate().next_back() {
        line!(out);
        rest(&mut out, number, last);
    }
    out
}

fn table(steps: &[LocalityStep]) -> String {
    let mut table = Table::new(&[
        left("STEP"),
        right("RX-LOCAL"),
        right("RX/S"),
        right("TX-LOCAL"),
        right("TX/S"),
        right("ACCEPTS-LOCAL"),
        right("ACCEPTS/S"),
        right("BUSIEST-CPU"),
    ]);
    for (number, step) in steps.iter().enumerate() {
        let rate = |count: u64| match step.duration_s {
            seconds if seconds > 0.0 => format!("{:.0}", count as f64 / seconds),
            _ => String::new(),
        };
        table.row([
            format!("{number} {}", step.name),
            or_none(step.rx.local().map(percent)),
            rate(step.rx.packets),
            or_none(step.tx.local().map(percent)),
            rate(step.tx.packets),
            or_none(step.accepts.local().map(percent)),
            rate(step.accepts.accepts),
            or_none(step.busiest_cpu.map(percent)),
        ]);
    }
    table.render()
}

/// Each reason once, with what was changed for it.
fn changes(out: &mut String, changes: &[ProposedChange]) {
    for because in changes.chunk_by(|a, b| a.why == b.why) {
        if let Some(first) = because.first() {
            line!(*out, "{}", printable(&first.why));
        }
        for change in because.iter().take(CHANGES_SHOWN) {
            let before = change.before.as_ref().map(|value| quiet(&value.to_string()));
            let (before, after) =
                (before.as_deref().unwrap_or("-"), quiet(&change.after.to_string()));
            line!(*out, "    {}: {before} -> {after}", printable(&change.target.to_string()));
        }
        if because.len() > CHANGES_SHOWN {
            line!(*out, "    and {} more", because.len() - CHANGES_SHOWN);
        }
    }
}

/// A value on one line; empty values get a marker.
fn quiet(value: &str) -> String {
    if value.is_empty() { "(none)".to_owned() } else { printable(value) }
}

fn rest(out: &mut String, number: usize, last: &LocalityStep) {
    let left = |packets: u64, same_cpu: u64| packets.saturating_sub(same_cpu);
    line!(
        *out,
        "not local after step {number}: {} of {} packets received, {} of {} sent, {} of {} \
         connections; not followed: {}, {} events lost",
        left(last.rx.packets, last.rx.same_cpu),
        last.rx.packets,
        left(last.tx.packets, last.tx.same_cpu),
        last.tx.packets,
        left(last.accepts.accepts, last.accepts.same_cpu),
        last.accepts.accepts,
        last.not_followed,
        last.events_lost,
    );
    let mut away: Vec<_> = last.places.iter().map(|p| (p.direction, p.place)).collect();
    away.retain(|(_, place)| place.from_cpu != place.to_cpu);
    away.sort_by_key(|(_, place)| std::cmp::Reverse(place.count));
    for (direction, place) in away.iter().take(PLACES_SHOWN) {
        let name = match direction {
            Direction::Rx => "rx",
            Direction::Tx => "tx",
        };
        line!(
            *out,
            "    {name}  cpu {} -> cpu {}  {}",
            place.from_cpu.0,
            place.to_cpu.0,
            place.count
        );
    }
}
