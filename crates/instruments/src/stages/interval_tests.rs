//! The difference between two readings, as computed from the programs' counters.

use super::path::{self, PathTerms};
use super::samples::tests::counted;
use super::table::STAGES;
use crate::layout::Layout;
use nearpath_model::{Above, CpuId, Measurement, PathKind, Place, Span, Topology};
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
    /// The difference between two readings equals a separate measurement of the interval, except for its
    /// extremes.
    #[test]
    fn an_interval_equals_a_separate_measurement(
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
        // Exact extremes bound a percentile, which may change it within its bucket.
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
fn paths_of_an_interval_are_those_that_ended_in_it() {
    let layout = Layout::new(&Topology::default());
    let terms = PathTerms::new(&[std::time::Duration::from_micros(1)], |_| true);
    let measured = |latencies: &[u64]| {
        let path = path::latency(PathKind::Receive, &counted(latencies), &terms, &layout);
        Measurement { paths: path.into_iter().collect(), ..Measurement::default() }
    };
    let old = measured(&[100, 5000]);
    let now = measured(&[100, 5000, 200, 300, 400, 9000]);
    let since = now.paths_since(&old);
    let above = Above { ns: 1000, count: 1, share: 0.25 };
    assert_eq!((since[0].count, &since[0].above[..]), (4, &[above][..]));
    assert_eq!((since[0].min_ns, since[0].max_ns), (None, Some(9000)));
    assert_eq!(since[0].buckets.iter().map(|bucket| bucket.1).sum::<u64>(), 4);
    assert_eq!(now.paths_since(&now), []);
    assert_eq!(now.paths_since(&Measurement::default()), now.paths);
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
