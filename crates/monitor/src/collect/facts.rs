//! Counters of the kernel by node and by queue. Input: the facts of a host at each collection. Output: their increase.

use crate::metrics::Id;
use crate::store::Store;
use nearpath_model::{CpuId, Host, IrqNumber, Nic, NodeId, SoftnetCpu};
use std::collections::BTreeMap;

/// The last value of each counter. A counter begins when it is first seen; one that got smaller was reset.
#[derive(Debug)]
pub(crate) struct Last<K> {
    before: BTreeMap<K, u64>,
    now: BTreeMap<K, u64>,
}

impl<K> Default for Last<K> {
    fn default() -> Self {
        Self { before: BTreeMap::new(), now: BTreeMap::new() }
    }
}

impl<K: Ord> Last<K> {
    /// Begins a reading; counters that the last one did not have are forgotten.
    pub(crate) fn turn(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    /// The increase of a counter since the last reading.
    pub(crate) fn increase(&mut self, key: K, now: u64) -> u64 {
        let more = match self.before.get(&key) {
            Some(&before) if now >= before => now - before,
            Some(_) => now,
            None => 0,
        };
        self.now.insert(key, now);
        more
    }
}

/// Counters of one CPU's softnet line, with their metrics.
pub(crate) type SoftnetField = (Id, fn(&SoftnetCpu) -> Option<u64>);
/// All of them.
pub(crate) const SOFTNET: [SoftnetField; 5] = [
    (Id::SoftnetProcessed, |cpu| Some(cpu.processed)),
    (Id::SoftnetDropped, |cpu| Some(cpu.dropped)),
    (Id::SoftnetSqueezed, |cpu| Some(cpu.time_squeeze)),
    (Id::SoftnetReceivedRps, |cpu| cpu.received_rps),
    (Id::SoftnetFlowLimited, |cpu| cpu.flow_limit),
];

/// The counters at the last collection.
#[derive(Debug, Default)]
pub struct Facts {
    softnet: Last<(Id, CpuId)>,
    interrupts: Last<(IrqNumber, String)>,
    pages: Last<(NodeId, String)>,
}

impl Facts {
    /// Adds a reading.
    pub fn add(&mut self, store: &mut Store, host: &Host) {
        self.softnet.turn();
        self.interrupts.turn();
        self.pages.turn();
        self.softnet(store, host);
        self.queues(store, host);
        for node in &host.topology.nodes {
            for (event, &pages) in &node.numastat {
                let more = self.pages.increase((node.node, event.clone()), pages);
                store.count(Id::NumaPages, &[&node.node.to_string(), event], more);
            }
        }
    }

    fn softnet(&mut self, store: &mut Store, host: &Host) {
        let mut nodes: BTreeMap<(Id, String), u64> = BTreeMap::new();
        for cpu in &host.softnet {
            let node = host.topology.node_of(cpu.cpu);
            let node = node.map_or_else(|| "unknown".to_owned(), |node| node.to_string());
            for (id, value) in SOFTNET {
                let Some(value) = value(cpu) else { continue };
                let more = self.softnet.increase((id, cpu.cpu), value);
                *nodes.entry((id, node.clone())).or_default() += more;
            }
        }
        for ((id, node), more) in nodes {
            store.count(id, &[&node], more);
        }
    }

    fn queues(&mut self, store: &mut Store, host: &Host) {
        store.clear(Id::QueueIrqLocal);
        for nic in &host.nics {
            for (irq, queue) in queue_irqs(nic) {
                let at = host.irqs.binary_search_by_key(&irq, |irq| irq.irq);
                let Some(line) = at.ok().and_then(|at| host.irqs.get(at)) else { continue };
                let count = line.counts.values().fold(0u64, |sum, &n| sum.saturating_add(n));
                let more = self.interrupts.increase((irq, line.name.clone()), count);
                store.count(Id::QueueInterrupts, &[&nic.name, &queue], more);
                let handled = line.effective_affinity.as_ref().or(line.affinity.as_ref());
                if let (Some(node), Some(cpus)) = (nic.numa_node, handled) {
                    let nodes = host.topology.nodes_of(cpus);
                    let local = !nodes.is_empty() && nodes.iter().all(|&have| have == node);
                    let local = f64::from(u8::from(local));
                    store.set(Id::QueueIrqLocal, &[&nic.name, &queue], local);
                }
            }
        }
    }
}

/// The interrupts of a NIC's queues with the queue's label: a number if one interrupt serves both directions, else with
/// the direction. An interrupt that serves several queues is that of the first.
pub(crate) fn queue_irqs(nic: &Nic) -> BTreeMap<IrqNumber, String> {
    let mut labels = BTreeMap::new();
    for rx in &nic.rx_queues {
        let Some(irq) = rx.irq else { continue };
        let both = nic.tx_queues.iter().any(|tx| tx.queue == rx.queue && tx.irq == rx.irq);
        let label = if both { rx.queue.to_string() } else { format!("rx{}", rx.queue) };
        labels.entry(irq).or_insert(label);
    }
    for tx in &nic.tx_queues {
        let Some(irq) = tx.irq else { continue };
        labels.entry(irq).or_insert_with(|| format!("tx{}", tx.queue));
    }
    labels
}
