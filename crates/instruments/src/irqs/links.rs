//! Which interrupts and NAPI instances serve which queues. Input: the NICs of a host, each time that its
//! interrupts have changed; earlier assignments are kept.

use super::readings::Readings;
use nearpath_model::irqs::Serves;
use nearpath_model::{IfIndex, IrqNumber, Nic, QueueId};
use std::collections::{BTreeMap, BTreeSet};

/// The assignments known so far.
#[derive(Debug, Default)]
pub struct Links {
    /// The NICs by index.
    pub nics: BTreeMap<IfIndex, LinkedNic>,
    /// What an interrupt with that number and name serves.
    pub by_irq: BTreeMap<(IrqNumber, String), Served>,
}

/// A NIC with its queues' NAPI instances.
#[derive(Debug, Default)]
pub struct LinkedNic {
    /// Its name.
    pub name: String,
    /// Inode of its namespace.
    pub netns: Option<u64>,
    /// NAPI ids by queue, if reported by the kernel.
    pub napi: BTreeMap<(AttachTarget, QueueId), u32>,
    /// All of its queues.
    pub queues: BTreeSet<(AttachTarget, QueueId)>,
}

/// Receive or transmit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttachTarget {
    /// Receive.
    Rx,
    /// Transmit.
    Tx,
}

/// The queues that an interrupt serves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Served {
    /// The NIC.
    pub ifindex: Option<IfIndex>,
    /// Its queues.
    pub queues: BTreeSet<(AttachTarget, QueueId)>,
}

impl Served {
    /// Which of the two queues with a number.
    pub fn serves(&self) -> Serves {
        let has = |target: AttachTarget| self.queues.iter().any(|(w, _)| *w == target);
        match (has(AttachTarget::Rx), has(AttachTarget::Tx)) {
            (true, false) => Serves::Rx,
            (false, true) => Serves::Tx,
            _ => Serves::Both,
        }
    }

    /// The number of its queues, if it is the same for all of them.
    pub fn queue(&self) -> Option<QueueId> {
        let first = self.queues.first()?.1;
        self.queues.iter().all(|(_, queue)| *queue == first).then_some(first)
    }
}

impl Links {
    /// Adds the current assignments of the NICs.
    pub fn enter<'a>(&mut self, nics: impl IntoIterator<Item = &'a Nic>, readings: &Readings) {
        for nic in nics {
            let rx = nic.rx_queues.iter().map(|q| (AttachTarget::Rx, q.queue, q.irq, q.napi_id));
            let tx = nic.tx_queues.iter().map(|q| (AttachTarget::Tx, q.queue, q.irq, q.napi_id));
            let linked = self.nics.entry(nic.ifindex).or_default();
            linked.name.clone_from(&nic.name);
            linked.netns = nic.netns.inode;
            for (target, queue, irq, napi_id) in rx.chain(tx) {
                linked.queues.insert((target, queue));
                linked.napi.extend(napi_id.map(|id| ((target, queue), id)));
                let line = irq.and_then(|irq| Some((irq, readings.irqs.get(&irq)?)));
                if let Some((irq, line)) = line {
                    let served = self.by_irq.entry((irq, line.name.clone())).or_default();
                    if served.ifindex != Some(nic.ifindex) {
                        *served = Served { ifindex: Some(nic.ifindex), ..Served::default() };
                    }
                    served.queues.insert((target, queue));
                }
            }
        }
    }

    /// Whether the kernel reports the NAPI instance of each queue that has an interrupt.
    pub fn knows_napi(&self) -> bool {
        let mut served = self
            .by_irq
            .values()
            .flat_map(|served| served.queues.iter().map(move |queue| (served.ifindex, queue)));
        served.all(|(ifindex, queue)| {
            let nic = ifindex.and_then(|index| self.nics.get(&index));
            nic.is_some_and(|nic| nic.napi.contains_key(queue))
        })
    }
}
