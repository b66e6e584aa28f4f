//! Packet locality as a heat map: rows are where packets were allocated, columns where they were freed; the darker a cell, the more of the direction's packets, by the scale below. What is local lies on the diagonal.

use super::draw::{canvas, text, xml};
use crate::matrix::Matrix;
use nearpath_model::Direction;
use nearpath_model::locality::{Locality, Method};
use nearpath_model::units::percent;
use svg::node::element::{Group, Line, Rectangle, Title};

/// CPUs that have cells of their own; of more their nodes have.
const CPUS_DRAWN: usize = 64;
const MARGIN: f32 = 16.0;
const FONT: f32 = 13.0;
/// Room for the names of rows and columns.
const NAMES: f32 = 64.0;
/// The cells of a matrix together, and one of them at most.
const SIDE: f32 = 512.0;
const CELL_MAX: f32 = 64.0;
const LINE: f32 = FONT * 1.5;
/// Cells of this size have their share in them.
const NUMBERED: f32 = 26.0;
const SCALE_WIDTH: f32 = 240.0;

/// Draws received and sent packets side by side.
pub fn locality(m: &Locality) -> String {
    let directions = [(Direction::Rx, "received"), (Direction::Tx, "sent")];
    let panels: Vec<Panel> = directions
        .map(|(direction, title)| panel(&Matrix::of(m, direction, CPUS_DRAWN), title))
        .into();
    let title = format!(
        "packets by the CPU that {} them (down) and the CPU that freed them (across)",
        match m.method {
            Method::Exact => "allocated",
            Method::Tracepoints => "first saw",
        }
    );
    let top = MARGIN + 2.0 * LINE;
    let mut place = MARGIN;
    let height = panels.iter().map(|panel| panel.height).fold(0.0, f32::max);
    let mut drawn = Group::new();
    for Panel { group, width, .. } in panels {
        drawn = drawn.add(group.set("transform", format!("translate({place:.1},{top:.1})")));
        place += width + MARGIN;
    }
    let width = place.max(title.len() as f32 * FONT * 0.62 + 2.0 * MARGIN);
    let height = top + height + MARGIN;
    canvas(width, height)
        .add(text(&title, MARGIN, MARGIN + FONT, FONT).set("font-weight", "bold"))
        .add(drawn)
        .to_string()
        + "\n"
}

/// One direction.
struct Panel {
    group: Group,
    width: f32,
    height: f32,
}

fn panel(matrix: &Matrix, title: &str) -> Panel {
    let cells = matrix.places.len();
    let caption = format!("{title}: {} packets", matrix.packets);
    let caption_width = caption.len() as f32 * FONT * 0.62;
    let mut panel = Group::new().add(text(&caption, 0.0, FONT, FONT));
    if cells == 0 {
        return Panel { group: panel, width: caption_width, height: LINE };
    }
    let side = (SIDE / cells as f32).min(CELL_MAX);
    let font = (side * 0.6).min(FONT);
    let top = LINE + NAMES;
    let at = |position: usize| position as f32 * side;
    for (position, place) in matrix.places.iter().enumerate() {
        let name = place.name();
        let middle = at(position) + side / 2.0 + font / 3.0;
        panel = panel.add(text(&name, 0.0, top + middle, font));
        let turned = text(&name, 0.0, 0.0, font).set(
            "transform",
            format!("translate({:.1},{:.1}) rotate(-90)", NAMES + middle, top - 4.0),
        );
        panel = panel.add(turned);
    }
    for (&(from, to), &count) in &matrix.counts {
        let share = count as f64 / matrix.packets.max(1) as f64;
        let name =
            |position: usize| matrix.places.get(position).map_or_else(String::new, |p| p.name());
        let tooltip =
            format!("{} to {}: {count} packets, {}", name(from), name(to), percent(share));
        let cell = Rectangle::new()
            .set("x", format!("{:.1}", NAMES + at(to)))
            .set("y", format!("{:.1}", top + at(from)))
            .set("width", format!("{side:.1}"))
            .set("height", format!("{side:.1}"))
            .set("fill", colour(share))
            .set("stroke", "#ffffff")
            .set("stroke-width", 0.5);
        let mut group = Group::new().add(Title::new(xml(&tooltip))).add(cell);
        if side >= NUMBERED && share >= 0.0005 {
            let (x, y) = (NAMES + at(to) + side / 2.0, top + at(from) + side / 2.0 + font / 3.0);
            let ink = if share > 0.2 { "#ffffff" } else { "#000000" };
            let number = text(&short_percent(share), x, y, (side / 4.0).min(FONT));
            group = group.add(number.set("text-anchor", "middle").set("fill", ink));
        }
        panel = panel.add(group);
    }
    // Lines where one node ends and another begins, and around all.
    for position in 0..=cells {
        let node = |i: usize| matrix.places.get(i).map(|place| place.node());
        let between = position > 0 && position < cells;
        if between && node(position - 1) == node(position) {
            continue;
        }
        let (near, far) = (at(position), at(cells));
        let line = |x1: f32, y1: f32, x2: f32, y2: f32| {
            Line::new()
                .set("x1", format!("{:.1}", NAMES + x1))
                .set("y1", format!("{:.1}", top + y1))
                .set("x2", format!("{:.1}", NAMES + x2))
                .set("y2", format!("{:.1}", top + y2))
                .set("stroke", "#404040")
                .set("stroke-width", 1)
        };
        panel = panel.add(line(near, 0.0, near, far)).add(line(0.0, near, far, near));
    }
    let below = top + at(cells) + LINE / 2.0;
    panel = panel.add(scale().set("transform", format!("translate({NAMES},{below:.1})")));
    let width = caption_width.max(NAMES + at(cells)).max(NAMES + SCALE_WIDTH + 9.0 * FONT);
    Panel { group: panel, width, height: below + 2.5 * LINE }
}

/// The colours of shares, with numbers below.
fn scale() -> Group {
    const STEPS: u32 = 50;
    let width = SCALE_WIDTH / STEPS as f32;
    let mut group = Group::new();
    for step in 0..STEPS {
        // As wide as it is strong: what a colour's root is, is its place.
        let share = (f64::from(step) / f64::from(STEPS - 1)).powi(2);
        let cell = Rectangle::new()
            .set("x", format!("{:.1}", step as f32 * width))
            .set("width", format!("{:.1}", width + 0.3))
            .set("height", FONT)
            .set("fill", colour(share));
        group = group.add(cell);
    }
    for share in [0.0, 0.01, 0.1, 0.25, 0.5, 1.0f64] {
        let x = share.sqrt() as f32 * SCALE_WIDTH;
        let number = text(&short_percent(share), x, 2.3 * FONT, FONT * 0.85);
        group = group.add(number.set("text-anchor", "middle"));
    }
    group.add(text("of the packets", SCALE_WIDTH + FONT, FONT, FONT * 0.85))
}

/// A share without decimals from 1% on.
fn short_percent(share: f64) -> String {
    match share * 100.0 {
        p if p == 0.0 || p >= 0.95 => format!("{p:.0}%"),
        p => format!("{p:.1}%"),
    }
}

/// From nearly white to dark blue. The root lets a share of 1% be seen beside one of 90%.
fn colour(share: f64) -> String {
    let strength = share.clamp(0.0, 1.0).sqrt();
    let mix = |light: f64, dark: f64| (light + (dark - light) * strength).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(235.0, 8.0), mix(243.0, 48.0), mix(251.0, 107.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_packets_are_darker() {
        assert_eq!((colour(0.0).as_str(), colour(1.0).as_str()), ("#ebf3fb", "#08306b"));
        assert!(colour(0.01) > colour(0.5), "{} {}", colour(0.01), colour(0.5));
    }
}
