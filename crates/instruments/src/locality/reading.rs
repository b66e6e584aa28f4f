//! Reads the programs' maps: counters by CPU, and the matrix of CPU pairs.

use crate::kernel::{Mapped, pack};
use crate::layout::Layout;
use nearpath_model::locality::{CpuPairCount, Distances, Fates};
use nearpath_model::{CpuId, Direction, Place, Topology};

/// Sizes of `struct counters` and `struct cpu` in 64-bit words, and offsets of their fields.
const COUNTERS_WORDS: usize = 24;
const STARTED: usize = 0;
const DROPPED: usize = 1;
const COLLIDED: usize = 2;
const SAMPLED_OUT: usize = 3;
const NOT_ALLOCATED: usize = 4;
const RETURNED: usize = 5;
const RX: usize = 8;
const TX: usize = 16;
const CPU_WORDS: usize = 24;
/// The programs' value for an unknown core.
const UNKNOWN: u32 = u32::MAX;

/// Passes each CPU's location and shard to the programs.
pub fn prepare(cpus: &Mapped, layout: &Layout, topology: &Topology) {
    for (number, row) in layout.cpus.iter().enumerate() {
        let word = number * CPU_WORDS;
        cpus.set(word, pack(core_of(topology, number), row.llc));
        cpus.set(word + 1, pack(row.node, row.shard));
        cpus.set(word + 2, pack(row.place, 0));
    }
}

/// Identifies a core by its lowest CPU.
fn core_of(topology: &Topology, number: usize) -> u32 {
    let cpu = u32::try_from(number).ok().and_then(|number| topology.cpu(CpuId(number)));
    let core = cpu.and_then(|cpu| cpu.siblings.iter().chain([cpu.cpu]).min());
    core.map_or(UNKNOWN, |core| core.0)
}

/// The maps at one moment.
pub struct Reading<'a> {
    pub layout: &'a Layout,
    pub counters: &'a Mapped,
    pub places: &'a Mapped,
}

impl Reading<'_> {
    fn shards(&self) -> std::ops::Range<usize> {
        0..self.counters.len() / COUNTERS_WORDS
    }

    fn sum(&self, field: usize) -> u64 {
        self.shards().map(|shard| self.counters.get(shard * COUNTERS_WORDS + field)).sum()
    }

    /// Packets of one direction by distance.
    pub fn distances(&self, direction: Direction) -> Distances {
        let first = first_of(direction);
        Distances::of(std::array::from_fn(|distance| self.sum(first + distance)))
    }

    /// The fate of the packets, of which this many were freed.
    pub fn fates(&self, ended: u64) -> Fates {
        let (dropped, collided) = (self.sum(DROPPED), self.sum(COLLIDED));
        let not_allocated = self.sum(NOT_ALLOCATED);
        // Read last: a packet that starts in the meantime counts as in flight.
        let started = self.sum(STARTED);
        Fates {
            started,
            completed: ended.saturating_sub(dropped),
            dropped,
            abandoned: started.saturating_sub(ended.max(dropped) + collided + not_allocated),
            collided,
            not_allocated,
            returned: self.sum(RETURNED),
            sampled_out: self.sum(SAMPLED_OUT),
        }
    }

    /// Packets started so far.
    pub fn started(&self) -> u64 {
        self.sum(STARTED)
    }

    /// The matrix without empty entries, receive first.
    pub fn matrix(&self) -> Vec<CpuPairCount> {
        let mut found = Vec::new();
        for direction in [Direction::Rx, Direction::Tx] {
            for (from, &(from_cpu, from_node)) in self.layout.places.iter().enumerate() {
                for (to, &(to_cpu, to_node)) in self.layout.places.iter().enumerate() {
                    let count = self.count(direction, from, to);
                    if count > 0 {
                        let place = Place { from_cpu, to_cpu, from_node, to_node, count };
                        found.push(CpuPairCount { direction, place });
                    }
                }
            }
        }
        found
    }

    fn count(&self, direction: Direction, from: usize, to: usize) -> u64 {
        if from == to && self.layout.is_by_cpu() {
            return self.counters.get(to * COUNTERS_WORDS + first_of(direction));
        }
        let rows = self.layout.places.len();
        let direction = usize::from(direction == Direction::Tx);
        self.places.get((direction * rows + from) * rows + to)
    }
}

fn first_of(direction: Direction) -> usize {
    match direction {
        Direction::Rx => RX,
        Direction::Tx => TX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_add_up_to_packets() {
        let all = Distances::of([1, 2, 3, 4, 5, 6]);
        assert_eq!((all.packets, all.same_cpu, all.other_node, all.unknown), (21, 1, 5, 6));
        let since = all.since(&Distances::of([1, 1, 1, 1, 1, 1]));
        assert_eq!(since, Distances::of([0, 1, 2, 3, 4, 5]));
        assert_eq!(Distances::default().local(), None);
        assert_eq!(Distances::of([3, 0, 1, 0, 0, 0]).local(), Some(0.75));
    }
}
