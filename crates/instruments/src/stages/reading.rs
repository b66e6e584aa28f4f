//! The programs' maps read back into a measurement.

use super::histogram::{BUCKETS, bounds, middle, percentile};
use super::layout::Layout;
use super::maps::Mapped;
use super::table::{Probe, spans, stage};
use crate::{Packets, Place, Span};

/// 64-bit words of a `struct histogram` and where its fields are.
const HISTOGRAM_WORDS: usize = 8 + BUCKETS;
const MIN: usize = 0;
const MAX: usize = 1;
const OTHER_CPU: usize = 2;
const OTHER_LLC: usize = 3;
const OTHER_NODE: usize = 4;
const FIRST_BUCKET: usize = 8;
/// The same of `struct counters`, `struct cpu` and `struct packet`.
const COUNTERS_WORDS: usize = 8;
const UNEXPECTED: usize = 6;
const CPU_WORDS: usize = 16;
const CPU_NODE_LLC: usize = 12;
const CPU_SHARD_PLACE: usize = 13;
const PACKET_WORDS: usize = 4;
const PACKET_STATE: usize = 2;

/// Tells the programs where each CPU counts, and makes every minimum the largest number.
pub fn prepare(cpus: &Mapped, histograms: &Mapped, layout: &Layout) {
    for (number, row) in layout.cpus.iter().enumerate() {
        let word = number * CPU_WORDS;
        cpus.set(word + CPU_NODE_LLC, pack(row.node, row.llc));
        cpus.set(word + CPU_SHARD_PLACE, pack(row.shard, row.place));
    }
    for histogram in 0..histograms.len() / HISTOGRAM_WORDS {
        histograms.set(histogram * HISTOGRAM_WORDS + MIN, u64::MAX);
    }
}

/// Two 32-bit fields that stand one after the other, as one word.
fn pack(first: u32, second: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// Whether packets can be begun by this probe.
pub fn begins_a_path(probe: &Probe) -> bool {
    ["napi_gro_receive", "netif_rx", "netif_receive_skb", "net_dev_queue"]
        .iter()
        .any(|stage| probe.stages.contains(stage))
}

/// The counters summed over all CPUs.
pub fn counters(map: &Mapped) -> Packets {
    let sum = |field: usize| {
        (0..map.len() / COUNTERS_WORDS).map(|s| map.get(s * COUNTERS_WORDS + field)).sum()
    };
    Packets {
        started: sum(0),
        completed: sum(1),
        dropped: sum(2),
        abandoned: sum(3),
        collided: sum(4),
        sampled_out: sum(5),
    }
}

/// The maps at one moment.
pub struct Reading<'a> {
    pub layout: &'a Layout,
    pub packets: &'a Mapped,
    pub counters: &'a Mapped,
    pub histograms: &'a Mapped,
    pub places: &'a Mapped,
}

impl Reading<'_> {
    /// What became of the packets; those still on the way are abandoned.
    pub fn packets(&self) -> Packets {
        let mut packets = counters(self.counters);
        packets.abandoned += self.under_way();
        packets
    }

    /// Packets in the table that are followed: state 1 or 2 in the byte after the last stage.
    fn under_way(&self) -> u64 {
        let slots = 0..self.packets.len() / PACKET_WORDS;
        let state = |slot| self.packets.get(slot * PACKET_WORDS + PACKET_STATE).to_ne_bytes()[5];
        slots.filter(|&slot| matches!(state(slot), 1 | 2)).count() as u64
    }

    /// Events between stages that no path joins.
    pub fn unexpected(&self) -> u64 {
        let shards = 0..self.counters.len() / COUNTERS_WORDS;
        shards.map(|shard| self.counters.get(shard * COUNTERS_WORDS + UNEXPECTED)).sum()
    }

    /// All spans with a sample, in the order of the path.
    pub fn spans(&self) -> Vec<Span> {
        let pairs = spans();
        let count = pairs.len();
        pairs
            .into_iter()
            .enumerate()
            .filter_map(|(number, pair)| self.span(number, count, pair))
            .collect()
    }

    fn span(&self, number: usize, count: usize, (from, to): (usize, usize)) -> Option<Span> {
        let (from, to) = (stage(from)?, stage(to)?);
        let mut sum = [0u64; HISTOGRAM_WORDS];
        let (mut min, mut max) = (u64::MAX, 0);
        for shard in 0..self.layout.shards as usize {
            let first = (shard * count + number) * HISTOGRAM_WORDS;
            min = min.min(self.histograms.get(first + MIN));
            max = max.max(self.histograms.get(first + MAX));
            for (word, total) in sum.iter_mut().enumerate().skip(OTHER_CPU) {
                *total += self.histograms.get(first + word);
            }
        }
        let buckets = &sum[FIRST_BUCKET..];
        let samples: u64 = buckets.iter().sum();
        if samples == 0 {
            return None;
        }
        let share = |crossings: u64| (crossings as f64 / samples as f64).min(1.0);
        let filled = || buckets.iter().enumerate().filter(|&(_, &n)| n > 0);
        Some(Span {
            direction: from.direction,
            from: from.name.to_owned(),
            to: to.name.to_owned(),
            count: samples,
            min_ns: Some(min),
            p50_ns: within(percentile(buckets, 0.5), min, max),
            p90_ns: within(percentile(buckets, 0.9), min, max),
            p99_ns: within(percentile(buckets, 0.99), min, max),
            p999_ns: within(percentile(buckets, 0.999), min, max),
            max_ns: Some(max),
            total_ns: filled()
                .map(|(bucket, &n)| middle(bucket).clamp(min, max.max(min)).saturating_mul(n))
                .fold(0, u64::saturating_add),
            other_cpu: Some(share(sum[OTHER_CPU])),
            other_llc: self.layout.knows_llcs.then(|| share(sum[OTHER_LLC])),
            other_node: self.layout.knows_nodes.then(|| share(sum[OTHER_NODE])),
            buckets: filled().map(|(bucket, &n)| (bounds(bucket).1, n)).collect(),
            places: self.places_of(number),
        })
    }

    fn places_of(&self, span: usize) -> Vec<Place> {
        let rows = self.layout.places.len();
        let mut places = Vec::new();
        for (from, &(from_cpu, from_node)) in self.layout.places.iter().enumerate() {
            for (to, &(to_cpu, to_node)) in self.layout.places.iter().enumerate() {
                let count = self.places.get((span * rows + from) * rows + to);
                if count > 0 {
                    places.push(Place { from_cpu, to_cpu, from_node, to_node, count });
                }
            }
        }
        places
    }
}

/// A percentile is known to its bucket only; the exact extremes bound it.
fn within(percentile: Option<u64>, min: u64, max: u64) -> Option<u64> {
    percentile.map(|ns| ns.clamp(min, max.max(min)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offsets above against the structures in C, counted in fields of 8 bytes.
    #[test]
    fn words_are_where_the_programs_put_them() {
        let inflight = include_str!("../../../../bpf/inflight.h");
        let cpu = &inflight[inflight.find("struct cpu {").unwrap()..];
        let fields: Vec<_> = cpu.lines().skip(1).take_while(|l| !l.starts_with('}')).collect();
        assert!(fields[CPU_NODE_LLC].trim().starts_with("u32 node, llc;"));
        assert!(fields[CPU_SHARD_PLACE].trim().starts_with("u32 shard;"));
        assert!(fields[CPU_SHARD_PLACE + 1].trim().starts_with("u32 place;"));
        let counters = &inflight[inflight.find("struct counters {").unwrap()..];
        let names = counters.lines().nth(1).unwrap().trim();
        assert_eq!(
            names,
            "u64 started, completed, dropped, abandoned, collided, sampled_out, unexpected;"
        );
        assert_eq!(names.split(',').position(|n| n.contains("unexpected")), Some(UNEXPECTED));
    }

    #[test]
    fn fields_are_packed_in_their_order() {
        let bytes = pack(1, 2).to_ne_bytes();
        assert_eq!(u32::from_ne_bytes(bytes[..4].try_into().unwrap()), 1);
        assert_eq!(u32::from_ne_bytes(bytes[4..].try_into().unwrap()), 2);
    }
}
