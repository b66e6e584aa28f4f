//! What came between two readings of one measurement: in go both, out come the spans of the interval, in
//! the same form.

use crate::histogram::{by_number, quantile_ns};
use crate::{Measurement, Place, Slow, Span};

impl Measurement {
    /// The spans that packets have passed since an earlier reading.
    pub fn spans_since(&self, earlier: &Self) -> Vec<Span> {
        let is =
            |a: &Span, b: &Span| (a.direction, &a.from, &a.to) == (b.direction, &b.from, &b.to);
        let span = |now: &Span| now.since(earlier.spans.iter().find(|old| is(old, now)));
        self.spans.iter().filter_map(span).collect()
    }
}

impl Slow {
    /// Those since an earlier reading.
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

impl Span {
    /// What came since an earlier reading; `None` when nothing did. The extremes are known only where those
    /// of the whole have moved.
    fn since(&self, earlier: Option<&Self>) -> Option<Self> {
        let Some(old) = earlier else { return Some(self.clone()) };
        let was = |upper: u64| {
            let found = old.buckets.binary_search_by_key(&upper, |&(upper, _)| upper);
            found.ok().and_then(|at| old.buckets.get(at)).map_or(0, |&(_, count)| count)
        };
        let new = |&(upper, count): &(u64, u64)| (upper, count.saturating_sub(was(upper)));
        let buckets: Vec<_> = self.buckets.iter().map(new).filter(|&(_, n)| n > 0).collect();
        let count = buckets.iter().map(|&(_, n)| n).sum::<u64>();
        if count == 0 {
            return None;
        }
        let (min, max) = (self.min_ns.unwrap_or(0), self.max_ns.unwrap_or(u64::MAX));
        let within = |ns: f64| (ns.round() as u64).clamp(min, max.max(min));
        let numbered = by_number(&buckets);
        let percentile = |q: f64| quantile_ns(&numbered, q).map(within);
        // Shares of counts: by the counts, they are whole numbers.
        let share = |of: fn(&Self) -> Option<f64>| {
            let crossed = |span: &Self| of(span).map(|share| (share * span.count as f64).round());
            let more = crossed(self)? - crossed(old).unwrap_or(0.0);
            Some((more / count as f64).clamp(0.0, 1.0))
        };
        Some(Self {
            direction: self.direction,
            from: self.from.clone(),
            to: self.to.clone(),
            count,
            min_ns: self.min_ns.filter(|_| self.min_ns != old.min_ns),
            p50_ns: percentile(0.5),
            p90_ns: percentile(0.9),
            p99_ns: percentile(0.99),
            p999_ns: percentile(0.999),
            max_ns: self.max_ns.filter(|_| self.max_ns != old.max_ns),
            total_ns: self.total_ns.saturating_sub(old.total_ns),
            other_cpu: share(|span| span.other_cpu),
            other_llc: share(|span| span.other_llc),
            other_node: share(|span| span.other_node),
            buckets,
            places: places_since(&self.places, &old.places),
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

#[cfg(test)]
mod tests {
    use super::super::samples::tests::counted;
    use super::super::table::STAGES;
    use super::*;
    use crate::layout::Layout;
    use nearpath_host::{CpuId, Topology};
    use proptest::prelude::*;

    fn span(latencies: &[u64], places: &[(u32, u64)]) -> Option<Span> {
        let place = |&(cpu, count): &(u32, u64)| Place {
            from_cpu: CpuId(0),
            to_cpu: CpuId(cpu),
            from_node: None,
            to_node: None,
            count,
        };
        let layout = Layout::new(&Topology::default());
        let places = places.iter().map(place).collect();
        counted(latencies).span((&STAGES[0], &STAGES[1]), &layout, places)
    }

    proptest! {
        /// What came between two readings is what would have been measured of it alone, but for its
        /// extremes.
        #[test]
        fn an_interval_is_what_would_have_been_measured_of_it(
            before in prop::collection::vec(0..16u64, 1..200),
            more in prop::collection::vec(0..16u64, 0..200),
        ) {
            let old = span(&before, &[]).unwrap();
            let now = span(&[before, more.clone()].concat(), &[]).unwrap();
            let interval = now.since(Some(&old));
            let Some(alone) = span(&more, &[]) else {
                prop_assert_eq!(interval, None);
                return Ok(());
            };
            let interval = interval.unwrap();
            // Exact extremes bound a percentile, which may move it within its bucket.
            let of = |span: &Span| [span.p50_ns, span.p90_ns, span.p99_ns, span.p999_ns];
            for (a, b) in of(&interval).into_iter().zip(of(&alone)) {
                prop_assert_eq!(a.is_some(), b.is_some());
                let (a, b) = (a.unwrap_or(0), b.unwrap_or(0));
                prop_assert!(a.abs_diff(b) <= 1 + a.max(b) / 20 || a.max(b) <= 16, "{} {}", a, b);
            }
            let alone = Span {
                min_ns: now.min_ns.filter(|_| now.min_ns != old.min_ns),
                p50_ns: interval.p50_ns,
                p90_ns: interval.p90_ns,
                p99_ns: interval.p99_ns,
                p999_ns: interval.p999_ns,
                max_ns: now.max_ns.filter(|_| now.max_ns != old.max_ns),
                ..alone
            };
            prop_assert_eq!(interval, alone);
        }
    }

    #[test]
    fn crossings_and_places_are_those_of_the_interval() {
        let share = |span: Span, crossed: f64| {
            let share = Some(crossed / span.count as f64);
            Span { other_cpu: share, other_node: None, ..span }
        };
        let old = share(span(&[1; 30], &[(0, 20), (1, 10)]).unwrap(), 10.0);
        let now = share(span(&[1; 37], &[(0, 20), (1, 16), (2, 1)]).unwrap(), 17.0);
        let interval = now.since(Some(&old)).unwrap();
        assert_eq!((interval.count, interval.other_cpu, interval.other_node), (7, Some(1.0), None));
        let places: Vec<_> = interval.places.iter().map(|p| (p.to_cpu.0, p.count)).collect();
        assert_eq!(places, [(1, 6), (2, 1)]);
        assert_eq!(now.since(Some(&now)), None);
    }
}
