//! The screen: a line about what is seen, the content, and a line of keys.

use super::grid::{cut, width_of};
use super::lists;
use super::view::{Mode, Status, Tab, View};
use super::{detail, heat, overview};
use crate::text::{printable, time_of_day};
use nearpath_model::frame::Frame;
use nearpath_model::units;
use ratatui::Frame as Screen;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

/// A smaller screen shows how large it must be.
const LEAST: (u16, u16) = (40, 10);

const HELP: &str = "\
1…9 Tab     overview, path, late, CPUs, queues, connections, workers, findings, VMs
Enter       into a late packet: its stages over time; into a finding: what would fix it
Esc         back
↑ ↓ PgUp PgDn Home End   select
< >  r      sort by the column to the left, to the right; reverse
/           show only rows with this text; Esc shows all again
space       freeze, and go on; play a recording
← →  [ ]    a step, or six, back and forward in time (after a freeze, the last minutes)
{ }         the first and the last moment
w           longer or shorter time that figures are of
q           quit

Bars of latencies: solid up to the median, shaded up to p99, dotted up to the longest.
Percentiles that have too few packets are '-'.";

/// Draws the view.
pub fn draw(screen: &mut Screen<'_>, frame: &Frame, view: &View, status: &Status) {
    let area = screen.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let text = format!(
            "{}x{} is too small: {}x{} at least; q quits",
            area.width, area.height, LEAST.0, LEAST.1
        );
        screen
            .render_widget(Paragraph::new(text).wrap(ratatui::widgets::Wrap { trim: true }), area);
        return;
    }
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let mut lines = vec![header(frame, view, status, width)];
    let content = height.saturating_sub(2);
    let mut body = body(frame, view, width, content);
    body.truncate(content);
    lines.extend(body);
    screen.render_widget(Paragraph::new(lines), Rect { height: area.height - 1, ..area });
    let last = Rect { y: area.y + area.height - 1, height: 1, ..area };
    screen.render_widget(Paragraph::new(footer(view, status, width)), last);
}

fn body(frame: &Frame, view: &View, width: usize, height: usize) -> Vec<Line<'static>> {
    if view.help {
        return HELP.lines().map(|line| Line::raw(cut(line, width))).collect();
    }
    if let Some(detail) = &view.detail {
        let lines = detail::lines(detail, view.palette, width);
        let first = view.scroll.min(lines.len().saturating_sub(height));
        return lines.into_iter().skip(first).collect();
    }
    let Some(grid) = lists::of(view.tab, frame) else {
        return overview::lines(frame, view.palette, width, height);
    };
    let mut lines = Vec::new();
    if view.tab == Tab::Cpus {
        lines = heat::lines(frame, view.palette, width, height / 2);
        lines.push(Line::raw(""));
    }
    let left = height.saturating_sub(lines.len());
    lines.extend(grid.lines(view, width, left));
    lines
}

/// `nearpath top  host  14:03:22  last 10s, live        observing: 0.8% of a CPU`
fn header(frame: &Frame, view: &View, status: &Status, width: usize) -> Line<'static> {
    let clock = time_of_day(u64::try_from(frame.time_us / 1_000_000).unwrap_or(0));
    let is_recorded = matches!(status.mode, Mode::Recorded { .. });
    // Today is known; without the day there is room for the rest.
    let clock = if is_recorded { &clock } else { clock.get(11..19).unwrap_or(&clock) };
    let mode = match status.mode {
        Mode::Live => "live",
        Mode::Frozen => "FROZEN",
        Mode::Recorded { playing: true } => "recording, playing",
        Mode::Recorded { playing: false } => "recording",
    };
    let host =
        if frame.host.is_empty() { "nothing here".to_owned() } else { printable(&frame.host) };
    let window = units::seconds(frame.window_s);
    let left = format!("nearpath top  {}  {clock}  last {window}, {mode}", cut(&host, width / 4));
    let share =
        |name: &str, share: Option<f64>| share.map(|s| format!("{name} {}", units::percent(s)));
    let costs = [share("programs", frame.programs_share), share("nearpath", status.own_share)];
    let costs: Vec<String> = costs.into_iter().flatten().collect();
    let right = if costs.is_empty() { String::new() } else { format!("CPU: {}", costs.join(", ")) };
    let pad = width.saturating_sub(width_of(&left) + width_of(&right));
    let right = if pad == 0 { String::new() } else { format!("{}{right}", " ".repeat(pad)) };
    Line::from(vec![
        Span::styled(cut(&left, width), view.palette.heading()),
        Span::styled(right, view.palette.faint()),
    ])
}

fn footer(view: &View, status: &Status, width: usize) -> Line<'static> {
    if view.typing {
        return Line::raw(cut(
            &format!("filter: {}_   Enter keeps it, Esc clears it", view.filter),
            width,
        ));
    }
    if let Some(notice) = &status.notice {
        let style = view.palette.severity(nearpath_model::Severity::Warning);
        return Line::styled(cut(&printable(notice), width), style);
    }
    let mut spans = Vec::new();
    let mut left = width;
    let mut push = |text: String, chosen: bool| {
        let needs = width_of(&text);
        if needs > left {
            left = 0;
            return;
        }
        left -= needs;
        let style = if chosen { view.palette.selected() } else { view.palette.faint() };
        spans.push(Span::styled(text, style));
    };
    let filter = if view.filter.is_empty() { String::new() } else { format!("/{}  ", view.filter) };
    push(filter, true);
    for (at, tab) in Tab::ALL.into_iter().enumerate() {
        // On a narrow screen, only the current one has its name.
        let name = if width >= 90 || tab == view.tab { tab.name() } else { "" };
        push(
            format!("{}{}{name}", at + 1, if name.is_empty() { "" } else { " " }),
            tab == view.tab,
        );
        push(" ".to_owned(), false);
    }
    for hint in [" ? help", "  q quit", "  Enter more", "  / filter", "  space freeze"] {
        push(hint.to_owned(), false);
    }
    Line::from(spans)
}
