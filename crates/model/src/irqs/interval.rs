//! The difference between two readings of one measurement. Input: both readings. Output: a measurement of the
//! interval, in the same form. All intervals add up to the whole.

use super::imbalance;
use super::{
    CpuInterrupts, IrqMeasurement, NapiPolls, NicBalance, OtherInterrupts, Polls, QueueInterrupts,
};
use std::collections::BTreeMap;

impl IrqMeasurement {
    /// The change since an earlier reading. Costs and unknowns are those of the whole; entries of `irqs`,
    /// `arch_irqs` and `napi` without activity are omitted, as in the whole.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let duration_s = self.duration_s - earlier.duration_s;
        let queues: Vec<QueueInterrupts> = self
            .queues
            .iter()
            .map(|queue| queue.since(earlier.queues.iter().find(|old| old.is(queue)), duration_s))
            .collect();
        let nics = self.nics.iter().map(|nic| balance(nic, &queues)).collect();
        Self {
            schema: self.schema,
            duration_s,
            nics,
            queues,
            irqs: others_since(&self.irqs, &earlier.irqs),
            arch_irqs: self
                .arch_irqs
                .iter()
                .filter_map(|row| {
                    let old = earlier.arch_irqs.iter().find(|old| old.name == row.name);
                    let per_cpu = list(&row.per_cpu, old.map(|old| &old.per_cpu[..]));
                    came(&per_cpu).then(|| super::ArchInterrupts { per_cpu, ..row.clone() })
                })
                .collect(),
            softirqs: self
                .softirqs
                .iter()
                .map(|(vector, runs)| {
                    let old = earlier.softirqs.get(vector).map(|old| &old[..]);
                    (vector.clone(), list(runs, old))
                })
                .collect(),
            cpus: self
                .cpus
                .iter()
                .map(|cpu| cpu.since(earlier.cpus.iter().find(|old| old.cpu == cpu.cpu)))
                .collect(),
            napi: napi_since(&self.napi, &earlier.napi),
            priorities: self.priorities.as_ref().map(|now| now.since(earlier.priorities.as_ref())),
            events_lost: self.events_lost.saturating_sub(earlier.events_lost),
            cost: self.cost,
            unknown: self.unknown.clone(),
        }
    }
}

impl QueueInterrupts {
    fn is(&self, other: &Self) -> bool {
        let of = |queue: &Self| (queue.queue, queue.direction, queue.irq);
        (&self.nic, of(self), &self.name) == (&other.nic, of(other), &other.name)
    }

    fn since(&self, earlier: Option<&Self>, duration_s: f64) -> Self {
        let per_cpu = list(&self.per_cpu, earlier.map(|old| &old.per_cpu[..]));
        let interrupts = self.interrupts.saturating_sub(earlier.map_or(0, |old| old.interrupts));
        let counted = |of: fn(&Self) -> Option<u64>| more(of(self), earlier.and_then(of));
        let per_s = if duration_s > 0.0 { interrupts as f64 / duration_s } else { 0.0 };
        Self {
            per_cpu,
            interrupts,
            interrupts_per_s: per_s,
            rx_packets: counted(|queue| queue.rx_packets),
            tx_packets: counted(|queue| queue.tx_packets),
            napi: self.napi.map(|polls| polls.since(earlier.and_then(|old| old.napi))),
            ..self.clone()
        }
    }
}

impl CpuInterrupts {
    /// Only the backlog at the end of the interval is known.
    fn since(&self, earlier: Option<&Self>) -> Self {
        let counted = |of: fn(&Self) -> Option<u64>| more(of(self), earlier.and_then(of));
        let times = |of: fn(&Self) -> &BTreeMap<String, u64>| {
            let was = |kind: &String| earlier.and_then(|old| of(old).get(kind)).copied();
            let passed = |(kind, ns): (&String, &u64)| {
                (kind.clone(), ns.saturating_sub(was(kind).unwrap_or(0)))
            };
            of(self).iter().map(passed).collect()
        };
        Self {
            interrupts: self.interrupts.saturating_sub(earlier.map_or(0, |old| old.interrupts)),
            irq_ns: counted(|cpu| cpu.irq_ns),
            softirq_ns: counted(|cpu| cpu.softirq_ns),
            hard_ns: times(|cpu| &cpu.hard_ns),
            soft_ns: times(|cpu| &cpu.soft_ns),
            processed: counted(|cpu| cpu.processed),
            dropped: counted(|cpu| cpu.dropped),
            time_squeeze: counted(|cpu| cpu.time_squeeze),
            received_rps: counted(|cpu| cpu.received_rps),
            flow_limit: counted(|cpu| cpu.flow_limit),
            backlog_max: self.backlog,
            backlog_polls: self
                .backlog_polls
                .map(|polls| polls.since(earlier.and_then(|old| old.backlog_polls))),
            ..self.clone()
        }
    }
}

impl Polls {
    fn since(self, earlier: Option<Self>) -> Self {
        let earlier = earlier.unwrap_or_default();
        Self {
            polls: self.polls.saturating_sub(earlier.polls),
            work: self.work.saturating_sub(earlier.work),
            budget: self.budget.saturating_sub(earlier.budget),
            full_polls: self.full_polls.saturating_sub(earlier.full_polls),
        }
    }
}

/// An interrupt's number may have been reassigned to another device in the meantime; the name shows that.
fn others_since(now: &[OtherInterrupts], earlier: &[OtherInterrupts]) -> Vec<OtherInterrupts> {
    let row = |row: &OtherInterrupts| {
        let same = |old: &&OtherInterrupts| (old.irq, &old.name) == (row.irq, &row.name);
        let per_cpu = list(&row.per_cpu, earlier.iter().find(same).map(|old| &old.per_cpu[..]));
        came(&per_cpu).then(|| OtherInterrupts { per_cpu, ..row.clone() })
    };
    now.iter().filter_map(row).collect()
}

/// Instances without an id are distinguished by their position among those of their device. The queue of an
/// instance may have become known in the meantime.
fn napi_since(now: &[NapiPolls], earlier: &[NapiPolls]) -> Vec<NapiPolls> {
    let row = |row: &NapiPolls| {
        let same = |old: &&NapiPolls| {
            (&old.device, old.netns, old.napi_id) == (&row.device, row.netns, row.napi_id)
                && (row.napi_id.is_some() || old.queue == row.queue)
        };
        let old = earlier.iter().find(same);
        let polls = row.polls.since(old.map(|old| old.polls));
        let per_cpu = list(&row.per_cpu, old.map(|old| &old.per_cpu[..]));
        (polls.polls > 0).then(|| NapiPolls { polls, per_cpu, ..row.clone() })
    };
    now.iter().filter_map(row).collect()
}

fn balance(nic: &NicBalance, queues: &[QueueInterrupts]) -> NicBalance {
    let packets = |of: fn(&QueueInterrupts) -> Option<u64>| {
        imbalance(queues.iter().filter(|queue| queue.nic == nic.nic).filter_map(of))
    };
    NicBalance {
        rx_imbalance: packets(|queue| queue.rx_packets),
        tx_imbalance: packets(|queue| queue.tx_packets),
        ..nic.clone()
    }
}

/// The increase of a count that is known now; one that was unknown before had counted nothing.
fn more(now: Option<u64>, earlier: Option<u64>) -> Option<u64> {
    Some(now?.saturating_sub(earlier.unwrap_or(0)))
}

fn list(now: &[u64], earlier: Option<&[u64]>) -> Vec<u64> {
    let was = |cpu: usize| earlier.and_then(|old| old.get(cpu)).copied().unwrap_or(0);
    now.iter().enumerate().map(|(cpu, count)| count.saturating_sub(was(cpu))).collect()
}

fn came(per_cpu: &[u64]) -> bool {
    per_cpu.iter().any(|&count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CpuId, IrqNumber, QueueId};

    /// A reading after this many seconds, with the same activity in each second.
    fn reading(seconds: u64) -> IrqMeasurement {
        let polls =
            Polls { polls: 2 * seconds, work: 8 * seconds, budget: 128 * seconds, full_polls: 0 };
        let queue = |number: u32, packets: u64| QueueInterrupts {
            nic: "eth0".to_owned(),
            queue: Some(QueueId(number)),
            irq: Some(IrqNumber(40 + number)),
            per_cpu: vec![seconds, 3 * seconds],
            interrupts: 4 * seconds,
            rx_packets: Some(packets * seconds),
            napi: (seconds > 1).then_some(polls),
            ..QueueInterrupts::default()
        };
        let cpu = CpuInterrupts {
            interrupts: 4 * seconds,
            irq_ns: Some(70 * seconds),
            soft_ns: [("NET_RX".to_owned(), 50 * seconds)].into(),
            backlog: Some(7 - seconds),
            backlog_max: Some(6),
            ..CpuInterrupts::new(CpuId(1))
        };
        let other = |irq, per_cpu| OtherInterrupts {
            irq: IrqNumber(irq),
            name: "disk".to_owned(),
            per_cpu,
        };
        IrqMeasurement {
            duration_s: seconds as f64,
            queues: vec![queue(0, 9), queue(1, 1)],
            nics: vec![NicBalance {
                nic: "eth0".to_owned(),
                packets_from: None,
                rx_imbalance: Some(1.0),
                tx_imbalance: None,
            }],
            irqs: vec![other(7, vec![0, 5]), other(8, vec![seconds, 0])],
            softirqs: [("NET_RX".to_owned(), vec![0, 10 * seconds])].into(),
            cpus: vec![cpu],
            events_lost: seconds,
            ..IrqMeasurement::default()
        }
    }

    #[test]
    fn an_interval_contains_its_activity_only() {
        let interval = reading(3).since(&reading(1));
        assert!((interval.duration_s - 2.0).abs() < 1e-9);
        let queue = &interval.queues[0];
        assert_eq!((&queue.per_cpu[..], queue.interrupts), (&[2, 6][..], 8));
        assert!((queue.interrupts_per_s - 4.0).abs() < 1e-9);
        assert_eq!(queue.rx_packets, Some(18));
        // Became known as the queue's in this interval.
        assert_eq!(queue.napi.unwrap().polls, 6);
        assert!((interval.nics[0].rx_imbalance.unwrap() - 1.8).abs() < 1e-9);
        // Entries without activity are omitted.
        assert_eq!(interval.irqs.iter().map(|irq| irq.irq.0).collect::<Vec<_>>(), [8]);
        assert_eq!(interval.softirqs["NET_RX"], [0, 20]);
        let cpu = &interval.cpus[0];
        assert_eq!((cpu.interrupts, cpu.irq_ns, cpu.soft_ns["NET_RX"]), (8, Some(140), 100));
        assert_eq!((cpu.backlog, cpu.backlog_max, cpu.processed), (Some(4), Some(4), None));
        assert_eq!(interval.events_lost, 2);
    }

    #[test]
    fn intervals_add_up() {
        let readings: Vec<IrqMeasurement> = (1..=4).map(reading).collect();
        let first = readings[0].since(&IrqMeasurement::default());
        let rest = readings.windows(2).map(|two| two[1].since(&two[0]));
        let sum: u64 = std::iter::once(first).chain(rest).map(|i| i.queues[0].interrupts).sum();
        assert_eq!(sum, readings[3].queues[0].interrupts);
    }
}
