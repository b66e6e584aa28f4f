//! Boxes to SVG elements: colours, texts, marks, and the legend at the top.
//!
//! Names come from the host and are untrusted: they appear only as text nodes, escaped, never
//! in an attribute.

use super::arrows::{RPS, TO_OTHER_NODE, XPS, arrow, arrows, heads};
use super::layout::{Block, Kind, Scale};
use super::marks::Marks;
use crate::text::printable;
use nearpath_model::{CpuId, Host};
use svg::Document;
use svg::node::element::{Group, Rectangle, Text, Title};

/// Colours of NICs, safe for red-green colour blindness (Okabe and Ito).
const NIC_COLOURS: [&str; 7] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999900"];
const FOREIGN: &str = "#c00000";
const MISPLACED: &str = "#ffd6d6";
const MARGIN: f32 = 16.0;
/// Marks that fit on a CPU; all are named in its tooltip.
const MARKS_SHOWN: usize = 4;

/// The document with a title, a legend and the picture below.
pub(super) fn document(host: &Host, marks: &Marks, scale: &Scale, picture: &Block) -> String {
    let title = headline(host);
    let font = 13.0;
    let (legend, legend_width) = legend(font);
    let (distances, distances_width, distances_height) = distances(&host.topology, font);
    let top = MARGIN * 2.0 + font * 4.0;
    let title_width = title.chars().count() as f32 * font * 0.7;
    let widths = [picture.width, legend_width, title_width, distances_width];
    let width = widths.into_iter().fold(0.0, f32::max) + 2.0 * MARGIN;
    let bottom = top + picture.height + MARGIN;
    let height = bottom + distances_height;
    let drawn = Group::new()
        .set("transform", format!("translate({MARGIN},{top})"))
        .add(element(picture, marks, scale))
        .add(arrows(host, picture));
    canvas(width, height)
        .add(text(&title, MARGIN, MARGIN + font, font * 1.2).set("font-weight", "bold"))
        .add(heads())
        .add(legend.set("transform", format!("translate({MARGIN},{:.1})", MARGIN + font * 2.0)))
        .add(drawn)
        .add(distances.set("transform", format!("translate({MARGIN},{bottom:.1})")))
        .to_string()
        + "\n"
}

/// A white document of that size.
pub(super) fn canvas(width: f32, height: f32) -> Document {
    Document::new()
        .set("viewBox", (0, 0, width.ceil() as u32, height.ceil() as u32))
        .set("width", width.ceil())
        .set("height", height.ceil())
        .set("font-family", "DejaVu Sans, Verdana, sans-serif")
        .add(Rectangle::new().set("width", width).set("height", height).set("fill", "#ffffff"))
}

fn headline(host: &Host) -> String {
    let kernel = &host.kernel;
    let name = kernel.hostname.clone().unwrap_or_else(|| "host".to_owned());
    let release = kernel.release.as_ref().map(|release| format!(", Linux {release}"));
    let topology = &host.topology;
    let cpus = format!(", {} CPUs online of {}", topology.online.len(), topology.cpus.len());
    format!("{name}{}{cpus}", release.unwrap_or_default())
}

/// A line of samples, each with what it stands for, and its width.
fn legend(font: f32) -> (Group, f32) {
    let cell = |fill: &str, stroke: &str| {
        Rectangle::new()
            .set("y", 2)
            .set("width", 18)
            .set("height", font)
            .set("rx", 2)
            .set("fill", fill)
            .set("stroke", stroke)
            .set("stroke-width", 1.2)
    };
    let line = |colour: &str, dashed: bool| arrow((0.0, 8.0), (22.0, 8.0), colour, dashed);
    let samples: [(Group, &str); 8] = [
        (Group::new().add(cell(NIC_COLOURS[0], NIC_COLOURS[0])), "interrupt of a NIC's queue"),
        (Group::new().add(cell(NIC_COLOURS[0], FOREIGN)), "from a NIC on another node"),
        (Group::new().add(cell(MISPLACED, FOREIGN)), "queue served on another node"),
        (Group::new().add(cell("#c8c8c8", "#a0a0a0")), "offline CPU"),
        (Group::new().add(cell("#fff2b0", "#b0a040")), "isolated CPU"),
        (Group::new().add(line(RPS, false)), "RPS"),
        (Group::new().add(line(XPS, true)), "XPS"),
        (Group::new().add(line(TO_OTHER_NODE, false)), "to another node"),
    ];
    let (mut group, mut x) = (Group::new(), 0.0);
    for (sample, meaning) in samples {
        group = group.add(sample.set("transform", format!("translate({x:.1},0)"))).add(text(
            meaning,
            x + 27.0,
            font,
            font,
        ));
        x += 27.0 + meaning.chars().count() as f32 * font * 0.6 + 14.0;
    }
    (group, x)
}

/// The distances of nodes as a matrix (`/sys/devices/system/node/node*/distance`), with its width and height; nothing on
/// a host of one node.
fn distances(topology: &nearpath_model::Topology, font: f32) -> (Group, f32, f32) {
    const CELL: f32 = 34.0;
    let nodes = &topology.nodes;
    let mut group = Group::new();
    if nodes.len() < 2 {
        return (group, 0.0, 0.0);
    }
    let line = font * 1.5;
    let at = |column: usize| 70.0 + column as f32 * CELL;
    group = group.add(text("node distances", 0.0, font, font).set("font-weight", "bold"));
    for (row, node) in nodes.iter().enumerate() {
        let y = line * (row + 2) as f32 + font;
        group = group
            .add(text(&format!("node {}", node.node), 0.0, y, font))
            .add(text(&node.node.to_string(), at(row), line + font, font).set("fill", "#606060"));
        for (column, other) in nodes.iter().enumerate() {
            let distance = node.distances.get(&other.node);
            let shown = distance.map_or_else(|| "?".to_owned(), ToString::to_string);
            group = group.add(text(&shown, at(column), y, font));
        }
    }
    (group, at(nodes.len()), line * (nodes.len() + 2) as f32 + MARGIN)
}

/// A box and all in it.
fn element(block: &Block, marks: &Marks, scale: &Scale) -> Group {
    let mut group = Group::new();
    if !block.tooltip.is_empty() {
        group = group.add(Title::new(xml(&block.tooltip)));
    }
    if let Some(outline) = outline(block) {
        group = group.add(outline);
    }
    if !block.title.is_empty() {
        group = group.add(caption(block, scale));
    }
    if let Kind::Cpu { cpu, .. } = block.kind {
        for mark in squares(cpu, block, marks) {
            group = group.add(mark);
        }
    }
    for child in &block.children {
        let place = format!("translate({:.1},{:.1})", child.x, child.y);
        group = group.add(element(&child.block, marks, scale).set("transform", place));
    }
    group
}

fn outline(block: &Block) -> Option<Rectangle> {
    let (fill, stroke, width, radius) = match block.kind {
        Kind::Group => return None,
        Kind::Package => ("#f2f2f2", "#404040", 1.5, 4.0),
        Kind::Node => ("#e3eefa", "#3a6ea5", 1.2, 4.0),
        Kind::Llc => ("#d5ecd4", "#4c8c4a", 1.0, 3.0),
        Kind::Core => ("#ffffff", "#808080", 0.8, 2.0),
        Kind::Cpu { online: false, .. } => ("#c8c8c8", "#a0a0a0", 0.5, 1.0),
        Kind::Cpu { isolated: true, .. } => ("#fff2b0", "#b0a040", 0.5, 1.0),
        Kind::Cpu { .. } => ("#fafafa", "#c0c0c0", 0.5, 1.0),
        Kind::Nic(position) => ("#ffffff", colour(position), 2.0, 3.0),
        Kind::Chip { misplaced: true, .. } => (MISPLACED, FOREIGN, 1.2, 2.0),
        Kind::Chip { .. } => ("#f4f4f4", "#b0b0b0", 0.5, 2.0),
    };
    Some(
        Rectangle::new()
            .set("width", format!("{:.1}", block.width))
            .set("height", format!("{:.1}", block.height))
            .set("rx", radius)
            .set("fill", fill)
            .set("stroke", stroke)
            .set("stroke-width", width),
    )
}

fn colour(nic: usize) -> &'static str {
    NIC_COLOURS[nic % NIC_COLOURS.len()]
}

/// The title: in the middle of a chip, in the upper part of a CPU, at the top of all else.
fn caption(block: &Block, scale: &Scale) -> Text {
    let font = scale.font;
    match block.kind {
        Kind::Chip { .. } => text(&block.title, block.width / 2.0, block.height * 0.72, font * 0.9)
            .set("text-anchor", "middle"),
        Kind::Cpu { online, .. } => {
            let colour = if online { "#000000" } else { "#606060" };
            text(&block.title, block.width / 2.0, block.height * 0.55, font)
                .set("text-anchor", "middle")
                .set("fill", colour)
        }
        Kind::Group => text(&block.title, 0.0, font, font),
        _ => text(&block.title, scale.gap, font * 1.2, font),
    }
}

pub(super) fn text(content: &str, x: f32, y: f32, size: f32) -> Text {
    Text::new(xml(content))
        .set("x", format!("{x:.1}"))
        .set("y", format!("{y:.1}"))
        .set("font-size", format!("{size:.1}"))
}

/// The interrupts that a CPU takes, along its lower edge.
fn squares(cpu: u32, block: &Block, marks: &Marks) -> Vec<Rectangle> {
    let on_cpu = marks.on(CpuId(cpu));
    let side = block.height * 0.26;
    let step = side + 2.0;
    let shown = on_cpu.len().min(MARKS_SHOWN);
    let start = (block.width - shown as f32 * step + 2.0) / 2.0;
    let squares = on_cpu.iter().take(shown).enumerate().map(|(i, mark)| {
        let square = Rectangle::new()
            .set("x", format!("{:.1}", start + i as f32 * step))
            .set("y", format!("{:.1}", block.height - side - 2.0))
            .set("width", format!("{side:.1}"))
            .set("height", format!("{side:.1}"))
            .set("fill", colour(mark.nic));
        if mark.foreign { square.set("stroke", FOREIGN).set("stroke-width", 1.6) } else { square }
    });
    squares.collect()
}

/// Text with the characters that XML 1.0 does not allow escaped; markup is escaped by the writer.
pub(super) fn xml(content: &str) -> String {
    let lines: Vec<String> = content.split('\n').map(printable).collect();
    lines.join("\n").replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}
