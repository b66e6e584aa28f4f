//! Reads the programs' maps into a measurement.

use super::group::SpanOfWhole;
use super::load::types::{counters, cpu, slow};
use super::path::PathsOfWhole;
use super::samples::{HISTOGRAM_WORDS, MIN, Samples};
use super::table::{SPANS_MAX, STAGES_MAX, spans, stage};
use crate::kernel::{Mapped, Probe, pack, pair_at, word_of, words_of};
use crate::layout::Layout;
use crate::stamps::Counted;
use nearpath_model::histogram::{count, interpolated_ns, quantile_ns};
use nearpath_model::{Packets, PathKind, Place, Span};
use std::time::Duration;

/// Packets beyond this share of a span are slow by default,
const SLOWEST: f64 = 0.9999;
/// and as many more in each second, the slowest, if they took at least so long: of few packets, 1 in 10,000 is none.
const EXPLAINED_PER_S: f64 = 20.0;
pub const LATE_NS: f64 = 1e6;
/// Where spans become slower, many more exceed what was measured before: they are explained up to this many times those,
const SPARE: f64 = 2.0;
/// and so many at the start.
const AT_START: f64 = 20.0;
/// The programs' value for an impossible pair of stages.
const NO_SPAN: u64 = u32::MAX as u64;

/// Passes each CPU's shard to the programs.
pub fn prepare_cpus(cpus: &Mapped, layout: &Layout) {
    for (number, row) in layout.cpus.iter().enumerate() {
        let first = number * words_of::<cpu>();
        cpus.set(first + pair_at!(cpu, node, llc), pack(row.node, row.llc));
        cpus.set(first + pair_at!(cpu, shard, row), pack(row.shard, row.place));
    }
}

/// From how many nanoseconds on packets of a span are slow, and how many of them are sent.
pub fn set_slow(slow_spans: &Mapped, number: usize, ns: u64, left: u64) {
    let first = number * words_of::<slow>();
    slow_spans.set(first + word_of!(slow, left), left.min(i64::MAX.unsigned_abs()));
    slow_spans.set(first + word_of!(slow, ns), ns);
}

/// From how many nanoseconds on packets of a span are slow by default: the slowest 1 in 10,000; and the slowest 20 per
/// second if those took 1 ms or more. Samples are `(bucket, count)` of so many seconds.
pub fn slow_from(samples: &[(usize, u64)], observed_s: f64) -> u64 {
    let share = EXPLAINED_PER_S * observed_s / count(samples).max(1.0);
    let at = (share < 1.0).then(|| interpolated_ns(samples, 1.0 - share)).flatten();
    let late = at.unwrap_or(LATE_NS).max(LATE_NS);
    quantile_ns(samples, SLOWEST).map_or(late, |slowest| slowest.min(late)).round() as u64
}

/// Marks pairs of stages that no path joins, and sets every minimum to the largest number.
pub fn prepare(span_of: &Mapped, histograms: &Mapped, path_histograms: &Mapped) {
    for pair in 0..span_of.len() {
        span_of.set(pair, NO_SPAN);
    }
    for &(from, to) in spans() {
        span_of.set(from * STAGES_MAX + to, 0);
    }
    for histograms in [histograms, path_histograms] {
        for histogram in 0..histograms.len() / HISTOGRAM_WORDS {
            histograms.set(histogram * HISTOGRAM_WORDS + MIN, u64::MAX);
        }
    }
}

/// Whether packets can start at this probe.
pub fn begins_a_path(probe: &Probe) -> bool {
    ["napi_gro_receive", "netif_rx", "netif_receive_skb", "net_dev_queue"]
        .iter()
        .any(|stage| probe.stages.contains(stage))
}

/// The counters summed over all CPUs. Packets without an observed end are the remainder of those started.
pub fn packets(by_shard: &Mapped) -> Packets {
    let sum = |field| sum(by_shard, field);
    let completed = sum(word_of!(counters, completed));
    let dropped = sum(word_of!(counters, dropped));
    let collided = sum(word_of!(counters, collided));
    // Read last: a packet that starts in the meantime counts as in flight.
    let started = sum(word_of!(counters, started));
    Packets {
        started,
        completed,
        dropped,
        abandoned: started.saturating_sub(completed + dropped + collided),
        collided,
        sampled_out: sum(word_of!(counters, sampled_out)),
    }
}

/// Sum of a counter over all shards.
pub fn sum(by_shard: &Mapped, field: usize) -> u64 {
    let each = words_of::<counters>();
    (0..by_shard.len() / each).map(|shard| by_shard.get(shard * each + field)).sum()
}

/// What became of hardware timestamps.
pub fn stamps(by_shard: &Mapped) -> Counted {
    let sum = |field| sum(by_shard, field);
    Counted {
        used: sum(word_of!(counters, stamps_used)),
        ahead: sum(word_of!(counters, stamps_ahead)),
        old: sum(word_of!(counters, stamps_old)),
        unconverted: sum(word_of!(counters, stamps_unconverted)),
        of_others: sum(word_of!(counters, stamps_of_others)),
        opaque: sum(word_of!(counters, stamps_opaque)),
    }
}

/// The maps at one moment.
pub struct Reading<'a> {
    pub layout: &'a Layout,
    pub counters: &'a Mapped,
    pub span_of: &'a Mapped,
    pub histograms: &'a Mapped,
    pub path_histograms: &'a Mapped,
    pub places: &'a Mapped,
}

impl Reading<'_> {
    /// Events between stages that no path joins, or for which no span was free.
    pub fn unexpected(&self) -> u64 {
        sum(self.counters, word_of!(counters, unexpected))
    }

    /// Slow packets that did not fit in the ring buffer.
    pub fn outliers_lost(&self) -> u64 {
        sum(self.counters, word_of!(counters, outliers_lost))
    }

    /// Paths of slow packets that did not fit in the ring buffer.
    pub fn packet_paths_lost(&self) -> u64 {
        sum(self.counters, word_of!(counters, packet_paths_lost))
    }

    /// From now on, sends the slow packets of each span to user space, see [`slow_from`], but no more than can be
    /// explained. `granted` are how many were allowed before, by span.
    pub fn follow_slowest(&self, slow_spans: &Mapped, observed: Duration, granted: &mut Vec<u64>) {
        let seconds = observed.as_secs_f64();
        // Of a span that no packet has passed yet, all that are late.
        let mut limits = [(LATE_NS as u64, 0.0); SPANS_MAX];
        for &(from, to) in spans() {
            let Some(number) = self.number_of((from, to)) else { continue };
            let (samples, _) = self.samples(number);
            if let Some(limit) = limits.get_mut(number - 1) {
                let samples = samples.filled();
                *limit = (slow_from(&samples, seconds), count(&samples));
            }
        }
        granted.resize(SPANS_MAX, 0);
        for (number, ((ns, count), granted)) in limits.into_iter().zip(granted).enumerate() {
            let wanted = EXPLAINED_PER_S * seconds + (1.0 - SLOWEST) * count;
            let allowed = (AT_START + SPARE * wanted) as u64;
            // The programs may take one meanwhile.
            let left = slow_spans.get(number * words_of::<slow>() + word_of!(slow, left));
            let left = left.cast_signed().max(0).cast_unsigned();
            set_slow(slow_spans, number, ns, left.saturating_add(allowed.saturating_sub(*granted)));
            *granted = allowed.max(*granted);
        }
    }

    /// All spans with a sample, in the order of the path, with their samples: groups are computed from the same
    /// moment.
    pub fn spans(&self) -> Vec<(SpanOfWhole, Span)> {
        spans().iter().filter_map(|&pair| self.span(pair)).collect()
    }

    /// The number of the span between two stages, from 1, if packets have passed it.
    pub fn number_of(&self, (from, to): (usize, usize)) -> Option<usize> {
        let number = usize::try_from(self.span_of.get(from * STAGES_MAX + to)).ok()?;
        (1..=SPANS_MAX).contains(&number).then_some(number)
    }

    /// The samples of a span over all shards, and the number per shard.
    pub fn samples(&self, number: usize) -> (Samples, Vec<u64>) {
        self.sum(self.histograms, SPANS_MAX, number - 1)
    }

    /// The samples of each kind of path that has any.
    pub fn paths(&self) -> PathsOfWhole {
        let samples = |kind: PathKind| {
            (kind, self.sum(self.path_histograms, PathKind::ALL.len(), kind as usize).0)
        };
        let paths = PathKind::ALL.into_iter().map(samples);
        paths.filter(|(_, samples)| samples.count() > 0).collect()
    }

    /// A histogram, by its index in each shard, summed over all shards.
    fn sum(&self, histograms: &Mapped, of_shard: usize, number: usize) -> (Samples, Vec<u64>) {
        let mut sum = Samples::default();
        let shards = 0..self.layout.shards as usize;
        let add = |shard: usize| {
            let first = (shard * of_shard + number) * HISTOGRAM_WORDS;
            sum.add_words(|word| histograms.get(first + word))
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

    /// `ended` has the samples per shard.
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
    use nearpath_model::histogram::{bounds, bucket};

    /// Samples of so many milliseconds each.
    fn samples(of: &[(f64, u64)]) -> Vec<(usize, u64)> {
        of.iter().map(|(ms, count)| (bucket((ms * 1e6) as u64), *count)).collect()
    }

    /// How many of the samples are slow.
    fn slow(of: &[(f64, u64)], seconds: f64) -> u64 {
        let samples = samples(of);
        let from = slow_from(&samples, seconds) as f64;
        samples.iter().filter(|(bucket, _)| bounds(*bucket).1 > from).map(|(_, count)| count).sum()
    }

    #[test]
    fn of_few_packets_the_late_ones_are_slow_and_of_many_one_in_ten_thousand() {
        assert_eq!(slow_from(&[], 1.0), 1_000_000);
        assert_eq!(slow(&[(0.01, 999)], 1.0), 0, "none is late");
        assert_eq!(slow(&[(0.01, 990), (5.0, 10)], 1.0), 10);
        assert_eq!(slow(&[(0.01, 5), (5.0, 10)], 1.0), 10, "fewer than 20 in all");
        assert_eq!(slow(&[(0.01, 900), (5.0, 80), (9.0, 20)], 1.0), 20);
        assert_eq!(slow(&[(0.01, 999_800), (0.05, 100), (0.1, 100)], 1.0), 100, "as ever");
        assert_eq!(slow(&[(0.01, 999_700), (2.0, 200), (5.0, 100)], 10.0), 300, "20 per second");
    }
}
