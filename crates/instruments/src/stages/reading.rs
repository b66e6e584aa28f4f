//! The programs' maps read back into a measurement.

use super::group::SpanOfWhole;
use super::histogram::{BUCKETS, percentile};
use super::samples::{FIRST_BUCKET, HISTOGRAM_WORDS, MIN, Samples};
use super::table::{SPANS_MAX, STAGES_MAX, spans, stage};
use crate::kernel::{Mapped, Probe, pack};
use crate::layout::Layout;
use crate::{Packets, Place, Span};

/// 64-bit words of `struct counters` and `struct cpu`, and where their fields are.
const COUNTERS_WORDS: usize = 8;
const UNEXPECTED: usize = 5;
const OUTLIERS_LOST: usize = 6;
const TRAILS_LOST: usize = 7;
const CPU_WORDS: usize = 32;
const CPU_NODE_LLC: usize = 12;
const CPU_SHARD_PLACE: usize = 5;

/// Packets beyond this share of a span are slow by themselves.
const SLOWEST: f64 = 0.9999;
/// What the programs take for a pair of stages that no path joins.
const NO_SPAN: u64 = u32::MAX as u64;

/// Tells the programs where each CPU counts.
pub fn prepare_cpus(cpus: &Mapped, layout: &Layout) {
    for (number, row) in layout.cpus.iter().enumerate() {
        let word = number * CPU_WORDS;
        cpus.set(word + CPU_NODE_LLC, pack(row.node, row.llc));
        cpus.set(word + CPU_SHARD_PLACE, pack(row.shard, row.place));
    }
}

/// Tells the programs which stages no path joins, and makes every minimum the largest number.
pub fn prepare(span_of: &Mapped, histograms: &Mapped) {
    for pair in 0..span_of.len() {
        span_of.set(pair, NO_SPAN);
    }
    for (from, to) in spans() {
        span_of.set(from * STAGES_MAX + to, 0);
    }
    for histogram in 0..histograms.len() / HISTOGRAM_WORDS {
        histograms.set(histogram * HISTOGRAM_WORDS + MIN, u64::MAX);
    }
}

/// Whether packets can be begun by this probe.
pub fn begins_a_path(probe: &Probe) -> bool {
    ["napi_gro_receive", "netif_rx", "netif_receive_skb", "net_dev_queue"]
        .iter()
        .any(|stage| probe.stages.contains(stage))
}

/// The counters summed over all CPUs. Packets that ended in no way that was seen are what is
/// left of those that started.
pub fn packets(counters: &Mapped) -> Packets {
    let shards = || 0..counters.len() / COUNTERS_WORDS;
    let sum =
        |field: usize| shards().map(|s| counters.get(s * COUNTERS_WORDS + field)).sum::<u64>();
    let (completed, dropped, collided) = (sum(1), sum(2), sum(3));
    // Read last: a packet that starts meanwhile is one under way.
    let started = sum(0);
    Packets {
        started,
        completed,
        dropped,
        abandoned: started.saturating_sub(completed + dropped + collided),
        collided,
        sampled_out: sum(4),
    }
}

/// The maps at one moment.
pub struct Reading<'a> {
    pub layout: &'a Layout,
    pub counters: &'a Mapped,
    pub span_of: &'a Mapped,
    pub histograms: &'a Mapped,
    pub places: &'a Mapped,
}

impl Reading<'_> {
    /// Events between stages that no path joins, or for which there was no span left.
    pub fn unexpected(&self) -> u64 {
        self.sum(UNEXPECTED)
    }

    /// Slow packets that there was no room to send up.
    pub fn outliers_lost(&self) -> u64 {
        self.sum(OUTLIERS_LOST)
    }

    /// Paths of slow packets that there was no room to send up.
    pub fn trails_lost(&self) -> u64 {
        self.sum(TRAILS_LOST)
    }

    fn sum(&self, counter: usize) -> u64 {
        let shards = 0..self.counters.len() / COUNTERS_WORDS;
        shards.map(|shard| self.counters.get(shard * COUNTERS_WORDS + counter)).sum()
    }

    /// Sends up, from now on, the slowest 1 in 10,000 of each span that has had so many packets.
    pub fn follow_slowest(&self, slow_ns: &Mapped) {
        for (from, to) in spans() {
            let number = self.span_of.get(from * STAGES_MAX + to);
            let Some(span) = usize::try_from(number).ok().and_then(|n| n.checked_sub(1)) else {
                continue;
            };
            if span < SPANS_MAX
                && let Some(ns) = percentile(&self.buckets(span), SLOWEST)
            {
                slow_ns.set(span, ns);
            }
        }
    }

    /// The histogram of a span over all shards.
    fn buckets(&self, span: usize) -> Vec<u64> {
        let mut sum = vec![0; BUCKETS];
        for shard in 0..self.layout.shards as usize {
            let first = (shard * SPANS_MAX + span) * HISTOGRAM_WORDS + FIRST_BUCKET;
            for (bucket, total) in sum.iter_mut().enumerate() {
                *total += self.histograms.get(first + bucket);
            }
        }
        sum
    }

    /// All spans with a sample, in the order of the path, beside what they are made of: groups are
    /// taken from the same moment.
    pub fn spans(&self) -> Vec<(SpanOfWhole, Span)> {
        spans().into_iter().filter_map(|pair| self.span(pair)).collect()
    }

    /// The number of the span between two stages, from 1, if packets have passed it.
    pub fn number_of(&self, (from, to): (usize, usize)) -> Option<usize> {
        let number = usize::try_from(self.span_of.get(from * STAGES_MAX + to)).ok()?;
        (1..=SPANS_MAX).contains(&number).then_some(number)
    }

    /// The samples of a span over all shards, and how many each has.
    pub fn samples(&self, number: usize) -> (Samples, Vec<u64>) {
        let mut sum = Samples::default();
        let shards = 0..self.layout.shards as usize;
        let add = |shard: usize| {
            let first = (shard * SPANS_MAX + number - 1) * HISTOGRAM_WORDS;
            sum.add_words(|word| self.histograms.get(first + word))
        };
        let ended = shards.map(add).collect();
        (sum, ended)
    }

    fn span(&self, pair: (usize, usize)) -> Option<(SpanOfWhole, Span)> {
        let number = self.number_of(pair)?;
        let (samples, ended) = self.samples(number);
        if samples.count() == 0 {
            return None;
        }
        let stages = (stage(pair.0)?, stage(pair.1)?);
        let span = samples.span(stages, self.layout, self.places_of(number - 1, &ended))?;
        Some(((pair, number, samples), span))
    }

    /// `ended` has the samples of each shard.
    fn places_of(&self, span: usize, ended: &[u64]) -> Vec<Place> {
        let rows = self.layout.places.len();
        let entered = |from: usize, to: usize| self.places.get((span * rows + from) * rows + to);
        let count = |from: usize, to: usize| {
            if from != to || !self.layout.is_by_cpu() {
                return entered(from, to);
            }
            let came: u64 = (0..rows).filter(|&other| other != to).map(|f| entered(f, to)).sum();
            ended.get(to).map_or(0, |ended| ended.saturating_sub(came))
        };
        let mut places = Vec::new();
        for (from, &(from_cpu, from_node)) in self.layout.places.iter().enumerate() {
            for (to, &(to_cpu, to_node)) in self.layout.places.iter().enumerate() {
                let count = count(from, to);
                if count > 0 {
                    places.push(Place { from_cpu, to_cpu, from_node, to_node, count });
                }
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The offsets above against the structures in C, counted in fields of 8 bytes.
    #[test]
    fn words_are_where_the_programs_put_them() {
        let inflight = include_str!("../../../../bpf/inflight.h");
        let cpu = &inflight[inflight.find("struct cpu {").unwrap()..];
        let fields: Vec<_> = cpu
            .lines()
            .skip(1)
            .map(str::trim)
            .take_while(|l| *l != "};")
            .filter(|l| !l.is_empty() && !l.starts_with("/*") && !l.starts_with("u32 place"))
            .collect();
        let words = |field: &&str| field.matches(',').count() + 1;
        let reserved =
            |field: &&str| field.split(['[', ']']).nth(1).map_or(1, |n| n.parse().unwrap());
        let total: usize = fields
            .iter()
            .map(|field| field.split("/*").next().unwrap().trim())
            .map(
                |field| if field.starts_with("u32") { 1 } else { words(&field) * reserved(&field) },
            )
            .sum();
        assert_eq!(total, CPU_WORDS);
        assert!(fields[CPU_SHARD_PLACE].starts_with("u32 shard;"));
        assert!(cpu.contains("set by user space */\n\tu32 place;"));
        assert!(fields[CPU_NODE_LLC].starts_with("u32 node, llc;"));
        let counters = &inflight[inflight.find("struct counters {").unwrap()..];
        let names = counters.lines().nth(1).unwrap().trim();
        assert_eq!(
            names,
            "u64 started, completed, dropped, collided, sampled_out, unexpected, outliers_lost;"
        );
        assert_eq!(names.split(',').position(|n| n.contains("unexpected")), Some(UNEXPECTED));
        assert_eq!(counters.lines().nth(2).unwrap().trim(), "u64 trails_lost;");
        assert_eq!(names.split(',').count(), TRAILS_LOST);
    }
}
