//! One late packet over time, or one finding, as lines.

use super::bars;
use super::grid::{cut, width_of};
use super::lists::severity;
use super::style::Palette;
use super::view::Detail;
use crate::outlier::{Bar, bars as bars_of};
use crate::text::{commands, latency, printable, share_name};
use nearpath_model::{Finding, Outlier, ProposedChange, units};
use ratatui::text::{Line, Span};

/// The lines, of this width.
pub(super) fn lines(detail: &Detail, palette: Palette, width: usize) -> Vec<Line<'static>> {
    match detail {
        Detail::Packet(outlier) => packet(outlier, palette, width),
        Detail::Finding(finding) => of_finding(finding, palette, width),
    }
}

fn packet(outlier: &Outlier, palette: Palette, width: usize) -> Vec<Line<'static>> {
    let flow = outlier.flow.as_deref().map_or_else(|| "a packet".to_owned(), printable);
    let mut lines = vec![
        Line::styled(flow, palette.heading()),
        Line::raw(format!(
            "late by {} in {} → {}, CPU {}",
            latency(outlier.span_ns),
            printable(&outlier.from),
            printable(&outlier.to),
            outlier.cpu
        )),
        Line::raw(""),
    ];
    let steps = bars_of(outlier);
    let end = steps.iter().map(|bar| bar.to_ns).max().unwrap_or(0).max(1);
    let names = steps.iter().map(|bar| width_of(&printable(&bar.name))).max().unwrap_or(0);
    let names = names.min(width / 2);
    let room = width.saturating_sub(names + 12);
    lines.push(Line::styled("STAGE BY STAGE", palette.heading()));
    for bar in &steps {
        let name = cut(&printable(&bar.name), names);
        let pad = " ".repeat(names.saturating_sub(width_of(&name)));
        let mut spans = vec![Span::raw(format!(
            "{name}{pad} {:>8} ",
            latency(bar.to_ns.saturating_sub(bar.from_ns))
        ))];
        spans.extend(piece(bar, end, room, palette, outlier));
        lines.push(Line::from(spans));
    }
    lines.push(Line::raw(""));
    lines.push(Line::styled("WHERE THE TIME OF THE SLOW SPAN WENT", palette.heading()));
    let times = outlier.budget.iter().filter(|share| share.share.is_time() && share.ns > 0);
    for share in times {
        let part = share.ns as f64 / outlier.span_ns.max(1) as f64;
        let bar = bars::share(part, 20);
        lines.push(Line::from(vec![
            Span::raw(format!("{:>8} {:>6} ", latency(share.ns), units::percent(part))),
            Span::styled(format!("{bar:<20} "), palette.cause(share.share)),
            Span::raw(printable(&share_name(share))),
        ]));
    }
    if !outlier.complete {
        lines
            .push(Line::styled("what the CPU did is known for a part of it only", palette.faint()));
    }
    lines
}

/// A step on the time axis: a slow one in the colours of its budget, largest first, as their order is not known.
fn piece(
    bar: &Bar,
    end: u64,
    room: usize,
    palette: Palette,
    outlier: &Outlier,
) -> Vec<Span<'static>> {
    let at = |ns: u64| (ns as f64 / end as f64 * room as f64).round() as usize;
    let (from, to) = (at(bar.from_ns), at(bar.to_ns));
    let mut spans = vec![Span::raw(" ".repeat(from))];
    let cells = to.saturating_sub(from).max(1);
    if !bar.is_slow {
        spans.push(Span::styled("─".repeat(cells), palette.faint()));
        return spans;
    }
    let mut drawn = 0;
    let mut until = 0u64;
    for share in outlier.budget.iter().filter(|share| share.share.is_time()) {
        until = until.saturating_add(share.ns);
        let part = until as f64 / outlier.span_ns.max(1) as f64;
        let to = ((part * cells as f64).round() as usize).min(cells);
        spans.push(Span::styled("█".repeat(to.saturating_sub(drawn)), palette.cause(share.share)));
        drawn = drawn.max(to);
    }
    spans.push(Span::raw("█".repeat(cells.saturating_sub(drawn))));
    spans
}

fn of_finding(finding: &Finding, palette: Palette, width: usize) -> Vec<Line<'static>> {
    let (name, _) = severity(finding.severity);
    let mut lines = vec![Line::styled(name, palette.severity(finding.severity))];
    let wrapped = |text: &str, indent: usize| {
        wrap(&printable(text), width.saturating_sub(indent))
            .into_iter()
            .map(move |line| Line::raw(format!("{}{line}", " ".repeat(indent))))
    };
    lines.extend(wrapped(&finding.title, 0).map(|line| line.style(palette.heading())));
    lines.push(Line::raw(""));
    for evidence in &finding.evidence {
        lines.extend(wrapped(evidence, 2));
    }
    let changes: Vec<&ProposedChange> = finding.changes.iter().collect();
    let commands = commands(&changes);
    let would = commands.iter().map(|command| &command.line).chain(&finding.manual);
    let would: Vec<&String> = would.collect();
    if !would.is_empty() {
        lines.push(Line::raw(""));
        lines.push(Line::styled("WHAT WOULD FIX IT", palette.heading()));
        would.into_iter().for_each(|command| lines.extend(wrapped(command, 2)));
    }
    if !finding.symptoms.is_empty() {
        lines.push(Line::raw(""));
        lines.push(Line::styled("IT EXPLAINS", palette.heading()));
        finding.symptoms.iter().for_each(|symptom| lines.extend(wrapped(&symptom.title, 2)));
    }
    lines
}

/// Lines of words; a word that is longer than a line is cut into several.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        let room = lines.last().is_some_and(|line| width_of(line) + 1 + width_of(word) <= width);
        match lines.last_mut() {
            Some(line) if room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => {
                let mut part = String::new();
                for c in word.chars() {
                    part.push(c);
                    if width_of(&part) >= width {
                        lines.push(std::mem::take(&mut part));
                    }
                }
                lines.push(part);
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_between_words() {
        assert_eq!(wrap("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrap("abcdef g", 3), ["abc", "def", " g"]);
        assert_eq!(wrap("ab", 0), ["a", "b", ""]);
    }
}
