//! Boxes within boxes: sizes and places, nothing of what they mean.
//!
//! Input: boxes of known size. Output: a box that holds them in rows, about as wide as a page
//! in proportion to its height.

/// Sizes, smaller the more CPUs there are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    pub cpu_width: f32,
    pub cpu_height: f32,
    pub font: f32,
    pub gap: f32,
}

impl Scale {
    pub(super) fn for_cpus(cpus: usize) -> Self {
        match cpus {
            0..=64 => Self { cpu_width: 44.0, cpu_height: 28.0, font: 13.0, gap: 8.0 },
            65..=256 => Self { cpu_width: 34.0, cpu_height: 22.0, font: 11.0, gap: 6.0 },
            257..=2048 => Self { cpu_width: 28.0, cpu_height: 18.0, font: 10.0, gap: 4.0 },
            _ => Self { cpu_width: 32.0, cpu_height: 16.0, font: 9.0, gap: 3.0 },
        }
    }

    /// About how wide a text is in a sans-serif font.
    pub(super) fn text_width(&self, text: &str) -> f32 {
        text.chars().count() as f32 * self.font * 0.62
    }

    /// Height of a title.
    pub(super) fn title_height(&self) -> f32 {
        self.font * 1.5
    }
}

/// What a box stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Holds others and is not drawn itself.
    Group,
    Package,
    Node,
    Llc,
    Core,
    /// A CPU: its number, and whether it runs and is isolated from the scheduler.
    Cpu {
        cpu: u32,
        online: bool,
        isolated: bool,
    },
    /// A NIC: its position in `Host::nics`.
    Nic(usize),
    /// A queue within a NIC's box: the NIC's position in `Host::nics`, the queue, which directions it serves, and
    /// whether its interrupt goes to another node.
    Chip {
        nic: usize,
        queue: Option<u32>,
        rx: bool,
        tx: bool,
        misplaced: bool,
    },
}

/// A box with what it holds.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub kind: Kind,
    /// Shown at its top, or in its middle when it holds nothing.
    pub title: String,
    /// Shown when the pointer rests on it.
    pub tooltip: String,
    pub width: f32,
    pub height: f32,
    pub children: Vec<Placed>,
}

/// A box within another, from whose upper left corner its place is counted.
#[derive(Debug, Clone)]
pub(super) struct Placed {
    pub x: f32,
    pub y: f32,
    pub block: Block,
}

impl Block {
    /// A box that holds nothing.
    pub(super) fn leaf(kind: Kind, title: String, width: f32, height: f32) -> Self {
        Self { kind, title, tooltip: String::new(), width, height, children: Vec::new() }
    }

    /// A box around others, of which about `ratio` times as many stand beside each other as
    /// above each other.
    pub(super) fn around(
        kind: Kind,
        title: String,
        children: Vec<Block>,
        ratio: f32,
        scale: &Scale,
    ) -> Self {
        let most = children.len().clamp(1, 128);
        let area: f32 = children.iter().map(|block| block.width * block.height).sum();
        // Far from the proportion is bad, and so is room that nothing fills.
        let badness = |columns: usize| {
            let (width, height) = size_of(&rows(&children, columns), scale.gap);
            let (width, height) = (width.max(1.0), height.max(1.0));
            (width / height / ratio).ln().abs() + 3.0 * (1.0 - area / (width * height))
        };
        let columns = (1..=most).min_by(|&a, &b| badness(a).total_cmp(&badness(b))).unwrap_or(1);
        Self::in_columns(kind, title, children, columns, scale)
    }

    /// A box around others in a number of columns.
    pub(super) fn in_columns(
        kind: Kind,
        title: String,
        children: Vec<Block>,
        columns: usize,
        scale: &Scale,
    ) -> Self {
        let (padding, top) = match kind {
            Kind::Group => (0.0, 0.0),
            _ if title.is_empty() => (scale.gap / 2.0, scale.gap / 2.0),
            _ => (scale.gap, scale.gap + scale.title_height()),
        };
        let (width, height) = size_of(&rows(&children, columns), scale.gap);
        let mut placed = Vec::with_capacity(children.len());
        let mut y = top;
        let mut children = children.into_iter().peekable();
        while children.peek().is_some() {
            let (mut x, mut row_height) = (padding, 0.0f32);
            for block in children.by_ref().take(columns.max(1)) {
                let width = block.width;
                row_height = row_height.max(block.height);
                placed.push(Placed { x, y, block });
                x += width + scale.gap;
            }
            y += row_height + scale.gap;
        }
        let title_width = scale.text_width(&title);
        Self {
            kind,
            title,
            tooltip: String::new(),
            width: width.max(title_width) + 2.0 * padding,
            height: height + top + padding,
            children: placed,
        }
    }
}

/// Width and height of each row.
fn rows(children: &[Block], columns: usize) -> Vec<(f32, f32, usize)> {
    let rows = children.chunks(columns.max(1)).map(|row| {
        let width = row.iter().map(|block| block.width).sum();
        let height = row.iter().map(|block| block.height).fold(0.0, f32::max);
        (width, height, row.len())
    });
    rows.collect()
}

fn size_of(rows: &[(f32, f32, usize)], gap: f32) -> (f32, f32) {
    let gaps = |number: usize| number.saturating_sub(1) as f32 * gap;
    let width = rows.iter().map(|(width, _, number)| width + gaps(*number)).fold(0.0, f32::max);
    let height: f32 = rows.iter().map(|(_, height, _)| height).sum();
    (width, height + gaps(rows.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHIP: Kind = Kind::Chip { nic: 0, queue: None, rx: false, tx: false, misplaced: false };

    #[test]
    fn boxes_hold_what_is_in_them_without_overlap() {
        let scale = Scale::for_cpus(4);
        for number in [0, 1, 3, 16, 300] {
            let children = (0..number)
                .map(|i| Block::leaf(CHIP, i.to_string(), 20.0 + (i % 3) as f32 * 10.0, 10.0));
            let block = Block::around(Kind::Node, "node".into(), children.collect(), 1.6, &scale);
            assert_eq!(block.children.len(), number);
            for (i, a) in block.children.iter().enumerate() {
                assert!(a.x + a.block.width <= block.width + 0.01);
                assert!(a.y + a.block.height <= block.height + 0.01);
                for b in &block.children[..i] {
                    let apart = b.x + b.block.width <= a.x
                        || a.x + a.block.width <= b.x
                        || b.y + b.block.height <= a.y
                        || a.y + a.block.height <= b.y;
                    assert!(apart, "{number}: {a:?} {b:?}");
                }
            }
        }
    }
}
