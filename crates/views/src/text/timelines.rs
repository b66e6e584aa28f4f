//! The slowest packets as individual timelines.
//!
//! Input: a measurement. Output, for each packet: its flow and the stages that it passed, each with the time since the
//! previous one, its CPU and node. Slow spans are marked, with their budget below. Empty if no packet was slow.

use super::histogram::direction;
use super::outliers::{label, name};
use super::units::{latency, percent, printable};
use super::{heading, line};
use nearpath_model::{Measurement, Outlier, Passed};
use std::fmt::Write;

/// Shares of a span's budget that are named.
const NAMED: usize = 3;

/// The slowest packets, the slowest first; one with several slow spans is shown once.
pub(super) fn slowest(measurement: &Measurement) -> String {
    let mut out = String::new();
    if !measurement.outliers.is_empty() {
        heading(&mut out, "the slowest packets");
    }
    let all = &measurement.outliers;
    for (index, outlier) in all.iter().enumerate() {
        let same = |other: &&Outlier| is_same(other, outlier);
        if !all.iter().take(index).any(|other| same(&other)) {
            out.push_str(&timeline(&all.iter().skip(index).filter(same).collect::<Vec<_>>()));
        }
    }
    out
}

/// Whether both are of one packet; documents without paths have no numbers of packets either.
fn is_same(a: &Outlier, b: &Outlier) -> bool {
    std::ptr::eq(a, b) || (a.packet == b.packet && !a.path.is_empty())
}

/// The slow spans of a packet, the slowest first.
fn timeline(slow: &[&Outlier]) -> String {
    let mut out = String::new();
    let Some(&worst) = slow.first() else { return out };
    let node = worst.node.map(|node| format!(" on node {node}")).unwrap_or_default();
    let way = match worst.from_cpu == worst.cpu {
        true => format!("cpu {}", worst.cpu),
        false => format!("cpu {} -> {}", worst.from_cpu, worst.cpu),
    };
    line!(
        out,
        "{:>8}  {} {} -> {}, {way}{node}",
        latency(worst.span_ns),
        direction(worst.direction),
        printable(&worst.from),
        printable(&worst.to)
    );
    if let Some(flow) = &worst.flow {
        line!(out, "          {}", printable(flow));
    }
    if worst.path.is_empty() {
        out.push_str(&budget(worst));
    }
    let width = worst.path.iter().map(|passed| printable(&passed.stage).chars().count()).max();
    let width = width.unwrap_or_default();
    let mut before: Option<&Passed> = None;
    for passed in &worst.path {
        let since = before.map(|before| passed.at_ns.saturating_sub(before.at_ns));
        let here = |o: &&&Outlier| before.is_some_and(|before| o.ends_at(before, passed));
        let slow = slow.iter().find(here);
        let mark = if slow.is_some() { '>' } else { ' ' };
        let since = since.map(latency).unwrap_or_default();
        let mut place = format!("cpu {}", passed.cpu);
        if let Some(node) = passed.node {
            let _ = write!(place, " node {node}");
        }
        line!(out, "        {mark} {since:>8}  {:<width$}  {place}", printable(&passed.stage));
        out.push_str(&slow.map(|slow| budget(slow)).unwrap_or_default());
        before = Some(passed);
    }
    out
}

/// Where the time of a slow span went.
fn budget(outlier: &Outlier) -> String {
    let mut out = String::new();
    let of_all = |ns: u64| percent(ns as f64 / outlier.span_ns.max(1) as f64);
    for share in outlier.budget.iter().take(NAMED) {
        let who = share.who.as_ref().map(name).unwrap_or_default();
        let what = match (who.starts_with("irq "), who.is_empty()) {
            (true, _) => who,
            (_, true) => label(share.share).to_owned(),
            _ => format!("{} {who}", label(share.share)),
        };
        line!(out, "{:>23}  {}", of_all(share.ns), printable(&what));
    }
    let rest = outlier.budget.iter().skip(NAMED);
    let (count, ns) = rest.fold((0, 0), |(count, ns), share| (count + 1, ns + share.ns));
    if count > 0 {
        line!(out, "{:>23}  {count} others", of_all(ns));
    }
    if outlier.packets_meanwhile > 0 {
        line!(out, "{:>25}{} packets received meanwhile", "", outlier.packets_meanwhile);
    }
    out
}
