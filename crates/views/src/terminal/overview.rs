//! All at a glance: the verdict, latencies of paths, what made packets late, CPUs, locality, drops, findings.

use super::bars::{self, Axis, longest, rate, time};
use super::grid::{cut, width_of};
use super::heat;
use super::lists::{no_packets, packets_per_second, paths_per_second, severity};
use super::style::Palette;
use crate::text::{path_name, printable, share_name};
use nearpath_model::frame::Frame;
use nearpath_model::locality::Distances;
use nearpath_model::{Diagnosis, Severity, Share, Span as PathSpan, units};
use ratatui::text::{Line, Span};
use std::cmp::Reverse;

/// The column before figures: a path or a span.
const NAME: usize = 24;
/// The same on a wide screen.
const WIDE_NAME: usize = 40;
const WIDE: usize = 110;
/// Figures before the bars of latencies.
const FIGURES: usize = 38;

/// A part of the overview: a heading and lines, the first of which matter most.
struct Section {
    heading: Line<'static>,
    lines: Vec<Line<'static>>,
    /// Lines that are shown first.
    least: usize,
}

/// The lines of the overview.
pub(super) fn lines(
    frame: &Frame,
    palette: Palette,
    width: usize,
    height: usize,
) -> Vec<Line<'static>> {
    let mut out = vec![verdict(&frame.diagnosis, palette, width)];
    let sections = [
        path(frame, palette, width),
        causes(frame, palette, width),
        cpus(frame, palette, width),
        findings(frame, palette, width),
    ];
    let shown = share_out(&sections, height.saturating_sub(out.len()));
    for (section, lines) in sections.into_iter().zip(shown) {
        if lines == 0 {
            continue;
        }
        out.push(section.heading);
        out.extend(section.lines.into_iter().take(lines));
    }
    out
}

/// How many lines of each section fit: what each needs, then what is left from the first section on.
fn share_out(sections: &[Section], height: usize) -> Vec<usize> {
    let mut left = height;
    let mut shown: Vec<usize> = Vec::new();
    for section in sections {
        let least = section.least.min(section.lines.len());
        let lines = if least > 0 { least.min(left.saturating_sub(1)) } else { 0 };
        left = left.saturating_sub(if lines > 0 { lines + 1 } else { 0 });
        shown.push(lines);
    }
    let mut grew = true;
    while left > 0 && grew {
        grew = false;
        for (lines, section) in shown.iter_mut().zip(sections) {
            if left > 0 && *lines > 0 && *lines < section.lines.len() {
                (*lines, left, grew) = (*lines + 1, left - 1, true);
            }
        }
    }
    shown
}

/// The answer in a line.
fn verdict(diagnosis: &Diagnosis, palette: Palette, width: usize) -> Line<'static> {
    let number = |severity| diagnosis.findings.iter().filter(|f| f.severity == severity).count();
    let (critical, warnings) = (number(Severity::Critical), number(Severity::Warning));
    let worst = diagnosis.findings.iter().filter(|f| f.severity > Severity::Info);
    // Ranked: the first of the worst severity is the most expensive.
    let worst = worst.rev().max_by_key(|finding| finding.severity);
    let Some(worst) = worst else {
        return Line::styled("Nothing found that makes packets late.", palette.good());
    };
    let text = format!("{critical} critical, {}: ", units::counted(warnings as u64, "warning"));
    let title = cut(&printable(&worst.title), width.saturating_sub(width_of(&text)));
    let style = palette.severity(worst.severity);
    Line::from(vec![Span::styled(text, style), Span::styled(title, style)])
}

fn path(frame: &Frame, palette: Palette, width: usize) -> Section {
    let names = if width < WIDE { NAME } else { WIDE_NAME };
    let bar = width.saturating_sub(names + FIGURES + 1);
    let m = frame.diagnosis.measurement.as_ref();
    let paths: Vec<_> = m.iter().flat_map(|m| &m.paths).filter(|path| path.count > 0).collect();
    let mut spans: Vec<&PathSpan> =
        m.iter().flat_map(|m| &m.spans).filter(|s| s.count > 0).collect();
    spans.sort_by_key(|span| Reverse((span.p99_ns, span.max_ns)));
    let times = paths
        .iter()
        .flat_map(|path| [path.p50_ns, path.p99_ns, longest(path.max_ns, &path.buckets)]);
    let span_times = spans
        .iter()
        .flat_map(|span| [span.p50_ns, span.p99_ns, longest(span.max_ns, &span.buckets)]);
    let axis = Axis::over(times.chain(span_times).flatten(), bar);
    let row = |name: String, per_second: f64, [p50, p99, max]: [Option<u64>; 3]| {
        Line::from(vec![
            Span::raw(padded(&name, names)),
            Span::raw(format!(
                " {:>9} {:>8} {:>8} {:>8}  ",
                rate(per_second),
                time(p50),
                time(p99),
                time(max)
            )),
            Span::styled(axis.bar(p50, p99, max), palette.bar()),
        ])
    };
    let mut lines: Vec<Line<'static>> = paths
        .iter()
        .map(|p| {
            row(
                path_name(p.kind).to_owned(),
                m.map_or(0.0, |m| paths_per_second(m, p)),
                [p.p50_ns, p.p99_ns, longest(p.max_ns, &p.buckets)],
            )
        })
        .collect();
    let least = lines.len() + 2;
    lines.extend(spans.iter().map(|span| {
        let name = format!(" {} → {}", printable(&span.from), printable(&span.to));
        let per_second = m.map_or(0.0, |m| packets_per_second(m, span.count));
        row(name, per_second, [span.p50_ns, span.p99_ns, longest(span.max_ns, &span.buckets)])
    }));
    if lines.is_empty() {
        lines.push(Line::styled(no_packets(frame), palette.faint()));
    }
    // Where not all of the time was observed, of how much.
    let observed = m.and_then(|m| m.observed_s).filter(|s| *s > 0.0);
    let observed = observed.map(|s| format!("LATENCY, {} OBSERVED", units::seconds(s)));
    let heading = format!(
        "{:<names$} {:>9} {:>8} {:>8} {:>8}  {}",
        observed.as_deref().unwrap_or("LATENCY, SLOWEST SPANS"),
        "PACKETS/S",
        "P50",
        "P99",
        "MAX",
        axis.scale()
    );
    Section { heading: Line::styled(heading, palette.heading()), lines, least }
}

fn padded(text: &str, width: usize) -> String {
    let text = cut(text, width);
    let pad = width.saturating_sub(width_of(&text));
    format!("{text}{}", " ".repeat(pad))
}

fn causes(frame: &Frame, palette: Palette, width: usize) -> Section {
    let measurement = frame.diagnosis.measurement.as_ref();
    let shares = measurement.into_iter().flat_map(|m| &m.budget_totals);
    let mut shares: Vec<&Share> = shares.filter(|s| s.share.is_time() && s.ns > 0).collect();
    shares.sort_by_key(|share| Reverse(share.ns));
    let all: u64 = shares.iter().fold(0, |sum, share| sum.saturating_add(share.ns));
    let room = (width / 4).clamp(8, 30);
    let line = |share: &&Share| {
        let part = share.ns as f64 / all.max(1) as f64;
        Line::from(vec![
            Span::raw(format!("{:>6} ", units::percent(part))),
            Span::styled(padded(&bars::share(part, room), room), palette.cause(share.share)),
            Span::raw(format!(" {}", printable(&share_name(share)))),
        ])
    };
    let mut lines: Vec<Line<'static>> = shares.iter().map(line).collect();
    if lines.is_empty() {
        lines.push(Line::styled("no late packets in this time", palette.faint()));
    }
    Section {
        heading: Line::styled("WHAT LATE PACKETS WAITED FOR", palette.heading()),
        lines,
        least: 3,
    }
}

fn cpus(frame: &Frame, palette: Palette, width: usize) -> Section {
    let mut lines = heat::lines(frame, palette, width, 4);
    let locality = frame.diagnosis.locality.as_ref();
    let local = |name: &str, distances: &Distances| {
        let known = distances.packets.saturating_sub(distances.unknown);
        let share = |count: u64| units::percent(count as f64 / known.max(1) as f64);
        (known > 0).then(|| {
            let (same, other) = (share(distances.same_cpu), share(distances.other_node));
            format!("{name} packets freed on their CPU {same}, on another node {other}")
        })
    };
    let words = locality.map(|l| [local("received", &l.rx), local("sent", &l.tx)]);
    let words: Vec<String> = words.into_iter().flatten().flatten().collect();
    lines.extend(words.into_iter().map(|words| Line::raw(cut(&words, width))));
    if !frame.drops.is_empty() {
        let named = |drop: &nearpath_model::frame::DropActivity| {
            let device = if drop.device.is_empty() { "" } else { " on " };
            let name = format!("{}{device}{}", printable(&drop.reason), printable(&drop.device));
            format!("{}/s {name}", rate(drop.packets))
        };
        let drops: Vec<String> = frame.drops.iter().take(3).map(named).collect();
        lines.push(Line::raw(cut(&format!("dropped: {}", drops.join(", ")), width)));
    }
    if lines.is_empty() {
        lines.push(Line::styled("no counters read yet", palette.faint()));
    }
    Section {
        heading: Line::styled("CPUS, BY PACKETS", palette.heading()),
        least: lines.len().min(4),
        lines,
    }
}

fn findings(frame: &Frame, palette: Palette, width: usize) -> Section {
    let line = |finding: &nearpath_model::Finding| {
        let (name, _) = severity(finding.severity);
        Line::from(vec![
            Span::styled(format!("{name:<9}"), palette.severity(finding.severity)),
            Span::raw(cut(&printable(&finding.title), width.saturating_sub(9))),
        ])
    };
    let mut lines: Vec<Line<'static>> = frame.diagnosis.findings.iter().map(line).collect();
    if lines.is_empty() {
        lines.push(Line::styled("none", palette.faint()));
    }
    Section { heading: Line::styled("FINDINGS", palette.heading()), lines, least: 3 }
}
