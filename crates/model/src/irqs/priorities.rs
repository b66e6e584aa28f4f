//! Packets by priority: which CPU the stack received them on, from which queue. Only if requested.

use crate::{CpuId, QueueId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a packet's priority is read from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PriorityField {
    /// The priority of its outermost VLAN tag (PCP), 0 to 7.
    #[default]
    Pcp,
    /// The DSCP of its IP header, 0 to 63.
    Dscp,
}

/// The matrix of priorities, queues and CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Priorities {
    /// What the priorities are.
    pub by: PriorityField,
    /// Received packets, by NIC, priority and queue.
    pub rows: Vec<PriorityPackets>,
}

/// The received packets of a priority from a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PriorityPackets {
    /// The NIC.
    pub nic: String,
    /// The priority; `None` for packets without one (no VLAN tag, no IP header).
    pub priority: Option<u8>,
    /// The receive queue; `None` if the driver did not record it, or XDP moved the packet to its CPU.
    pub queue: Option<QueueId>,
    /// The packets.
    pub packets: u64,
    /// The same by the CPU on which the stack received them, behind RPS and XDP.
    pub per_cpu: Vec<u64>,
}

/// Where the packets of a priority arrive on a NIC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Separation<'a> {
    /// The NIC.
    pub nic: &'a str,
    /// The priority.
    pub priority: u8,
    /// Its packets.
    pub packets: u64,
    /// The CPU with most of them.
    pub cpu: CpuId,
    /// Its packets on other CPUs.
    pub elsewhere: u64,
    /// Packets of the same NIC with another priority, or none, on that CPU.
    pub others_there: u64,
}

impl Priorities {
    /// For each NIC and priority, whether it has a CPU to itself.
    pub fn separations(&self) -> Vec<Separation<'_>> {
        let mut by_cpu: BTreeMap<(&str, u8), Vec<u64>> = BTreeMap::new();
        let mut all: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for row in &self.rows {
            add(all.entry(&row.nic).or_default(), &row.per_cpu);
            if let Some(priority) = row.priority {
                add(by_cpu.entry((&row.nic, priority)).or_default(), &row.per_cpu);
            }
        }
        let separation = |((nic, priority), counts): ((&'_ str, u8), Vec<u64>)| {
            let packets = sum(&counts);
            // Of equal ones the first.
            let most = counts.iter().enumerate().rev().max_by_key(|(_, count)| **count)?;
            let there = all.get(nic).and_then(|all| all.get(most.0)).copied().unwrap_or(0);
            let nic = self.rows.iter().find(|row| row.nic == nic)?.nic.as_str();
            (packets > 0).then(|| Separation {
                nic,
                priority,
                packets,
                cpu: CpuId(u32::try_from(most.0).unwrap_or(u32::MAX)),
                elsewhere: packets.saturating_sub(*most.1),
                others_there: there.saturating_sub(*most.1),
            })
        };
        by_cpu.clone().into_iter().filter_map(separation).collect()
    }

    /// What was received since an earlier reading; rows without packets are omitted.
    #[must_use]
    pub fn since(&self, earlier: Option<&Self>) -> Self {
        let earlier = earlier.map_or(&[][..], |earlier| &earlier.rows);
        let row = |row: &PriorityPackets| {
            let key = |row: &PriorityPackets| (row.nic.clone(), row.priority, row.queue);
            let old = earlier.iter().find(|old| key(old) == key(row));
            let was = |cpu: usize| old.and_then(|old| old.per_cpu.get(cpu)).copied().unwrap_or(0);
            let counts = row.per_cpu.iter().enumerate();
            let per_cpu: Vec<u64> =
                counts.map(|(cpu, &count)| count.saturating_sub(was(cpu))).collect();
            let packets = sum(&per_cpu);
            (packets > 0).then(|| PriorityPackets { packets, per_cpu, ..row.clone() })
        };
        Self { by: self.by, rows: self.rows.iter().filter_map(row).collect() }
    }
}

fn sum(counts: &[u64]) -> u64 {
    counts.iter().fold(0, |sum, &count| sum.saturating_add(count))
}

fn add(sums: &mut Vec<u64>, counts: &[u64]) {
    if sums.len() < counts.len() {
        sums.resize(counts.len(), 0);
    }
    for (sum, count) in sums.iter_mut().zip(counts) {
        *sum = sum.saturating_add(*count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(priority: Option<u8>, queue: Option<u32>, per_cpu: &[u64]) -> PriorityPackets {
        PriorityPackets {
            nic: "eth0".into(),
            priority,
            queue: queue.map(QueueId),
            packets: sum(per_cpu),
            per_cpu: per_cpu.to_vec(),
        }
    }

    fn of(rows: Vec<PriorityPackets>) -> Priorities {
        Priorities { by: PriorityField::Pcp, rows }
    }

    #[test]
    fn stray_packets_are_counted_both_ways() {
        let m = of(vec![
            row(None, Some(0), &[70, 0, 0, 1]),
            row(Some(0), Some(1), &[0, 30]),
            row(Some(3), None, &[0, 0, 0, 90]),
            row(Some(3), Some(3), &[0, 5, 0, 5]),
        ]);
        let found = m.separations();
        let of_3 = &found[1];
        assert_eq!((of_3.nic, of_3.priority, of_3.packets, of_3.cpu), ("eth0", 3, 100, CpuId(3)));
        assert_eq!((of_3.elsewhere, of_3.others_there), (5, 1));
        let of_0 = &found[0];
        assert_eq!((of_0.cpu, of_0.elsewhere, of_0.others_there), (CpuId(1), 0, 5));
        assert_eq!(found.len(), 2, "packets without a tag have no priority");
        // Another NIC's packets are not others of this one.
        let mut two = m.clone();
        two.rows
            .push(PriorityPackets { nic: "eth1".into(), ..row(Some(5), Some(0), &[0, 0, 0, 9]) });
        assert_eq!(two.separations()[1].others_there, 1);
        assert!(of(vec![]).separations().is_empty());
    }

    #[test]
    fn intervals_have_what_came_in_them() {
        let first = of(vec![row(Some(3), Some(0), &[1, 2])]);
        let second = of(vec![row(Some(3), Some(0), &[1, 5]), row(Some(4), Some(0), &[0, 1])]);
        let rows = second.since(Some(&first)).rows;
        assert_eq!(rows, [row(Some(3), Some(0), &[0, 3]), row(Some(4), Some(0), &[0, 1])]);
        assert_eq!(second.since(None), second);
        assert!(first.since(Some(&first)).rows.is_empty());
    }
}
