//! The difference between two readings of one measurement. Input: both readings. Output: the spans and paths of
//! the interval, in the same form.

use crate::histogram::{by_number, quantile_ns};
use crate::{Above, Measurement, PathLatency, Place, Slow, Span, Watch};

impl Measurement {
    /// The spans that packets passed since an earlier reading.
    pub fn spans_since(&self, earlier: &Self) -> Vec<Span> {
        let is =
            |a: &Span, b: &Span| (a.direction, &a.from, &a.to) == (b.direction, &b.from, &b.to);
        let span = |now: &Span| now.since(earlier.spans.iter().find(|old| is(old, now)));
        self.spans.iter().filter_map(span).collect()
    }

    /// The whole paths that ended since an earlier reading.
    pub fn paths_since(&self, earlier: &Self) -> Vec<PathLatency> {
        let old = |now: &PathLatency| earlier.paths.iter().find(|old| old.kind == now.kind);
        self.paths.iter().filter_map(|now| now.since(old(now))).collect()
    }
}

impl Watch {
    /// The difference since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: Option<&Self>) -> Self {
        let Some(earlier) = earlier else { return self.clone() };
        Self {
            watched_s: (self.watched_s - earlier.watched_s).max(0.0),
            recorded_s: (self.recorded_s - earlier.recorded_s).max(0.0),
            packets: self.packets.saturating_sub(earlier.packets),
            unstamped: self.unstamped.saturating_sub(earlier.unstamped),
            late_ns: self.late_ns,
            late: self.late.saturating_sub(earlier.late),
            explained: self.explained.saturating_sub(earlier.explained),
            not_watched: self.not_watched.clone(),
        }
    }
}

impl Slow {
    /// The difference since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            seen: self.seen.saturating_sub(earlier.seen),
            lost: self.lost.saturating_sub(earlier.lost),
            complete: self.complete.saturating_sub(earlier.complete),
            span_ns: self.span_ns.saturating_sub(earlier.span_ns),
            paths_lost: self.paths_lost.saturating_sub(earlier.paths_lost),
        }
    }
}

/// The samples of an interval, by bucket, with their percentiles.
struct Since {
    count: u64,
    buckets: Vec<(u64, u64)>,
    percentiles: [Option<u64>; 4],
}

impl Since {
    /// The increase of the buckets since `old`, clamped to the extremes of the whole; `None` if there was none.
    fn of(
        now: &[(u64, u64)],
        old: &[(u64, u64)],
        (min, max): (Option<u64>, Option<u64>),
    ) -> Option<Self> {
        let was = |upper: u64| {
            let found = old.binary_search_by_key(&upper, |&(upper, _)| upper);
            found.ok().and_then(|at| old.get(at)).map_or(0, |&(_, count)| count)
        };
        let new = |&(upper, count): &(u64, u64)| (upper, count.saturating_sub(was(upper)));
        let buckets: Vec<_> = now.iter().map(new).filter(|&(_, n)| n > 0).collect();
        let count = buckets.iter().fold(0u64, |sum, &(_, n)| sum.saturating_add(n));
        if count == 0 {
            return None;
        }
        let (min, max) = (min.unwrap_or(0), max.unwrap_or(u64::MAX));
        let within = |ns: f64| (ns.round() as u64).clamp(min, max.max(min));
        let numbered = by_number(&buckets);
        let percentile = |q: f64| quantile_ns(&numbered, q).map(within);
        Some(Self { count, buckets, percentiles: [0.5, 0.9, 0.99, 0.999].map(percentile) })
    }

    /// The share of the interval's samples, from those of the whole: `(share, count)` now and before.
    fn share(&self, now: (Option<f64>, u64), old: (Option<f64>, u64)) -> Option<f64> {
        // Shares of counts: multiplied by the counts they are whole numbers.
        let part = |(share, count): (Option<f64>, u64)| Some((share? * count as f64).round());
        let more = part(now)? - part(old).unwrap_or(0.0);
        Some((more / self.count as f64).clamp(0.0, 1.0))
    }
}

impl Span {
    /// The change since an earlier reading; `None` if there was none. The extremes are known only if those of
    /// the whole have changed.
    pub fn since(&self, earlier: Option<&Self>) -> Option<Self> {
        let Some(old) = earlier else { return Some(self.clone()) };
        let since = Since::of(&self.buckets, &old.buckets, (self.min_ns, self.max_ns))?;
        let share = |of: fn(&Self) -> Option<f64>| {
            since.share((of(self), self.count), (of(old), old.count))
        };
        let [p50_ns, p90_ns, p99_ns, p999_ns] = since.percentiles;
        Some(Self {
            direction: self.direction,
            from: self.from.clone(),
            to: self.to.clone(),
            count: since.count,
            min_ns: self.min_ns.filter(|_| self.min_ns != old.min_ns),
            p50_ns,
            p90_ns,
            p99_ns,
            p999_ns,
            max_ns: self.max_ns.filter(|_| self.max_ns != old.max_ns),
            total_ns: self.total_ns.saturating_sub(old.total_ns),
            other_cpu: share(|span| span.other_cpu),
            other_llc: share(|span| span.other_llc),
            other_node: share(|span| span.other_node),
            places: places_since(&self.places, &old.places),
            buckets: since.buckets,
        })
    }
}

impl PathLatency {
    /// The same for a kind of path.
    pub fn since(&self, earlier: Option<&Self>) -> Option<Self> {
        let Some(old) = earlier else { return Some(self.clone()) };
        let since = Since::of(&self.buckets, &old.buckets, (self.min_ns, self.max_ns))?;
        let share = |of: fn(&Self) -> Option<f64>| {
            since.share((of(self), self.count), (of(old), old.count))
        };
        let above = |now: &Above| {
            let was = old.above.iter().find(|old| old.ns == now.ns).map_or(0, |old| old.count);
            let count = now.count.saturating_sub(was).min(since.count);
            Above { ns: now.ns, count, share: count as f64 / since.count as f64 }
        };
        let [p50_ns, p90_ns, p99_ns, p999_ns] = since.percentiles;
        Some(Self {
            kind: self.kind,
            from: self.from.clone(),
            count: since.count,
            min_ns: self.min_ns.filter(|_| self.min_ns != old.min_ns),
            p50_ns,
            p90_ns,
            p99_ns,
            p999_ns,
            max_ns: self.max_ns.filter(|_| self.max_ns != old.max_ns),
            total_ns: self.total_ns.saturating_sub(old.total_ns),
            above: self.above.iter().map(above).collect(),
            other_cpu: share(|path| path.other_cpu),
            other_llc: share(|path| path.other_llc),
            other_node: share(|path| path.other_node),
            buckets: since.buckets,
        })
    }
}

fn places_since(now: &[Place], earlier: &[Place]) -> Vec<Place> {
    let place = |now: &Place| {
        let is = |old: &&Place| (old.from_cpu, old.to_cpu) == (now.from_cpu, now.to_cpu);
        let was = earlier.iter().find(is).map_or(0, |old| old.count);
        let count = now.count.saturating_sub(was);
        (count > 0).then_some(Place { count, ..*now })
    };
    now.iter().filter_map(place).collect()
}
