//! A slow packet over time: a row for each stage it passed, the slow span split by what its time went to.
//!
//! Input: an [`Outlier`]. Output: an SVG document. The axis is linear and begins at the first stage seen.

use super::draw::{canvas, text, xml};
use super::shares::{colour, named};
use crate::outlier::{Bar, bars};
use crate::text::latency;
use nearpath_model::Outlier;
use svg::node::element::{Group, Rectangle, Title};

const MARGIN: f32 = 16.0;
const FONT: f32 = 13.0;
const ROW: f32 = FONT * 1.8;
const AXIS: f32 = 640.0;
const QUICK: &str = "#9aa5b1";

/// Draws the packet.
pub fn timeline(outlier: &Outlier) -> String {
    let bars = bars(outlier);
    let end = bars.iter().map(|bar| bar.to_ns).max().unwrap_or(0).max(1);
    let names = bars.iter().map(|bar| bar.name.chars().count()).max().unwrap_or(0);
    let left = names as f32 * FONT * 0.6 + MARGIN;
    let scale = |ns: u64| ns as f32 / end as f32 * AXIS;
    let mut drawn = Group::new();
    for (row, bar) in bars.iter().enumerate() {
        let y = row as f32 * ROW;
        drawn = drawn.add(text(&bar.name, -left, y + FONT, FONT));
        drawn = if bar.is_slow {
            shares(outlier, bar, y, &scale).into_iter().fold(drawn, Group::add)
        } else {
            let title = format!("{}: {}", bar.name, latency(bar.to_ns - bar.from_ns));
            drawn.add(piece((scale(bar.from_ns), scale(bar.to_ns)), y, QUICK, &title))
        };
        let time = latency(bar.to_ns - bar.from_ns);
        drawn = drawn.add(text(&time, scale(bar.to_ns) + 6.0, y + FONT, FONT * 0.9));
    }
    let (key, key_height) = key(outlier);
    let height = bars.len() as f32 * ROW;
    let drawn = drawn.add(key.set("transform", format!("translate(0,{:.1})", height + MARGIN)));
    let place = format!("translate({:.1},{MARGIN})", MARGIN + left);
    let width = left + AXIS + 120.0 + MARGIN;
    canvas(width, height + key_height + 3.0 * MARGIN).add(drawn.set("transform", place)).to_string()
        + "\n"
}

/// The slow span, in the order of its budget: largest first, as their order in time is not known.
fn shares(outlier: &Outlier, bar: &Bar, y: f32, scale: &impl Fn(u64) -> f32) -> Vec<Group> {
    let mut from = bar.from_ns;
    let mut pieces = Vec::new();
    for share in outlier.budget.iter().filter(|share| share.share.is_time()) {
        let to = from.saturating_add(share.ns).min(bar.to_ns);
        let title = format!("{}: {}", named(share), latency(share.ns));
        pieces.push(piece((scale(from), scale(to)), y, colour(share.share), &title));
        from = to;
    }
    if pieces.is_empty() {
        pieces.push(piece((scale(bar.from_ns), scale(bar.to_ns)), y, "#c00000", &bar.name));
    }
    pieces
}

fn piece((from, to): (f32, f32), y: f32, fill: &str, title: &str) -> Group {
    let bar = Rectangle::new()
        .set("x", format!("{from:.1}"))
        .set("y", format!("{:.1}", y + FONT * 0.2))
        .set("width", format!("{:.1}", (to - from).max(1.0)))
        .set("height", format!("{:.1}", FONT * 0.95))
        .set("fill", fill);
    Group::new().add(Title::new(xml(title))).add(bar)
}

/// The shares in words, with their colours, and the height of it.
fn key(outlier: &Outlier) -> (Group, f32) {
    let mut group = Group::new();
    let mut rows = 0.0;
    for share in outlier.budget.iter().filter(|share| share.share.is_time() && share.ns > 0) {
        let y = rows * ROW;
        let words = format!("{} {}", latency(share.ns), named(share));
        group = group.add(piece((0.0, 18.0), y, colour(share.share), &words)).add(text(
            &words,
            26.0,
            y + FONT,
            FONT,
        ));
        rows += 1.0;
    }
    (group, rows * ROW)
}
