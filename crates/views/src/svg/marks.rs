//! Which CPU takes the interrupt of which queue.
//!
//! Input: the host. Output: marks by CPU, and for each NIC its interrupts with the CPUs that
//! take them.

use crate::queues::queue_rows;
use nearpath_model::{CpuId, CpuSet, Direction, Host, IrqNumber, NodeId};
use std::collections::BTreeMap;

/// The interrupt of a queue on a CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    /// Position of the NIC in `Host::nics`: its colour.
    pub nic: usize,
    /// For a tooltip: `eth0 rx 3, tx 3: irq 27`.
    pub label: String,
    /// Whether the CPU is on another node than the NIC.
    pub foreign: bool,
}

/// An interrupt of a NIC, or a queue without one that RPS or XPS steers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NicQueue {
    /// The lowest queue that it serves.
    pub queue: u32,
    /// Which queue that is, in short: `rx3`, `tx3`, or `q3` for both.
    pub name: String,
    /// `eth0 rx 3, tx 3: irq 27`.
    pub label: String,
    /// Where it goes; `None` when that is unknown, or when the queue has no interrupt.
    pub cpus: Option<CpuSet>,
    /// Whether it has an interrupt.
    pub has_irq: bool,
    /// Whether it serves received packets, and sent ones.
    pub rx: bool,
    pub tx: bool,
    /// Whether its interrupt goes to another node than the NIC's.
    pub misplaced: bool,
}

/// All interrupts of queues, by CPU and by NIC.
#[derive(Debug, Default)]
pub(super) struct Marks {
    by_cpu: BTreeMap<CpuId, Vec<Mark>>,
    by_nic: BTreeMap<usize, Vec<NicQueue>>,
}

impl Marks {
    pub(super) fn of(host: &Host) -> Self {
        let mut marks = Self::default();
        let rows = queue_rows(host);
        for (nic, facts) in host.nics.iter().enumerate() {
            let mut queues: BTreeMap<IrqNumber, Vec<(Direction, u32)>> = BTreeMap::new();
            for row in rows.iter().filter(|row| row.nic == facts.name) {
                if let Some(irq) = row.irq {
                    queues.entry(irq).or_default().push((row.direction, row.queue.0));
                }
            }
            for (irq, queues) in queues {
                marks.add(host, nic, facts.numa_node, irq, &queues);
            }
            for row in rows.iter().filter(|row| row.nic == facts.name && row.irq.is_none()) {
                let masks = [row.rps_cpus.as_ref(), row.xps_cpus.as_ref()];
                if masks.into_iter().flatten().any(|cpus| !cpus.is_empty()) {
                    marks.add_steered(nic, &facts.name, row.direction, row.queue.0);
                }
            }
        }
        for irqs in marks.by_nic.values_mut() {
            irqs.sort_by_key(|irq| (irq.queue, !irq.rx));
        }
        marks
    }

    /// The marks on a CPU.
    pub(super) fn on(&self, cpu: CpuId) -> &[Mark] {
        self.by_cpu.get(&cpu).map_or(&[], Vec::as_slice)
    }

    /// The interrupts of a NIC, by queue.
    pub(super) fn of_nic(&self, nic: usize) -> &[NicQueue] {
        self.by_nic.get(&nic).map_or(&[], Vec::as_slice)
    }

    fn add(
        &mut self,
        host: &Host,
        nic: usize,
        node: Option<NodeId>,
        irq: IrqNumber,
        queues: &[(Direction, u32)],
    ) {
        let names = queues.iter().map(|(direction, queue)| match direction {
            Direction::Rx => format!("rx {queue}"),
            Direction::Tx => format!("tx {queue}"),
        });
        let names = names.collect::<Vec<_>>().join(", ");
        let name = host.nics.get(nic).map_or("", |nic| nic.name.as_str());
        let label = format!("{name} {names}: irq {irq}");
        let cpus = taken_by(host, irq);
        let mut misplaced = false;
        for cpu in cpus.iter().flat_map(CpuSet::iter) {
            let foreign = node
                .zip(host.topology.node_of(cpu))
                .is_some_and(|(of_nic, of_cpu)| of_nic != of_cpu);
            misplaced |= foreign;
            let mark = Mark { nic, label: label.clone(), foreign };
            self.by_cpu.entry(cpu).or_default().push(mark);
        }
        let queue = queues.iter().map(|(_, queue)| *queue).min().unwrap_or(0);
        let serves = |way| queues.iter().any(|(direction, _)| *direction == way);
        let (rx, tx) = (serves(Direction::Rx), serves(Direction::Tx));
        let short = match (rx, tx) {
            (true, false) => "rx",
            (false, true) => "tx",
            _ => "q",
        };
        let name = format!("{short}{queue}");
        let queue = NicQueue { queue, name, label, cpus, has_irq: true, rx, tx, misplaced };
        self.by_nic.entry(nic).or_default().push(queue);
    }

    /// A queue without an interrupt, as those of veth and OVS ports.
    fn add_steered(&mut self, nic: usize, name: &str, direction: Direction, queue: u32) {
        let rx = direction == Direction::Rx;
        let short = if rx { "rx" } else { "tx" };
        let queue = NicQueue {
            queue,
            name: format!("{short}{queue}"),
            label: format!("{name} {short} {queue}: no interrupt"),
            cpus: None,
            has_irq: false,
            rx,
            tx: !rx,
            misplaced: false,
        };
        self.by_nic.entry(nic).or_default().push(queue);
    }
}

/// Where the interrupt goes: its effective affinity, else an affinity of one CPU. A wider
/// affinity says only where it may go.
fn taken_by(host: &Host, irq: IrqNumber) -> Option<CpuSet> {
    let position = host.irqs.binary_search_by_key(&irq, |known| known.irq).ok()?;
    let irq = host.irqs.get(position)?;
    let effective = irq.effective_affinity.as_ref().filter(|cpus| !cpus.is_empty());
    effective.or(irq.affinity.as_ref().filter(|cpus| cpus.len() == 1)).cloned()
}
