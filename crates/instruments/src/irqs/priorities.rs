//! Reads the map of priorities (`bpf/priorities.h`).

use super::probes::{Loaded, PRIORITIES, PriorityKey};
use super::rows::dense;
use libbpf_rs::{MapCore, MapFlags};
use nearpath_model::irqs::{Priorities, PriorityField, PriorityPackets};
use nearpath_model::{CpuId, IfIndex, QueueId};
use std::collections::BTreeMap;
use std::mem::offset_of;

/// `NO_PRIORITY` of `bpf/priorities.h`.
const NO_PRIORITY: u16 = 255;

/// The packets so far, of the devices that `name` knows by number and namespace; `None` if they are not observed.
pub fn read(
    loaded: &Loaded,
    by: PriorityField,
    cpus: usize,
    name: impl Fn(IfIndex, u64) -> Option<String>,
) -> Option<Priorities> {
    if !loaded.observes(PRIORITIES) {
        return None;
    }
    let map = &loaded.skeleton.maps.priorities;
    let value = |key: Vec<u8>| Some((key.clone(), map.lookup(&key, MapFlags::ANY).ok()??));
    Some(Priorities { by, rows: rows(map.keys().filter_map(value), cpus, name) })
}

/// Packets that did not fit in the map.
pub fn lost(loaded: &Loaded) -> u64 {
    loaded.skeleton.maps.bss_data.as_deref().map_or(0, |variables| variables.priorities_lost)
}

fn rows(
    entries: impl Iterator<Item = (Vec<u8>, Vec<u8>)>,
    cpus: usize,
    name: impl Fn(IfIndex, u64) -> Option<String>,
) -> Vec<PriorityPackets> {
    let mut found: BTreeMap<Row, BTreeMap<CpuId, u64>> = BTreeMap::new();
    for (key, value) in entries {
        let Some((row, cpu)) = parse(&key, &name) else { continue };
        let packets = value.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
        let count = found.entry(row).or_default().entry(cpu).or_default();
        *count = count.saturating_add(packets);
    }
    let row = |((nic, priority, queue), counts): (Row, BTreeMap<CpuId, u64>)| PriorityPackets {
        nic,
        priority,
        queue,
        packets: counts.values().fold(0, |sum, &count| sum.saturating_add(count)),
        per_cpu: dense(&counts, cpus),
    };
    found.into_iter().map(row).collect()
}

/// The NIC, the priority, the queue.
type Row = (String, Option<u8>, Option<QueueId>);

fn parse(key: &[u8], name: impl Fn(IfIndex, u64) -> Option<String>) -> Option<(Row, CpuId)> {
    let word = |at: usize| key.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
    let half = |at: usize| key.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes));
    let ifindex = IfIndex(word(offset_of!(PriorityKey, ifindex))?);
    let nic = name(ifindex, word(offset_of!(PriorityKey, netns))?.into())?;
    let priority = half(offset_of!(PriorityKey, priority))?;
    let priority = Some(priority).filter(|&priority| priority != NO_PRIORITY);
    let queue = half(offset_of!(PriorityKey, queue))?.checked_sub(1);
    let priority = priority.and_then(|priority| u8::try_from(priority).ok());
    let row = (nic, priority, queue.map(|queue| QueueId(queue.into())));
    Some((row, CpuId(word(offset_of!(PriorityKey, cpu))?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ifindex: u32, cpu: u32, queue: u16, priority: u16, n: u64) -> (Vec<u8>, Vec<u8>) {
        let words = [ifindex, 77, cpu].map(u32::to_ne_bytes).concat();
        let halves = [queue, priority].map(u16::to_ne_bytes).concat();
        ([words, halves].concat(), n.to_ne_bytes().to_vec())
    }

    #[test]
    fn rows_are_by_priority_and_queue() {
        let name =
            |index: IfIndex, netns| (index == IfIndex(2) && netns == 77).then(|| "eth0".to_owned());
        let entries = [
            entry(2, 3, 0, 3, 5),
            entry(2, 1, 2, 255, 7),
            entry(2, 0, 2, 255, 1),
            entry(9, 0, 1, 0, 100),
        ];
        let rows = rows(entries.into_iter(), 4, name);
        let row = |priority, queue, packets, per_cpu: [u64; 4]| PriorityPackets {
            nic: "eth0".into(),
            priority,
            queue,
            packets,
            per_cpu: per_cpu.to_vec(),
        };
        assert_eq!(
            rows,
            [row(None, Some(QueueId(1)), 8, [1, 7, 0, 0]), row(Some(3), None, 5, [0, 0, 0, 5])]
        );
    }

    #[test]
    fn the_key_has_the_layout_of_the_map() {
        assert_eq!(size_of::<PriorityKey>(), 16);
        assert_eq!(parse(&[0; 15], |_, _| Some(String::new())), None);
    }
}
