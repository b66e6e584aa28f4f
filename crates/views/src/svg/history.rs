//! Latencies over time as a heat map: columns are times, rows are powers of two of the latency, the darker the more of
//! the column's packets.
//!
//! Input: the buckets of each interval. Output: an SVG document.

use super::draw::{canvas, text, xml};
use crate::text::{latency, time_of_day};
use svg::node::element::{Group, Rectangle, Title};

const MARGIN: f32 = 16.0;
const FONT: f32 = 13.0;
/// Room for the latencies.
const NAMES: f32 = 64.0;
const WIDTH: f32 = 800.0;
const CELL: f32 = 11.0;
/// Columns that are drawn; of more intervals, neighbours are added up.
const COLUMNS_MAX: u64 = 160;
/// Times in words below the columns.
const TIMES: u64 = 6;

/// The packets of an interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interval {
    /// Its end, in seconds since 1970.
    pub time_s: u64,
    /// `(longest latency in ns, packets)` of each bucket.
    pub buckets: Vec<(u64, u64)>,
}

/// Draws intervals, which are in the order of their times.
pub fn history(intervals: &[Interval]) -> String {
    let (Some(first), Some(last)) = (intervals.first(), intervals.last()) else {
        return canvas(WIDTH, 2.0 * MARGIN).to_string() + "\n";
    };
    let span = last.time_s.saturating_sub(first.time_s) + 1;
    let columns = span.clamp(1, COLUMNS_MAX);
    let column_of = |time_s: u64| time_s.saturating_sub(first.time_s) * columns / span;
    let mut cells = std::collections::BTreeMap::<(u64, u32), u64>::new();
    let mut totals = std::collections::BTreeMap::<u64, u64>::new();
    for interval in intervals {
        let column = column_of(interval.time_s);
        for &(upper_ns, packets) in &interval.buckets {
            *cells.entry((column, upper_ns.max(1).ilog2())).or_default() += packets;
            *totals.entry(column).or_default() += packets;
        }
    }
    let rows = || cells.keys().map(|(_, row)| *row);
    let (low, high) = (rows().min().unwrap_or(0), rows().max().unwrap_or(0));
    let width = WIDTH / columns as f32;
    let y_of = |row: u32| (high - row) as f32 * CELL;
    let mut drawn = Group::new();
    for (&(column, row), &packets) in &cells {
        let total = totals.get(&column).copied().unwrap_or(1).max(1);
        let share = packets as f32 / total as f32;
        let time = first.time_s + column * span / columns;
        let title = format!(
            "{} UTC, up to {}: {packets} of {total} packets",
            time_of_day(time),
            latency(2u64.saturating_pow(row + 1))
        );
        // The rare ones matter most: a packet alone is visible.
        let cell = Rectangle::new()
            .set("x", format!("{:.1}", column as f32 * width))
            .set("y", format!("{:.1}", y_of(row)))
            .set("width", format!("{:.1}", width.max(1.0)))
            .set("height", CELL)
            .set("fill", "#0072b2")
            .set("fill-opacity", format!("{:.2}", 0.12 + 0.88 * share.sqrt()));
        drawn = drawn.add(Group::new().add(Title::new(xml(&title))).add(cell));
    }
    for row in (low..=high).filter(|row| (high - row).is_multiple_of(3)) {
        let name = latency(2u64.saturating_pow(row + 1));
        drawn = drawn.add(text(&name, -NAMES, y_of(row) + CELL, FONT * 0.85));
    }
    let height = (high - low + 1) as f32 * CELL;
    for at in 0..TIMES.min(columns) {
        let column = at * columns / TIMES.min(columns);
        let time = time_of_day(first.time_s + column * span / columns);
        // Days are in the tooltips: there is room for the clock only.
        let time = time.split(' ').nth(1).unwrap_or_default();
        drawn = drawn.add(text(time, column as f32 * width, height + FONT * 1.3, FONT * 0.85));
    }
    canvas(WIDTH + NAMES + 2.0 * MARGIN, height + 2.0 * MARGIN + FONT * 1.5)
        .add(drawn.set("transform", format!("translate({:.1},{MARGIN})", MARGIN + NAMES)))
        .to_string()
        + "\n"
}
