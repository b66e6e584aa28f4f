//! Spans of a measurement in which packets change CPU, cache or node: how many, from where to
//! where, and what the waiting costs.
//!
//! The cost of a crossing, in seconds of waiting for each second measured:
//!
//! ```text
//! crossed × (mean of those that crossed − minimum of the span) / duration
//! ```
//!
//! The minimum stands for a hand-over that nothing delays. The histogram does not distinguish the
//! packets that crossed: they are taken to be the slowest ones of the span, since another CPU
//! takes an inter-processor interrupt to reach; without buckets, to be like its mean. Where most
//! packets cross, which is when it matters, this hardly differs.

use crate::severity::Delay;
use crate::text;
use nearpath_model::{CpuId, Direction, Measurement, Span};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Share of packets from which a crossing is worth a finding.
pub(crate) const NOTABLE_SHARE: f64 = 0.1;

/// Fewer packets than this prove nothing.
pub(crate) const ENOUGH_PACKETS: u64 = 100;

/// What is crossed, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Boundary {
    /// To another CPU.
    Cpu,
    /// To a CPU under another last-level cache.
    Llc,
    /// To another NUMA node.
    Node,
}

impl Boundary {
    /// Where packets go that cross it, in words.
    pub(crate) fn to(self) -> &'static str {
        match self {
            Self::Cpu => "to another CPU",
            Self::Llc => "under another LLC",
            Self::Node => "to another node",
        }
    }

    /// Where packets are that crossed it, in words.
    pub(crate) fn at(self) -> &'static str {
        match self {
            Self::Cpu => "on another CPU",
            Self::Llc => "under another LLC",
            Self::Node => "on another node",
        }
    }

    /// The share of a span's packets that cross it, if it is known and a share.
    fn share(self, span: &Span) -> Option<f64> {
        let share = match self {
            Self::Cpu => span.other_cpu,
            Self::Llc => span.other_llc,
            Self::Node => span.other_node,
        };
        share.filter(|share| (0.0..=1.0).contains(share))
    }
}

/// Packets of several spans that crossed a boundary.
#[derive(Debug, Clone)]
pub(crate) struct Crossing<'a> {
    /// What they crossed.
    pub boundary: Boundary,
    /// Packets that passed these spans.
    pub packets: u64,
    /// Of these the share that crossed.
    pub share: f64,
    /// Cost by the formula above; `None` when the duration is unknown.
    pub seconds_per_second: Option<f64>,
    /// For how long they were observed; `None` when that is unknown.
    pub observed_s: Option<f64>,
    /// The stages that they came from.
    pub from: BTreeSet<&'a str>,
    /// The span in which most crossed.
    pub main: &'a Span,
    /// Packets that changed CPU, by the CPU that they left.
    pub left: BTreeMap<CpuId, u64>,
    /// Packets that changed CPU, by the CPU that they came to.
    pub reached: BTreeMap<CpuId, u64>,
}

/// The receive spans from one of some stages to one of others.
pub(crate) fn rx_spans<'a>(
    measurement: &'a Measurement,
    from: &[&str],
    to: &[&str],
) -> Vec<&'a Span> {
    let wanted = |span: &&Span| {
        span.direction == Direction::Rx
            && span.count > 0
            && from.contains(&span.from.as_str())
            && to.contains(&span.to.as_str())
    };
    measurement.spans.iter().filter(wanted).collect()
}

/// The worst boundary that a notable share of the packets crosses; `None` when none is, or when
/// too few packets were seen.
pub(crate) fn crossing<'a>(spans: &[&'a Span], duration_s: f64) -> Option<Crossing<'a>> {
    [Boundary::Node, Boundary::Llc, Boundary::Cpu]
        .into_iter()
        .filter_map(|boundary| crossing_of(spans, boundary, duration_s))
        .find(|crossing| crossing.share >= NOTABLE_SHARE)
}

fn crossing_of<'a>(
    spans: &[&'a Span],
    boundary: Boundary,
    duration_s: f64,
) -> Option<Crossing<'a>> {
    let crossed = |span: &Span| boundary.share(span).unwrap_or(0.0) * span.count as f64;
    let packets = crate::counters::total(spans.iter().map(|span| span.count));
    if packets < ENOUGH_PACKETS {
        return None;
    }
    let main = spans.iter().copied().max_by(|a, b| crossed(a).total_cmp(&crossed(b)))?;
    let all: f64 = spans.iter().map(|span| crossed(span)).sum();
    let waited_ns: f64 = spans.iter().map(|span| waited_ns(span, crossed(span))).sum();
    let (mut left, mut reached) = (BTreeMap::new(), BTreeMap::new());
    let moves = spans.iter().flat_map(|span| &span.places).filter(|p| p.from_cpu != p.to_cpu);
    for place in moves {
        for (side, cpu) in [(&mut left, place.from_cpu), (&mut reached, place.to_cpu)] {
            let count: &mut u64 = side.entry(cpu).or_default();
            *count = count.saturating_add(place.count);
        }
    }
    let duration = (duration_s.is_finite() && duration_s > 0.0).then_some(duration_s);
    Some(Crossing {
        boundary,
        packets,
        share: (all / packets as f64).clamp(0.0, 1.0),
        observed_s: duration,
        seconds_per_second: duration.map(|duration| waited_ns / 1e9 / duration),
        from: spans.iter().map(|span| span.from.as_str()).collect(),
        main,
        left,
        reached,
    })
}

/// What the packets that crossed waited beyond the span's minimum, in nanoseconds, all together.
fn waited_ns(span: &Span, crossed: f64) -> f64 {
    let min = span.min_ns.unwrap_or(0) as f64;
    if span.buckets.is_empty() {
        let mean = span.total_ns as f64 / span.count.max(1) as f64;
        return crossed * (mean - min).max(0.0);
    }
    let (mut left, mut waited) = (crossed, 0.0);
    for &(upper_ns, count) in span.buckets.iter().rev() {
        let taken = left.min(count as f64);
        waited += taken * (capped(span, upper_ns) as f64 - min).max(0.0);
        left -= taken;
    }
    waited
}

/// The median of the slowest packets of a span, as many as crossed.
fn median_of_slowest(span: &Span, crossed: f64) -> Option<u64> {
    let mut left = crossed / 2.0;
    for &(upper_ns, count) in span.buckets.iter().rev() {
        left -= count as f64;
        if left < 0.0 {
            return Some(capped(span, upper_ns));
        }
    }
    span.p50_ns
}

/// A bucket's upper end, which may lie beyond the longest latency in it.
fn capped(span: &Span, upper_ns: u64) -> u64 {
    span.max_ns.map_or(upper_ns, |max| upper_ns.min(max))
}

impl Crossing<'_> {
    /// The same if some packets passed these spans twice: each counts once.
    pub(crate) fn counting_once(self, again: u64) -> Self {
        let crossed = self.share * self.packets as f64;
        let packets = self.packets.saturating_sub(again).max(crossed.round() as u64).max(1);
        Self { packets, share: (crossed / packets as f64).min(1.0), ..self }
    }

    /// The worse boundary comes last; of the same the one that costs more.
    pub(crate) fn by_cost(&self, other: &Self) -> Ordering {
        let cost = |crossing: &Self| crossing.seconds_per_second.unwrap_or(crossing.share);
        self.boundary.cmp(&other.boundary).then(cost(self).total_cmp(&cost(other)))
    }

    /// What the packets that crossed pay.
    pub(crate) fn delay(&self) -> Delay {
        let observed = self.observed_s.unwrap_or(f64::INFINITY);
        Delay {
            per_second: self.share * self.packets as f64 / observed,
            share: self.share,
            each_ns: self.per_packet_ns(),
            seconds_per_second: self.seconds_per_second,
        }
    }

    /// What one packet that crosses pays at the median beyond the minimum, in nanoseconds.
    pub(crate) fn per_packet_ns(&self) -> Option<u64> {
        Some(self.median_ns()?.saturating_sub(self.main.min_ns.unwrap_or(0)))
    }

    /// The median of those that crossed in the main span.
    fn median_ns(&self) -> Option<u64> {
        let share = self.boundary.share(self.main)?;
        median_of_slowest(self.main, share * self.main.count as f64)
    }

    /// The evidence: the share that crossed, how long the span took, and what it costs.
    pub(crate) fn evidence(&self) -> Vec<String> {
        let Span { from, to, .. } = self.main;
        let stages: Vec<String> = self.from.iter().map(|stage| text::clean(stage)).collect();
        let mut sentences = vec![format!(
            "{} of {} packets moved {} right after {}.",
            text::percent(self.share),
            self.packets,
            self.boundary.to(),
            stages.join(" or "),
        )];
        let times: Vec<String> = [
            ("median of those that moved", self.median_ns()),
            ("p99 of all", self.main.p99_ns),
            ("longest", self.main.max_ns),
        ]
        .into_iter()
        .filter_map(|(name, ns)| Some(format!("{name} {}", text::time(ns?))))
        .collect();
        if !times.is_empty() {
            let span = format!("{} -> {}", text::clean(from), text::clean(to));
            sentences.push(format!("{span} took: {}.", times.join(", ")));
        }
        if let Some(cost) = self.seconds_per_second {
            sentences.push(format!(
                "Packets waited there {} in each second, summed over packets.",
                text::seconds(cost)
            ));
        }
        sentences
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(count: u64, total_ns: u64, other_cpu: Option<f64>) -> Span {
        Span {
            direction: Direction::Rx,
            from: "netif_rx".into(),
            to: "net_rx_raise".into(),
            count,
            min_ns: Some(1_000),
            p50_ns: Some(9_000),
            p90_ns: None,
            p99_ns: None,
            p999_ns: None,
            max_ns: None,
            total_ns,
            other_cpu,
            other_llc: None,
            other_node: Some(0.0),
            buckets: Vec::new(),
            places: Vec::new(),
        }
    }

    #[test]
    fn the_cost_is_the_waiting_beyond_the_minimum_of_those_who_crossed() {
        // 1,000 packets of 11µs, half of them crossed, 10µs beyond the minimum, in 2 s.
        let span = span(1_000, 11_000_000, Some(0.5));
        let crossing = crossing(&[&span], 2.0).unwrap();
        assert_eq!(crossing.boundary, Boundary::Cpu);
        assert_eq!(crossing.share, 0.5);
        let cost = crossing.seconds_per_second.unwrap();
        assert!((cost - 500.0 * 10e-6 / 2.0).abs() < 1e-12, "{cost}");
        assert_eq!(crossing.per_packet_ns(), Some(8_000));
    }

    #[test]
    fn those_that_crossed_are_the_slowest() {
        // A quarter crossed: 200 of 9µs and 50 of 5µs, where the other 750 took 1µs.
        let buckets = vec![(1_000, 700), (5_000, 100), (9_000, 200)];
        let span = Span { buckets, ..span(1_000, 3_000_000, Some(0.25)) };
        let crossing = crossing(&[&span], 1.0).unwrap();
        assert_eq!(crossing.per_packet_ns(), Some(8_000));
        let cost = crossing.seconds_per_second.unwrap();
        assert!((cost - (200.0 * 8e-6 + 50.0 * 4e-6)).abs() < 1e-12, "{cost}");
    }

    #[test]
    fn who_passes_twice_counts_once() {
        let passed = span(2_000, 2_000_000, Some(0.5));
        let once = crossing(&[&passed], 1.0).unwrap().counting_once(1_000);
        assert_eq!((once.packets, once.share), (1_000, 1.0));
        let fewer = crossing(&[&passed], 1.0).unwrap().counting_once(u64::MAX);
        assert_eq!((fewer.packets, fewer.share), (1_000, 1.0), "no fewer than crossed");
    }

    #[test]
    fn what_is_no_share_or_too_few_is_no_crossing() {
        for bad in [None, Some(f64::NAN), Some(-1.0), Some(7.0), Some(0.05)] {
            assert!(crossing(&[&span(1_000, 1, bad)], 1.0).is_none(), "{bad:?}");
        }
        assert!(crossing(&[&span(99, 1, Some(1.0))], 1.0).is_none(), "too few");
        assert!(crossing(&[], 1.0).is_none());
        let unknown = span(u64::MAX, u64::MAX, Some(1.0));
        let crossing = crossing(&[&unknown, &unknown], f64::NAN).unwrap();
        assert_eq!(crossing.seconds_per_second, None);
    }
}
