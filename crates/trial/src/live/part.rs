//! The samples of a span or a path in a block. Input: its totals at the start and at the end. Output: count,
//! mean and percentiles of the difference.

use super::{Figure, Hops};
use crate::latency::Probes;
use nearpath_model::histogram::{by_number, count_above};
use nearpath_model::{Measurement, Observed, PathKind, Span};

/// The spans that packets passed between two readings.
pub(super) fn spans_between<'a>(begin: &Measurement, end: &'a Measurement) -> Vec<Part<'a>> {
    let of = |span| Part::of(begin.spans.iter().find(|old| is_same(old, span)), span);
    end.spans.iter().map(of).collect()
}

/// The whole paths that ended between two readings.
pub(super) fn paths_between(begin: &Measurement, end: &Measurement) -> Vec<PathPart> {
    let of = |path: &nearpath_model::PathLatency| {
        let old = begin.paths.iter().find(|old| old.kind == path.kind);
        let old = old.map(|old| (old.total_ns, old.buckets.as_slice()));
        PathPart { kind: path.kind, samples: Samples::between(old, path.total_ns, &path.buckets) }
    };
    end.paths.iter().map(of).collect()
}

fn is_same(a: &Span, b: &Span) -> bool {
    (a.direction, &a.from, &a.to) == (b.direction, &b.from, &b.to)
}

/// Samples between two readings.
#[derive(Default)]
pub(super) struct Samples {
    total_ns: u64,
    /// `[upper_ns, count]`, ascending.
    buckets: Vec<(u64, u64)>,
}

impl Samples {
    /// From the current sum and buckets, and the earlier ones, if any.
    fn between(
        before: Option<(u64, &[(u64, u64)])>,
        total_ns: u64,
        buckets: &[(u64, u64)],
    ) -> Self {
        let (old_total_ns, old_buckets) = before.unwrap_or_default();
        let old = |upper: u64| {
            let found = old_buckets.binary_search_by_key(&upper, |&(upper, _)| upper);
            found.ok().and_then(|index| old_buckets.get(index)).map_or(0, |&(_, count)| count)
        };
        let new = |&(upper, count): &(u64, u64)| (upper, count.saturating_sub(old(upper)));
        Self {
            total_ns: total_ns.saturating_sub(old_total_ns),
            buckets: buckets.iter().map(new).filter(|&(_, count)| count > 0).collect(),
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().map(|&(_, count)| count).sum()
    }

    /// The round trips of probes.
    pub(super) fn of_probes(probes: &Probes) -> Self {
        let total_ns = probes.latency.mean_ns.unwrap_or(0.0) * probes.latency.count as f64;
        Self { total_ns: total_ns as u64, buckets: probes.histogram.clone() }
    }

    /// In the buckets of instruments, ascending.
    pub(super) fn numbered(&self) -> Vec<(usize, u64)> {
        let mut numbered: Vec<(usize, u64)> = Vec::new();
        for (bucket, count) in by_number(&self.buckets) {
            match numbered.last_mut() {
                Some((last, sum)) if *last == bucket => *sum += count,
                _ => numbered.push((bucket, count)),
            }
        }
        numbered
    }

    /// What they contribute to a figure.
    pub(super) fn observed(&self, figure: Figure) -> Observed {
        match figure {
            Figure::Mean => {
                Observed::Ratio { sum: self.total_ns as f64, count: self.count() as f64 }
            }
            Figure::Percentile(percentile) => {
                Observed::Latencies { percentile, buckets: self.numbered() }
            }
            Figure::Above(limit_ns) => {
                let above = count_above(&self.numbered(), limit_ns as f64);
                Observed::Above { above, of: self.count() }
            }
        }
    }
}

/// The difference between two readings of the paths of one kind.
pub(super) struct PathPart {
    pub(super) kind: PathKind,
    pub(super) samples: Samples,
}

/// The difference between two readings of a span.
pub(super) struct Part<'a> {
    /// Its totals at the end of the block.
    pub(super) span: &'a Span,
    pub(super) samples: Samples,
    hops: [Option<f64>; 3],
}

impl<'a> Part<'a> {
    fn of(before: Option<&Span>, span: &'a Span) -> Self {
        let crossed = |share: fn(&Span) -> Option<f64>| {
            let hops = |span: &Span| share(span).map(|share| share * span.count as f64);
            Some((hops(span)? - before.and_then(hops).unwrap_or(0.0)).max(0.0))
        };
        let old = before.map(|span| (span.total_ns, span.buckets.as_slice()));
        Self {
            span,
            samples: Samples::between(old, span.total_ns, &span.buckets),
            hops: [crossed(|s| s.other_cpu), crossed(|s| s.other_llc), crossed(|s| s.other_node)],
        }
    }
}

/// Hops of the packets that started in the block.
pub(super) fn hops(spans: &[Part], started: u64) -> Hops {
    let each = |of: usize| {
        let sums: Option<Vec<f64>> = spans.iter().map(|part| part.hops[of]).collect();
        sums.map(|sums| sums.iter().sum::<f64>() / started.max(1) as f64)
    };
    Hops { other_cpu: each(0).unwrap_or(0.0), other_llc: each(1), other_node: each(2) }
}
