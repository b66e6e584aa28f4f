//! Latency along the path as a chart: a row for each whole path and each span, in the order of the path, with its
//! percentiles on a logarithmic axis.
//!
//! Input: a measurement of stages. Output: an SVG document. The thin line goes from the shortest to the longest latency,
//! the dark bar from the median to p99, the light one on to p99.9; a red frame marks spans in which a tenth of the packets
//! or more came to another NUMA node.

use super::draw::{canvas, text, xml};
use crate::text::{latency, path_name, whole};
use nearpath_model::{Direction, Measurement, PathLatency, Span};
use svg::node::element::{Group, Line, Rectangle, Title};

const MARGIN: f32 = 16.0;
const FONT: f32 = 13.0;
const ROW: f32 = FONT * 1.7;
/// Width of the axis.
const AXIS: f32 = 560.0;
/// Room for the percentiles in words.
const FIGURES: f32 = 260.0;
const BAR: f32 = FONT * 0.75;
/// Share of packets from which a change of node is marked.
const FAR: f64 = 0.1;

const TYPICAL: &str = "#2b6cb0";
const TAIL: &str = "#a9c8e8";
const FAR_EDGE: &str = "#c00000";

/// A row of the chart.
struct Row<'a> {
    name: String,
    /// Shortest, p50, p99, p99.9, longest.
    figures: [Option<u64>; 5],
    count: u64,
    other_node: Option<f64>,
    places: &'a str,
}

impl<'a> Row<'a> {
    fn of_path(path: &'a PathLatency) -> Self {
        Self {
            name: format!("{}, end to end", path_name(path.kind)),
            figures: [path.min_ns, path.p50_ns, path.p99_ns, path.p999_ns, path.max_ns],
            count: path.count,
            other_node: path.other_node,
            places: "",
        }
    }

    fn of_span(span: &'a Span) -> Self {
        Self {
            name: format!("{} → {}", span.from, span.to),
            figures: [span.min_ns, span.p50_ns, span.p99_ns, span.p999_ns, span.max_ns],
            count: span.count,
            other_node: span.other_node,
            places: match span.other_cpu {
                Some(share) if share >= FAR => "another CPU",
                _ => "",
            },
        }
    }
}

/// Draws the measurement.
pub fn spans(m: &Measurement) -> String {
    let sections = sections(m);
    let rows = || sections.iter().flat_map(|(_, rows)| rows);
    let names = rows().map(|row| row.name.chars().count()).max().unwrap_or(0);
    // A single shortest latency of a nanosecond would take half of the axis.
    let axis = Axis::over(rows().flat_map(|row| row.figures.into_iter().skip(1)).flatten());
    let left = names as f32 * FONT * 0.6 + MARGIN;
    let mut drawn = Group::new();
    let mut y = 0.0;
    for (title, rows) in &sections {
        drawn = drawn.add(text(title, -left, y + FONT, FONT).set("font-weight", "bold"));
        y += ROW;
        for row in rows {
            drawn = drawn.add(of_row(row, &axis, left, y));
            y += ROW;
        }
        y += ROW / 2.0;
    }
    let title = format!(
        "latency by stage of {} packets in {}; line: shortest to longest, dark: p50 to p99, light: to p99.9",
        m.packets.started,
        latency((m.duration_s.max(0.0) * 1e9) as u64)
    );
    let top = MARGIN + 2.0 * ROW;
    let width = (left + AXIS + FIGURES + MARGIN).max(title.chars().count() as f32 * FONT * 0.62);
    let height = top + y + ROW + MARGIN;
    canvas(width, height)
        .add(text(&title, MARGIN, MARGIN + FONT, FONT))
        .add(
            Group::new()
                .set("transform", format!("translate({:.1},{top:.1})", MARGIN + left))
                .add(axis.grid(y))
                .add(drawn),
        )
        .to_string()
        + "\n"
}

/// Whole paths, then the spans of each direction.
fn sections(m: &Measurement) -> Vec<(&'static str, Vec<Row<'_>>)> {
    let of = |direction| {
        let spans = m.spans.iter().filter(move |s| s.direction == direction && s.count > 0);
        spans.map(Row::of_span).collect::<Vec<_>>()
    };
    let paths: Vec<Row<'_>> =
        m.paths.iter().filter(|path| path.count > 0).map(Row::of_path).collect();
    let all = [("paths", paths), ("receive", of(Direction::Rx)), ("transmit", of(Direction::Tx))];
    all.into_iter().filter(|(_, rows)| !rows.is_empty()).collect()
}

fn of_row(row: &Row<'_>, axis: &Axis, left: f32, y: f32) -> Group {
    let [min, p50, p99, p999, max] = row.figures;
    let named = [("p50", p50), ("p99", p99), ("max", max)];
    let named: Vec<String> =
        named.iter().filter_map(|(name, ns)| Some(format!("{name} {}", latency((*ns)?)))).collect();
    let mut tooltip = format!("{}: {} packets, {}", row.name, row.count, named.join(", "));
    if !row.places.is_empty() {
        tooltip.push_str(&format!(", to {}", row.places));
    }
    let middle = y + ROW / 2.0;
    let mut group = Group::new()
        .add(Title::new(xml(&tooltip)))
        .add(text(&row.name, -left, middle + FONT / 3.0, FONT))
        .add(text(&named.join("  "), AXIS + MARGIN, middle + FONT / 3.0, FONT * 0.9));
    if let (Some(min), Some(max)) = (min, max) {
        let line = Line::new()
            .set("x1", format!("{:.1}", axis.at(min)))
            .set("x2", format!("{:.1}", axis.at(max)))
            .set("y1", format!("{middle:.1}"))
            .set("y2", format!("{middle:.1}"))
            .set("stroke", "#606060");
        group = group.add(line);
    }
    let bar = |from: u64, to: u64, fill: &str| {
        Rectangle::new()
            .set("x", format!("{:.1}", axis.at(from)))
            .set("y", format!("{:.1}", middle - BAR / 2.0))
            .set("width", format!("{:.1}", (axis.at(to) - axis.at(from)).max(1.5)))
            .set("height", BAR)
            .set("fill", fill)
    };
    if let (Some(p99), Some(p999)) = (p99, p999) {
        group = group.add(bar(p99, p999, TAIL));
    }
    if let Some(p50) = p50 {
        let far = row.other_node.is_some_and(|share| share >= FAR);
        let typical = bar(p50, p99.unwrap_or(p50), TYPICAL);
        let typical =
            if far { typical.set("stroke", FAR_EDGE).set("stroke-width", 2) } else { typical };
        group = group.add(typical);
    }
    group
}

/// A logarithmic axis over whole decades.
struct Axis {
    first: i32,
    decades: i32,
}

impl Axis {
    fn over(values: impl Iterator<Item = u64>) -> Self {
        let (mut least, mut most) = (u64::MAX, 1);
        for value in values {
            least = least.min(value.max(1));
            most = most.max(value);
        }
        let least = if least == u64::MAX { 1 } else { least };
        let (first, last) = ((least / 3).max(1).ilog10() as i32, most.ilog10() as i32 + 1);
        Self { first, decades: (last - first).max(1) }
    }

    /// Where a time is, from the left end; shorter ones are at that end.
    fn at(&self, ns: u64) -> f32 {
        let decades = (ns.max(1) as f64).log10() - f64::from(self.first);
        (decades / f64::from(self.decades)).max(0.0) as f32 * AXIS
    }

    /// A line with its time at each power of ten.
    fn grid(&self, height: f32) -> Group {
        let mut group = Group::new();
        for decade in 0..=self.decades {
            let ns = 10u64.saturating_pow((self.first + decade).unsigned_abs());
            let x = self.at(ns);
            let line = Line::new()
                .set("x1", format!("{x:.1}"))
                .set("x2", format!("{x:.1}"))
                .set("y1", 0)
                .set("y2", format!("{height:.1}"))
                .set("stroke", "#e0e0e0");
            let name = text(&whole(ns), x, height + FONT, FONT * 0.85);
            group = group.add(line).add(name.set("text-anchor", "middle"));
        }
        group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_holds_every_time_in_whole_decades() {
        let axis = Axis::over([350, 1_200_000].into_iter());
        assert_eq!((axis.first, axis.decades), (2, 5));
        assert!(axis.at(350) > 0.0 && axis.at(1_200_000) < AXIS);
        assert!((axis.at(100) - 0.0).abs() < 0.01 && (axis.at(10_000_000) - AXIS).abs() < 0.01);
        let none = Axis::over(std::iter::empty());
        assert!(none.at(0) == 0.0 && none.decades == 1);
        assert_eq!([100, 10_000, 1_000_000].map(whole), ["100ns", "10µs", "1ms"]);
    }
}
