//! Where RPS and XPS steer: arrows from a queue's box to CPUs.
//!
//! Input: the host and the picture with every box in its place. Output: one group that is drawn over the picture.

use super::layout::{Block, Kind};
use nearpath_model::{CpuSet, Host, Nic, NodeId};
use std::collections::HashMap;
use svg::node::element::{Definitions, Group, Line, Marker, Path};

/// Colours of arrows: RPS, XPS, and either of them to another node.
pub(super) const RPS: &str = "#1f4fbf";
pub(super) const XPS: &str = "#2f8f2f";
pub(super) const TO_OTHER_NODE: &str = "#c00000";
/// CPUs of one queue that get an arrow each; a wider set is spreading, which its box says in words.
const MOST_CPUS: usize = 8;
/// Arrows in one picture; beyond that they hide what they point at.
const MOST_ARROWS: usize = 96;

type Point = (f32, f32);

/// Middles of CPUs, and of the upper edges of queues' boxes by NIC, queue and direction (`true`: receive).
#[derive(Default)]
struct Anchors {
    cpus: HashMap<u32, Point>,
    queues: HashMap<(usize, u32, bool), Point>,
}

impl Anchors {
    fn collect(&mut self, block: &Block, (x, y): Point) {
        let middle = (x + block.width / 2.0, y + block.height / 2.0);
        match block.kind {
            Kind::Cpu { cpu, .. } => {
                self.cpus.entry(cpu).or_insert(middle);
            }
            Kind::Chip { nic, queue: Some(queue), rx, tx, .. } => {
                for (is_it, direction) in [(rx, true), (tx, false)] {
                    if is_it {
                        self.queues.entry((nic, queue, direction)).or_insert((middle.0, y));
                    }
                }
            }
            _ => {}
        }
        for child in &block.children {
            self.collect(&child.block, (x + child.x, y + child.y));
        }
    }
}

/// Arrow heads, one for each colour.
pub(super) fn heads() -> Definitions {
    let head = |colour: &str| {
        Marker::new()
            .set("id", format!("to{}", &colour[1..]))
            .set("viewBox", "0 0 8 8")
            .set("refX", 7)
            .set("refY", 4)
            .set("markerWidth", 5)
            .set("markerHeight", 5)
            .set("orient", "auto")
            .add(Path::new().set("d", "M0,0 L8,4 L0,8 z").set("fill", colour))
    };
    [RPS, XPS, TO_OTHER_NODE]
        .into_iter()
        .fold(Definitions::new(), |all, colour| all.add(head(colour)))
}

/// An arrow in one of the colours above; that of XPS is dashed.
pub(super) fn arrow((x1, y1): Point, (x2, y2): Point, colour: &str, dashed: bool) -> Line {
    let line = Line::new()
        .set("x1", format!("{x1:.1}"))
        .set("y1", format!("{y1:.1}"))
        .set("x2", format!("{x2:.1}"))
        .set("y2", format!("{y2:.1}"))
        .set("stroke", colour)
        .set("stroke-width", 1.2)
        .set("stroke-opacity", 0.8)
        .set("marker-end", format!("url(#to{})", &colour[1..]));
    if dashed { line.set("stroke-dasharray", "4 3") } else { line }
}

/// The arrows of all queues.
pub(super) fn arrows(host: &Host, picture: &Block) -> Group {
    let mut anchors = Anchors::default();
    anchors.collect(picture, (0.0, 0.0));
    let mut group = Group::new();
    let mut drawn = 0;
    for (position, nic) in host.nics.iter().enumerate() {
        let rps = nic.rx_queues.iter().map(|q| (q.queue.0, true, q.rps_cpus.as_ref()));
        let xps = nic.tx_queues.iter().map(|q| (q.queue.0, false, q.xps_cpus.as_ref()));
        for (queue, is_rps, cpus) in rps.chain(xps) {
            let Some(cpus) = cpus.filter(|cpus| cpus.len() <= MOST_CPUS) else { continue };
            let Some(&from) = anchors.queues.get(&(position, queue, is_rps)) else { continue };
            for line in of_queue(host, nic, &anchors, from, cpus, is_rps) {
                if drawn < MOST_ARROWS {
                    group = group.add(line);
                    drawn += 1;
                }
            }
        }
    }
    group
}

fn of_queue(
    host: &Host,
    nic: &Nic,
    anchors: &Anchors,
    from: Point,
    cpus: &CpuSet,
    is_rps: bool,
) -> Vec<Line> {
    let is_far = |node: Option<NodeId>| node.zip(nic.numa_node).is_some_and(|(a, b)| a != b);
    let line = |cpu: nearpath_model::CpuId| {
        let to = *anchors.cpus.get(&cpu.0)?;
        let own = if is_rps { RPS } else { XPS };
        let colour = if is_far(host.topology.node_of(cpu)) { TO_OTHER_NODE } else { own };
        Some(arrow(from, to, colour, !is_rps))
    };
    cpus.iter().filter_map(line).collect()
}
