//! The rows of a measurement. Input: counts by interrupt, queue and NAPI instance, and their assignments.
//! Output: queues, NICs and NAPI instances.

use super::links::{AttachTarget, LinkedNic, Links};
use super::readings::{Line, Readings};
use super::times::Instance;
use nearpath_model::irqs::{
    NapiPolls, NicBalance, OtherInterrupts, Polls, QueueInterrupts, Serves, imbalance,
};
use nearpath_model::{CpuId, IfIndex, IrqNumber, PacketSource, QueueId};
use std::collections::{BTreeMap, BTreeSet};

/// The input of the rows.
pub struct Counted<'a> {
    /// The kernel's counters.
    pub readings: &'a Readings,
    /// The assignments.
    pub links: &'a Links,
    /// NAPI instances, and whether they were observed.
    pub instances: Option<&'a [Instance]>,
    /// The source of packet counts by queue.
    pub sources: &'a BTreeMap<IfIndex, PacketSource>,
    /// CPUs in the per-CPU lists.
    pub cpus: usize,
    /// Duration.
    pub duration_s: f64,
}

/// Counts as a list with an element per CPU.
pub fn dense(counts: &BTreeMap<CpuId, u64>, cpus: usize) -> Vec<u64> {
    let mut list = vec![0; cpus];
    for (cpu, count) in counts {
        if let Some(element) = list.get_mut(cpu.0 as usize) {
            *element = *count;
        }
    }
    list
}

/// A row, and its queues.
struct Row {
    ifindex: IfIndex,
    queues: BTreeSet<(AttachTarget, QueueId)>,
    row: QueueInterrupts,
}

impl Counted<'_> {
    /// The queues, by NIC, and the distribution of their packets.
    pub fn queues(&self) -> (Vec<QueueInterrupts>, Vec<NicBalance>) {
        let mut rows = self.with_interrupts();
        rows.extend(self.without_interrupts(&rows));
        for row in &mut rows {
            let found = self.instances.map(|all| self.polls_of(row, all));
            row.row.napi = found.flatten();
        }
        for (index, nic) in &self.links.nics {
            self.enter_packets(*index, nic, rows.iter_mut().filter(|row| row.ifindex == *index));
        }
        rows.sort_by_key(|row| (row.ifindex, row.row.queue, row.row.direction, row.row.irq));
        let with_rows: BTreeSet<IfIndex> = rows.iter().map(|row| row.ifindex).collect();
        let balance = with_rows.into_iter().map(|index| self.balance(index, &rows)).collect();
        (rows.into_iter().map(|row| row.row).collect(), balance)
    }

    /// All interrupts of the table, with their counts.
    fn lines(&self) -> impl Iterator<Item = (IrqNumber, &Line)> {
        let former = self.readings.former.iter().map(|(irq, line)| (*irq, line));
        self.readings.irqs.iter().map(|(irq, line)| (*irq, line)).chain(former)
    }

    fn with_interrupts(&self) -> Vec<Row> {
        let row = |(irq, line): (IrqNumber, &Line)| {
            let served = self.links.by_irq.get(&(irq, line.name.clone()))?;
            let ifindex = served.ifindex?;
            let interrupts = line.counts.sum.values().sum();
            let row = QueueInterrupts {
                nic: self.links.nics.get(&ifindex)?.name.clone(),
                queue: served.queue(),
                direction: served.serves(),
                irq: Some(irq),
                name: Some(line.name.clone()).filter(|name| !name.is_empty()),
                per_cpu: dense(&line.counts.sum, self.cpus),
                interrupts,
                interrupts_per_s: self.per_s(interrupts),
                ..QueueInterrupts::default()
            };
            Some(Row { ifindex, queues: served.queues.clone(), row })
        };
        self.lines().filter_map(row).collect()
    }

    /// Queues without an interrupt that are polled or count packets, such as those of a veth.
    fn without_interrupts(&self, rows: &[Row]) -> Vec<Row> {
        let mut found: BTreeMap<(IfIndex, QueueId), BTreeSet<(AttachTarget, QueueId)>> =
            BTreeMap::new();
        for (index, nic) in &self.links.nics {
            let served = |queue: &&(AttachTarget, QueueId)| {
                rows.iter().any(|row| row.ifindex == *index && row.queues.contains(queue))
            };
            for queue in nic.queues.iter().filter(|queue| !served(queue)) {
                let polled = nic.napi.get(queue).is_some_and(|id| {
                    self.instances.unwrap_or_default().iter().any(|i| i.napi_id == *id)
                });
                if polled || self.packets(*index, *queue).is_some() {
                    found.entry((*index, queue.1)).or_default().insert(*queue);
                }
            }
        }
        let row = |((ifindex, queue), queues): (
            (IfIndex, QueueId),
            BTreeSet<(AttachTarget, QueueId)>,
        )| {
            let has = |target: AttachTarget| queues.contains(&(target, queue));
            let row = QueueInterrupts {
                nic: self.links.nics.get(&ifindex).map_or_else(String::new, |nic| nic.name.clone()),
                queue: Some(queue),
                direction: match (has(AttachTarget::Rx), has(AttachTarget::Tx)) {
                    (true, false) => Serves::Rx,
                    (false, true) => Serves::Tx,
                    _ => Serves::Both,
                },
                ..QueueInterrupts::default()
            };
            Row { ifindex, queues, row }
        };
        found.into_iter().map(row).collect()
    }

    /// Packets counted by a queue.
    fn packets(&self, index: IfIndex, (target, queue): (AttachTarget, QueueId)) -> Option<u64> {
        let [rx, tx] = self.readings.packets.get(&index)?;
        match target {
            AttachTarget::Rx => rx.counted(&queue),
            AttachTarget::Tx => tx.counted(&queue),
        }
    }

    /// Whether a NAPI instance serves a row: by its id if reported by the kernel, else by evidence.
    fn serves(&self, instance: &Instance, row: &Row) -> bool {
        let nic = self.links.nics.get(&row.ifindex);
        let mut ids = row.queues.iter().filter_map(|queue| nic?.napi.get(queue));
        if instance.napi_id != 0 && ids.any(|id| *id == instance.napi_id) {
            return true;
        }
        if row.row.irq.is_none() || instance.irq != row.row.irq {
            return false;
        }
        let Some(nic) = nic else { return false };
        let known = nic.napi.values().any(|id| *id == instance.napi_id);
        !known && self.is_of(instance, row.ifindex, nic)
    }

    fn is_of(&self, instance: &Instance, index: IfIndex, nic: &LinkedNic) -> bool {
        let netns = nic.netns.is_none_or(|inode| inode == u64::from(instance.netns));
        instance.ifindex == Some(index) && netns
    }

    fn polls_of(&self, row: &Row, instances: &[Instance]) -> Option<Polls> {
        let serving = instances.iter().filter(|instance| self.serves(instance, row));
        serving.map(Instance::polls).reduce(Polls::and)
    }

    /// Sets the packets of a NIC's rows: those counted by the NIC, else those delivered by its NAPI instances.
    fn enter_packets<'r>(
        &self,
        index: IfIndex,
        nic: &LinkedNic,
        rows: impl Iterator<Item = &'r mut Row>,
    ) {
        let rows: Vec<&mut Row> = rows.collect();
        if self.readings.packets.contains_key(&index) {
            for row in rows {
                let of = |target: AttachTarget| {
                    let queues = row.queues.iter().filter(|(w, _)| *w == target);
                    queues.filter_map(|queue| self.packets(index, *queue)).reduce(|a, b| a + b)
                };
                (row.row.rx_packets, row.row.tx_packets) =
                    (of(AttachTarget::Rx), of(AttachTarget::Tx));
            }
            return;
        }
        // A queue that was not polled has delivered nothing, if all polls are assigned to queues.
        let mut of_nic =
            self.instances.unwrap_or_default().iter().filter(|i| self.is_of(i, index, nic));
        let all_known =
            of_nic.all(|i| i.polls().work == 0 || rows.iter().any(|r| self.serves(i, r)));
        for row in rows {
            let idle = (all_known && self.instances.is_some()).then_some(0);
            let work = row.row.napi.map(|polls| polls.work).or(idle);
            let receives = row.row.direction != Serves::Tx;
            row.row.rx_packets = work.filter(|_| receives);
        }
    }

    fn balance(&self, index: IfIndex, rows: &[Row]) -> NicBalance {
        let rows = || rows.iter().filter(|row| row.ifindex == index).map(|row| &row.row);
        let counted = rows().any(|row| row.rx_packets.is_some() || row.tx_packets.is_some());
        let source = self.sources.get(&index).copied().unwrap_or(PacketSource::Napi);
        NicBalance {
            nic: self.links.nics.get(&index).map_or_else(String::new, |nic| nic.name.clone()),
            packets_from: counted.then_some(source),
            rx_imbalance: imbalance(rows().filter_map(|row| row.rx_packets)),
            tx_imbalance: imbalance(rows().filter_map(|row| row.tx_packets)),
        }
    }

    /// Interrupts of devices that occurred and do not belong to a queue.
    pub fn others(&self) -> Vec<OtherInterrupts> {
        let other = |(irq, line): &(IrqNumber, &Line)| {
            let of_queue = self.links.by_irq.contains_key(&(*irq, line.name.clone()));
            !of_queue && !line.counts.sum.is_empty()
        };
        let row = |(irq, line): (IrqNumber, &Line)| OtherInterrupts {
            irq,
            name: line.name.clone(),
            per_cpu: dense(&line.counts.sum, self.cpus),
        };
        self.lines().filter(other).map(row).collect()
    }

    /// NAPI instances of devices; with `only` those of the known NICs.
    pub fn napi(&self, only: bool) -> Vec<NapiPolls> {
        let rows = self.with_interrupts();
        let row = |instance: &Instance| {
            let index = instance.ifindex?;
            let nic = self.links.nics.get(&index).filter(|nic| self.is_of(instance, index, nic));
            if only && nic.is_none() {
                return None;
            }
            let by_id = nic.and_then(|nic| {
                let has_id =
                    |(_, id): &(_, &u32)| instance.napi_id != 0 && **id == instance.napi_id;
                nic.napi.iter().find(has_id).map(|((_, queue), _)| *queue)
            });
            let by_irq = || rows.iter().find(|row| self.serves(instance, row))?.row.queue;
            let polls = instance.per_cpu.iter().map(|(cpu, polls)| (*cpu, polls.polls)).collect();
            Some(NapiPolls {
                device: instance.device.clone(),
                netns: instance.netns.into(),
                napi_id: Some(instance.napi_id).filter(|id| *id != 0),
                queue: by_id.or_else(by_irq),
                polls: instance.polls(),
                per_cpu: dense(&polls, self.cpus),
            })
        };
        let mut found: Vec<_> = self.instances.unwrap_or_default().iter().filter_map(row).collect();
        found.sort_by(|a, b| {
            (&a.device, a.netns, a.queue, a.napi_id).cmp(&(&b.device, b.netns, b.queue, b.napi_id))
        });
        found
    }

    fn per_s(&self, count: u64) -> f64 {
        if self.duration_s > 0.0 { count as f64 / self.duration_s } else { 0.0 }
    }
}

#[cfg(test)]
mod tests;
