//! `show irqs`: interrupts that fired, the busiest first, with the CPUs that handled them. Those that never fired are
//! folded into one line.

use super::cpus::count;
use super::table::{Table, left, or_none, right};
use super::units::{percent, ranges};
use super::unknown::{none_of, unknown};
use super::{heading, line};
use nearpath_model::{Host, Irq, NodeId};

/// CPUs that are named for an interrupt; the rest is counted.
const CPUS_NAMED: usize = 4;
/// The subjects of unknown facts that belong here.
const KINDS: &[&str] = &["irq", "irqs", "interrupts"];

/// Interrupts by count.
pub fn irqs(host: &Host) -> String {
    let mut out = String::new();
    if host.irqs.is_empty() {
        line!(out, "{}", none_of(host, "interrupts", "irqs"));
        out.push_str(&unknown(&host.unknown, KINDS));
        return out;
    }
    let (mut fired, idle): (Vec<&Irq>, Vec<&Irq>) =
        host.irqs.iter().partition(|irq| total(irq) > 0);
    fired.sort_by_key(|irq| (std::cmp::Reverse(total(irq)), irq.irq));
    heading(&mut out, &format!("{} fired since boot", count(fired.len(), "interrupt")));
    let mut table = Table::new(&[
        right("IRQ"),
        left("NAME"),
        right("COUNT"),
        left("TAKEN-BY"),
        left("AFFINITY"),
        left("EFFECTIVE"),
        left("EFFECTIVE-NODE").optional(),
        right("NODE").optional(),
    ]);
    for irq in fired {
        table.row([
            irq.irq.to_string(),
            irq.name.clone(),
            total(irq).to_string(),
            taken_by(irq),
            or_none(irq.affinity.as_ref()),
            or_none(irq.effective_affinity.as_ref()),
            node_list(irq_nodes(host, irq)),
            or_none(irq.node),
        ]);
    }
    out.push_str(&table.render());
    if !idle.is_empty() {
        let numbers = ranges(idle.iter().map(|irq| irq.irq.0));
        line!(out, "never fired: {} ({numbers})", count(idle.len(), "interrupt"));
    }
    let unknown = unknown(&host.unknown, KINDS);
    if !unknown.is_empty() {
        line!(out);
        out.push_str(&unknown);
    }
    out
}

/// How often the interrupt fired on all CPUs.
pub(crate) fn total(irq: &Irq) -> u64 {
    irq.counts.values().fold(0, |sum, &count| sum.saturating_add(count))
}

/// The nodes of the CPUs that the interrupt goes to: its effective affinity, else its affinity.
pub(crate) fn irq_nodes(host: &Host, irq: &Irq) -> Vec<NodeId> {
    let cpus = irq.effective_affinity.as_ref().filter(|cpus| !cpus.is_empty());
    cpus.or(irq.affinity.as_ref()).map(|cpus| host.topology.nodes_of(cpus)).unwrap_or_default()
}

pub(super) fn node_list(nodes: Vec<NodeId>) -> String {
    ranges(nodes.into_iter().map(|node| node.0))
}

/// `0 (73%), 4 (27%)`, the CPU with most first.
fn taken_by(irq: &Irq) -> String {
    let all = total(irq) as f64;
    let mut cpus: Vec<(u64, u32)> = irq.counts.iter().map(|(cpu, &n)| (n, cpu.0)).collect();
    cpus.retain(|(count, _)| *count > 0);
    cpus.sort_by_key(|&(count, cpu)| (std::cmp::Reverse(count), cpu));
    if let [(_, only)] = cpus.as_slice() {
        return only.to_string();
    }
    let named = cpus.iter().take(CPUS_NAMED);
    let mut parts: Vec<String> =
        named.map(|&(n, cpu)| format!("{cpu} ({})", percent(n as f64 / all))).collect();
    if cpus.len() > CPUS_NAMED {
        parts.push(format!("{} more", cpus.len() - CPUS_NAMED));
    }
    parts.join(", ")
}
