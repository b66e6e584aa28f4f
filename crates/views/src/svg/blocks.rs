//! The boxes of a host: package > node > LLC > core > CPU, and the NICs in their nodes.
//!
//! Input: the host with its marks. Output: one box that holds all. An LLC that several nodes
//! share is drawn in each; unknown facts of a CPU (the core of an offline one) are skipped, so that
//! it stands in the box of what is known of it.

use super::layout::{Block, Kind, Scale};
use super::marks::Marks;
use crate::text::bytes;
use nearpath_model::{Cpu, CpuSet, Host, LlcId, Nic, Node, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Proportion of width to height that boxes strive for.
const PAGE: f32 = 1.6;
/// Interrupts that are drawn for one NIC; the rest is counted.
const CHIPS: usize = 256;
/// Software interfaces that are named; the rest is counted.
const NAMED: usize = 24;

/// All of the host.
pub(super) fn picture(host: &Host, marks: &Marks, scale: &Scale) -> Block {
    let builder = Builder { host, marks, scale };
    let mut parts = vec![builder.packages()];
    let placed: BTreeSet<NodeId> = host.topology.nodes.iter().map(|node| node.node).collect();
    let unplaced = builder.nics(|nic| nic.numa_node.is_none_or(|node| !placed.contains(&node)));
    if !unplaced.is_empty() {
        let title = "NICs of unknown node".to_owned();
        parts.push(Block::around(Kind::Node, title, unplaced, PAGE * 3.0, scale));
    }
    parts.extend(builder.software());
    Block::in_columns(Kind::Group, String::new(), parts, 1, scale)
}

struct Builder<'a> {
    host: &'a Host,
    marks: &'a Marks,
    scale: &'a Scale,
}

impl Builder<'_> {
    fn packages(&self) -> Block {
        // Those of unknown package last.
        let mut packages: BTreeMap<(bool, Option<u32>), Vec<&Cpu>> = BTreeMap::new();
        for cpu in &self.host.topology.cpus {
            packages.entry((cpu.package.is_none(), cpu.package)).or_default().push(cpu);
        }
        let mut drawn = BTreeSet::new();
        let mut blocks: Vec<Block> = Vec::new();
        for ((_, package), cpus) in packages {
            let title = match package {
                Some(package) => format!("package {package}"),
                None => "package unknown".to_owned(),
            };
            let nodes = self.nodes_of_package(&cpus, &mut drawn);
            blocks.push(Block::around(Kind::Package, title, nodes, PAGE, self.scale));
        }
        let without_cpus = self.host.topology.nodes.iter().filter(|n| !drawn.contains(&n.node));
        blocks.extend(without_cpus.map(|node| self.node(Some(node), Some(node.node), &[], true)));
        Block::around(Kind::Group, String::new(), blocks, PAGE, self.scale)
    }

    /// The nodes of a package; those that no package drew before come with their NICs.
    fn nodes_of_package(&self, cpus: &[&Cpu], drawn: &mut BTreeSet<NodeId>) -> Vec<Block> {
        let mut nodes: BTreeMap<Option<NodeId>, Vec<&Cpu>> = BTreeMap::new();
        for cpu in cpus {
            nodes.entry(cpu.node).or_default().push(cpu);
        }
        let blocks = nodes.into_iter().map(|(id, cpus)| {
            let facts = id.and_then(|id| self.host.topology.node(id));
            let first = id.is_some_and(|id| drawn.insert(id));
            self.node(facts, id, &cpus, first)
        });
        blocks.collect()
    }

    fn node(&self, facts: Option<&Node>, id: Option<NodeId>, cpus: &[&Cpu], nics: bool) -> Block {
        let memory = facts.and_then(|node| node.memory_bytes).map(bytes);
        let title = match id {
            Some(id) => format!("node {id}"),
            None => "no node".to_owned(),
        };
        let title = [Some(title), memory].into_iter().flatten().collect::<Vec<_>>().join("  ");
        let mut llcs: BTreeMap<Option<LlcId>, Vec<&Cpu>> = BTreeMap::new();
        for cpu in cpus {
            llcs.entry(cpu.llc).or_default().push(cpu);
        }
        let llcs: Vec<Block> = llcs.into_iter().map(|(id, cpus)| self.llc(id, &cpus)).collect();
        let mut parts = vec![Block::around(Kind::Group, String::new(), llcs, PAGE, self.scale)];
        if let Some(id) = id.filter(|_| nics) {
            parts.extend(self.nics(|nic| nic.numa_node == Some(id)));
        }
        Block::in_columns(Kind::Node, title, parts, 1, self.scale)
    }

    fn llc(&self, id: Option<LlcId>, cpus: &[&Cpu]) -> Block {
        let facts = id.and_then(|id| self.host.topology.llcs.iter().find(|llc| llc.llc == id));
        let title = match (id, facts) {
            (Some(id), Some(llc)) => {
                let level = llc.level.map_or_else(String::new, |level| format!(" L{level}"));
                let size =
                    llc.size_bytes.map_or_else(String::new, |size| format!(" {}", bytes(size)));
                format!("LLC {id}{level}{size}")
            }
            (Some(id), None) => format!("LLC {id}"),
            (None, _) => "LLC unknown".to_owned(),
        };
        let mut cores: BTreeMap<(u32, &CpuSet), Vec<&Cpu>> = BTreeMap::new();
        for cpu in cpus {
            // A CPU without known siblings is a core of its own, in the place of its number.
            let first = cpu.siblings.first().unwrap_or(cpu.cpu);
            cores.entry((first.0, &cpu.siblings)).or_default().push(cpu);
        }
        let cores = cores.into_values().map(|cpus| self.core(&cpus)).collect();
        Block::around(Kind::Llc, title, cores, PAGE, self.scale)
    }

    fn core(&self, cpus: &[&Cpu]) -> Block {
        let isolated = self.host.kernel.isolated.as_ref();
        let children = cpus.iter().map(|cpu| {
            let kind = Kind::Cpu {
                cpu: cpu.cpu.0,
                online: cpu.online,
                isolated: isolated.is_some_and(|cpus| cpus.contains(cpu.cpu)),
            };
            let (width, height) = (self.scale.cpu_width, self.scale.cpu_height);
            let mut block = Block::leaf(kind, cpu.cpu.to_string(), width, height);
            let core = cpu.core.map_or_else(String::new, |core| format!(", core {core}"));
            let state = if cpu.online { "" } else { ", offline" };
            let mut lines = vec![format!("cpu {}{core}{state}", cpu.cpu)];
            lines.extend(self.marks.on(cpu.cpu).iter().map(|mark| mark.label.clone()));
            block.tooltip = lines.join("\n");
            block
        });
        // Up to four threads above each other; the odd machine of more in a square.
        let columns = if cpus.len() > 4 { cpus.len().isqrt() } else { 1 };
        Block::in_columns(Kind::Core, String::new(), children.collect(), columns, self.scale)
    }

    /// The NICs with a device behind them, of those requested.
    fn nics(&self, wanted: impl Fn(&Nic) -> bool) -> Vec<Block> {
        let nics = self.host.nics.iter().enumerate();
        let nics = nics.filter(|(i, nic)| self.has_device(*i, nic) && wanted(nic));
        nics.map(|(i, nic)| self.nic(i, nic)).collect()
    }

    fn has_device(&self, position: usize, nic: &Nic) -> bool {
        nic.bus.is_some() || nic.numa_node.is_some() || !self.marks.of_nic(position).is_empty()
    }

    fn nic(&self, position: usize, nic: &Nic) -> Block {
        let words = [Some(&nic.name), nic.driver.as_ref(), nic.bus.as_ref()];
        let words: Vec<&str> = words.into_iter().flatten().map(String::as_str).collect();
        let queues = format!("{} rx, {} tx queues", nic.rx_queues.len(), nic.tx_queues.len());
        let title = format!("{}  {queues}", words.join(" "));
        let irqs = self.marks.of_nic(position);
        let mut chips: Vec<Block> = irqs
            .iter()
            .take(CHIPS)
            .map(|irq| {
                let to = match &irq.cpus {
                    _ if !irq.has_irq => String::new(),
                    Some(cpus) => format!(" → {cpus}"),
                    None => " → ?".to_owned(),
                };
                let mut chip = self.chip(&format!("{}{to}", irq.name));
                let (queue, misplaced) = (Some(irq.queue), irq.misplaced);
                chip.kind = Kind::Chip { nic: position, queue, rx: irq.rx, tx: irq.tx, misplaced };
                chip.tooltip.clone_from(&irq.label);
                chip
            })
            .collect();
        if irqs.len() > CHIPS {
            chips.push(self.chip(&format!("{} more", irqs.len() - CHIPS)));
        }
        Block::around(Kind::Nic(position), title, chips, PAGE * 4.0, self.scale)
    }

    fn chip(&self, text: &str) -> Block {
        let width = self.scale.text_width(text) + self.scale.gap;
        let kind = Kind::Chip { nic: 0, queue: None, rx: false, tx: false, misplaced: false };
        Block::leaf(kind, text.to_owned(), width, self.scale.title_height())
    }

    /// One line for the interfaces that no device stands behind.
    fn software(&self) -> Option<Block> {
        let nics = self.host.nics.iter().enumerate();
        let names: Vec<&str> = nics
            .filter(|(i, nic)| !self.has_device(*i, nic))
            .map(|(_, nic)| nic.name.as_str())
            .collect();
        let mut shown = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
        if names.len() > NAMED {
            shown.push_str(&format!(" and {} more", names.len() - NAMED));
        }
        let text = format!("software interfaces: {shown}");
        let (width, height) = (self.scale.text_width(&text), self.scale.title_height());
        (!names.is_empty()).then(|| Block::leaf(Kind::Group, text, width, height))
    }
}
