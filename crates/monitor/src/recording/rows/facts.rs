//! Counters of the kernel by CPU, queue and node. Input: the facts of a host at each collection. Output: their increase.

use crate::collect::{Last, SOFTNET, queue_irqs};
use crate::metrics::Id;
use crate::recording::batch::{Batch, Cell};
use crate::recording::table::Table;
use nearpath_model::{CpuId, Host, IrqNumber, NodeId};
use std::collections::BTreeMap;
use std::time::Duration;

/// The counters at the last collection.
#[derive(Debug, Default)]
pub struct FactRows {
    last: Option<Duration>,
    softnet: Last<(Id, CpuId)>,
    interrupts: Last<(IrqNumber, String, CpuId)>,
    pages: Last<(NodeId, String)>,
}

impl FactRows {
    /// The increase since the last reading, at a time that only goes forward; empty at the first.
    pub fn add(&mut self, host: &Host, now: Duration) -> Batch {
        let since = self.last.replace(now).map(|last| now.saturating_sub(last));
        let mut batch = Batch::now(since.unwrap_or_default().as_secs_f64());
        self.softnet.turn();
        self.interrupts.turn();
        self.pages.turn();
        self.softnet(&mut batch, host);
        self.interrupts(&mut batch, host);
        for node in &host.topology.nodes {
            for (event, &pages) in &node.numastat {
                let more = self.pages.increase((node.node, event.clone()), pages);
                if more > 0 {
                    batch.push(Table::Numa, [node.node.0.into(), Cell::from(event), more.into()]);
                }
            }
        }
        batch
    }

    fn softnet(&mut self, batch: &mut Batch, host: &Host) {
        for cpu in &host.softnet {
            let mut increase = |(id, value): (Id, fn(&_) -> Option<u64>)| {
                value(cpu).map(|value| self.softnet.increase((id, cpu.cpu), value))
            };
            let more = SOFTNET.map(&mut increase);
            if more.iter().all(|more| more.is_none_or(|more| more == 0)) {
                continue;
            }
            let [processed, dropped, squeezed, rps, limited] = more.map(Cell::from);
            let node = host.topology.node_of(cpu.cpu).map(|node| node.0);
            let row = [cpu.cpu.0.into(), node.into(), processed, dropped, squeezed, rps, limited];
            batch.push(Table::Softnet, row);
        }
    }

    fn interrupts(&mut self, batch: &mut Batch, host: &Host) {
        for nic in &host.nics {
            for (irq, queue) in queue_irqs(nic) {
                let at = host.irqs.binary_search_by_key(&irq, |irq| irq.irq);
                let Some(line) = at.ok().and_then(|at| host.irqs.get(at)) else { continue };
                let mut cpus: BTreeMap<CpuId, u64> = BTreeMap::new();
                for (&cpu, &count) in &line.counts {
                    let key = (irq, line.name.clone(), cpu);
                    cpus.insert(cpu, self.interrupts.increase(key, count));
                }
                for (cpu, more) in cpus.into_iter().filter(|(_, more)| *more > 0) {
                    let (nic, queue) = (Cell::from(&nic.name), Cell::from(&queue));
                    batch.push(Table::Irqs, [nic, queue, irq.0.into(), cpu.0.into(), more.into()]);
                }
            }
        }
    }
}
