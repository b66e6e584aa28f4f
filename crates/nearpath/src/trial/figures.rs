//! The figures that a trial compares. Input: measured blocks. Output: the value of each in a block, and what all blocks of a
//! side say.

use super::switched::MeasuredBlock;
use nearpath_model::histogram::{count, count_above, interpolated_ns};
use nearpath_model::{
    Block, Comparison, FigureUnit, LOST_NS, Observed, Thresholds, TrialFigure, Verdict,
};
use nearpath_trial::comparison::{Buckets, Pool, compare_once};
use nearpath_trial::live::{Figure as Statistic, Metric};
use nearpath_trial::sequential::{Effect, Figure, HARM, Scale, Sequential};
use std::collections::BTreeMap;
use std::time::Duration;

/// Packets beyond a percentile that one block needs for it.
const BEYOND: f64 = 5.0;
/// Blocks are not lengthened beyond this for a percentile of packets, unless it was asked for.
const BLOCK_MAX: Duration = Duration::from_secs(5);
/// More CPU time than this share of before is a cost that no latency is worth.
const MORE_CPU: f64 = 0.25;
/// More than so many CPUs, on an idle host.
const LITTLE_CPU: f64 = 0.1;
/// From this share of packets lost, CPU time is not compared.
const MANY_LOST: f64 = 0.01;
/// Fewer packets than this share of before are harm.
const FEWER_PACKETS: f64 = 0.05;

/// What a trial compares.
#[derive(Debug, Clone)]
pub enum Compared {
    /// Whole packets: p50, p99, the share above a limit in nanoseconds, and those lost. A median that rises by
    /// less than a hundredth of the limit is no harm: a reader whose CPU is sometimes idle waits until it wakes.
    Packets {
        /// The limit.
        above_ns: u64,
    },
    /// One metric, and lost packets.
    Metric(Metric),
}

/// What a plan does that matters to what is compared.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PlanTraits {
    /// It moves tasks, which may compute more where they go: CPU time is not compared.
    pub(super) moves_tasks: bool,
    /// It lets connections have more in flight: more bytes are better, and they may be in fewer packets.
    pub(super) opens_windows: bool,
}

/// The figures, those that decide first.
#[derive(Clone)]
pub(super) struct Figures {
    all: Vec<(FigureKind, Figure)>,
    minimum_effect: f64,
}

#[derive(Debug, Clone)]
enum FigureKind {
    Percentile(f64),
    Above(u64),
    Lost,
    Metric(Metric),
    Cpus,
    Packets,
    Bits,
}

impl Figures {
    /// Those of a trial.
    pub(super) fn new(compared: &Compared, minimum_effect: f64, traits: PlanTraits) -> Self {
        let mut deciding = match compared {
            Compared::Packets { above_ns } => {
                vec![
                    FigureKind::Percentile(0.5),
                    FigureKind::Percentile(0.99),
                    FigureKind::Above(*above_ns),
                ]
            }
            Compared::Metric(metric) => vec![FigureKind::Metric(metric.clone())],
        };
        deciding.push(FigureKind::Lost);
        if traits.opens_windows {
            deciding.push(FigureKind::Bits);
        }
        let figure = |kind: &FigureKind, decides, minimum_effect| {
            let scale = match kind {
                FigureKind::Lost => Scale::Losses,
                _ if kind.unit().is_ratio() => Scale::Ratio,
                _ => Scale::Difference,
            };
            let harmless = match (kind, compared) {
                (FigureKind::Percentile(0.5), Compared::Packets { above_ns }) => {
                    *above_ns as f64 / 100.0
                }
                (FigureKind::Cpus, _) => LITTLE_CPU,
                _ => 0.0,
            };
            Figure { scale, decides, minimum_effect, harmless }
        };
        let mut all: Vec<(FigureKind, Figure)> = Vec::new();
        for kind in deciding {
            let figure = figure(&kind, true, minimum_effect);
            all.push((kind, figure));
        }
        let others = [(FigureKind::Cpus, MORE_CPU), (FigureKind::Packets, FEWER_PACKETS)];
        for (kind, worse) in others {
            let is_compared = match kind {
                FigureKind::Cpus => !traits.moves_tasks,
                _ => !traits.opens_windows,
            };
            if is_compared {
                let figure = figure(&kind, false, worse);
                all.push((kind, figure));
            }
        }
        Self { all, minimum_effect }
    }

    /// A trial of so many that share the probability of a false verdict.
    pub(super) fn sequential(&self, seed: u64, trials: usize) -> Sequential {
        let figures: Vec<Figure> = self.all.iter().map(|(_, figure)| *figure).collect();
        Sequential::new(&figures, seed, trials)
    }

    /// Each figure of latencies, or the metric, in blocks before a change and after it.
    pub(super) fn compared_once(
        &self,
        (before, after): (&[&MeasuredBlock], &[&MeasuredBlock]),
    ) -> Vec<Option<Comparison>> {
        let minimum_effect_percent = 100.0 * self.minimum_effect;
        let thresholds = Thresholds { minimum_effect_percent, ..Thresholds::default() };
        // Packets may be larger, and more bytes take more CPU time.
        let of_bytes = self.all.iter().any(|(kind, _)| matches!(kind, FigureKind::Bits));
        let loses = before.iter().chain(after).any(|its| its.block.lost >= MANY_LOST);
        let guarded = |its: &MeasuredBlock| match of_bytes {
            true => (its.gbps, its.block.cpus_busy / its.gbps.max(f64::MIN_POSITIVE)),
            // Packets that are lost cost less than those that come.
            false if loses => (its.block.rate_per_s, 1.0),
            false => (its.block.rate_per_s, its.block.cpus_busy),
        };
        let compare = |(kind, figure): &(FigureKind, Figure)| {
            if !figure.decides {
                return None;
            }
            let side = |blocks: &[&MeasuredBlock]| -> Option<Vec<Block>> {
                let block = |its: &&MeasuredBlock| {
                    let (rate_per_s, cpus_busy) = guarded(its);
                    let observed = kind.observed(its)?;
                    Some(Block { observed, rate_per_s, cpus_busy, ..its.block.clone() })
                };
                blocks.iter().map(block).collect()
            };
            compare_once(&side(before)?, &side(after)?, &thresholds)
        };
        self.all.iter().map(compare).collect()
    }

    /// The verdict on each figure that was compared. If fewer packets are lost, a latency is worse only if it is far worse,
    /// as in [`Sequential`].
    pub(super) fn verdicts_once(&self, compared: &[Option<Comparison>]) -> Vec<Verdict> {
        let all = || {
            let compared = self.all.iter().zip(compared);
            compared.filter_map(|((kind, _), found)| Some((kind, found.as_ref()?)))
        };
        let loses_less = all().any(|(kind, found)| {
            matches!(kind, FigureKind::Lost) && found.verdict == Verdict::Better
        });
        let is_excused = |found: &Comparison| {
            let is_worse = found.verdict == Verdict::Worse && !found.guards.are_violated();
            loses_less && is_worse && found.delta_percent < 100.0 * HARM
        };
        all().filter(|(_, found)| !is_excused(found)).map(|(_, found)| found.verdict).collect()
    }

    /// An effect for each figure, from the comparison with its number.
    pub(super) fn effects<'c>(
        &self,
        compared: impl Fn(usize) -> Option<&'c Comparison>,
    ) -> Vec<Effect> {
        let effect = |(number, (kind, _)): (usize, &(FigureKind, Figure))| {
            let found = compared(number);
            let of_percent = |found: &Comparison, percent: f64| match kind.unit().is_ratio() {
                true => 1.0 + percent / 100.0,
                false => found.baseline * percent / 100.0,
            };
            Effect {
                estimate: found.map(|found| of_percent(found, found.delta_percent)),
                interval: found
                    .and_then(|its| Some(its.ci95?.map(|percent| of_percent(its, percent)))),
                wealth: [1.0; 2],
            }
        };
        self.all.iter().enumerate().map(effect).collect()
    }

    /// The values of a block; smaller is better.
    pub(super) fn block_values(&self, measured: &MeasuredBlock) -> Vec<Option<f64>> {
        self.all.iter().map(|(kind, _)| kind.value(measured)).collect()
    }

    /// How long blocks like this one need to be for its percentiles. A percentile of packets that this would take too long
    /// for is not compared.
    ///
    /// # Errors
    /// The metric that was asked for needs more packets than come, in words.
    pub(super) fn long_enough(
        &self,
        block: Duration,
        measured: &MeasuredBlock,
    ) -> Result<Duration, String> {
        let mut longest = block;
        for (kind, _) in &self.all {
            let (share, packets) = match kind {
                FigureKind::Percentile(share) => {
                    (*share, measured.latencies.as_deref().map_or(0.0, count))
                }
                FigureKind::Metric(_) => match &measured.block.observed {
                    Observed::Latencies { percentile, buckets } => (*percentile, count(buckets)),
                    _ => continue,
                },
                _ => continue,
            };
            let needed = BEYOND / share.min(1.0 - share);
            // A quarter more, as blocks differ.
            let times = 1.25 * needed / packets.max(1.0);
            let length = block.mul_f64(times.clamp(1.0, 1e4));
            if length <= BLOCK_MAX.max(block) {
                longest = longest.max(length);
            } else if let FigureKind::Metric(metric) = kind {
                return Err(format!(
                    "{packets:.0} packets in {block:?} are too few for {metric}: {needed:.0} needed in a block; try a longer --block",
                ));
            }
        }
        Ok(longest)
    }

    /// What all blocks say.
    pub(super) fn report(
        &self,
        blocks: &[(bool, MeasuredBlock)],
        effects: &[Effect],
    ) -> Vec<TrialFigure> {
        let side = |with: bool| -> Vec<&MeasuredBlock> {
            blocks.iter().filter(|(side, _)| *side == with).map(|(_, its)| its).collect()
        };
        let [without, with] = [false, true].map(side);
        let report = |((kind, figure), effect): (&(FigureKind, Figure), &Effect)| {
            let of_side = |side: &[&MeasuredBlock]| kind.pooled(side);
            let mut found = TrialFigure {
                name: kind.name(),
                unit: kind.unit(),
                decides: figure.decides,
                without: of_side(&without),
                with: of_side(&with),
                effect: effect.estimate,
                ci95: effect.interval,
            };
            if kind.is_rate() {
                let inverse = |value: f64| 1.0 / value;
                found.effect = found.effect.map(inverse);
                found.ci95 = found.ci95.map(|[low, high]| [inverse(high), inverse(low)]);
            }
            found
        };
        self.all.iter().zip(effects).map(report).collect()
    }

    /// `6 pairs, p50 0.52x, p99 0.10x`.
    pub(super) fn so_far(&self, so_far: &Sequential) -> String {
        let effects = so_far.effects();
        let of = |((kind, figure), effect): (&(FigureKind, Figure), &Effect)| {
            let estimate = effect.estimate.filter(|_| figure.decides && kind.unit().is_ratio())?;
            let estimate = if kind.is_rate() { 1.0 / estimate } else { estimate };
            Some(format!(", {} {estimate:.2}x", kind.name()))
        };
        let figures: String = self.all.iter().zip(&effects).filter_map(of).collect();
        format!("{} pairs{figures}", so_far.pairs())
    }
}

impl FigureKind {
    fn name(&self) -> String {
        match self {
            Self::Percentile(share) => Statistic::Percentile(*share).to_string(),
            Self::Above(ns) => Statistic::Above(*ns).to_string(),
            Self::Metric(metric) => metric.to_string(),
            Self::Lost => "lost".to_owned(),
            Self::Cpus => "cpus_busy".to_owned(),
            Self::Packets => "packets".to_owned(),
            Self::Bits => "gbps".to_owned(),
        }
    }

    fn unit(&self) -> FigureUnit {
        match self {
            Self::Percentile(_) => FigureUnit::Ns,
            Self::Above(_) => FigureUnit::Share,
            Self::Lost => FigureUnit::LostPerS,
            Self::Cpus => FigureUnit::Cpus,
            Self::Packets => FigureUnit::PacketsPerS,
            Self::Metric(Metric::Packets) => FigureUnit::PacketsPerS,
            Self::Bits | Self::Metric(Metric::Bits) => FigureUnit::Gbps,
            Self::Metric(Metric::Path { figure: Statistic::Above(_), .. }) => FigureUnit::Share,
            Self::Metric(_) => FigureUnit::Ns,
        }
    }

    /// Whether its inverse is compared, as more of it is better.
    fn is_rate(&self) -> bool {
        matches!(self.unit(), FigureUnit::PacketsPerS | FigureUnit::Gbps)
    }

    /// What a block contributes to it in a trial of a change that is applied once, where effects are ratios.
    fn observed(&self, measured: &MeasuredBlock) -> Option<Observed> {
        match self {
            Self::Percentile(percentile) => {
                let buckets = measured.latencies.clone()?;
                Some(Observed::Latencies { percentile: *percentile, buckets })
            }
            Self::Metric(_) => Some(measured.block.observed.clone()),
            Self::Packets => Some(Observed::Ratio { sum: 1.0, count: measured.block.rate_per_s }),
            Self::Bits => Some(Observed::Ratio { sum: 1.0, count: measured.gbps }),
            // None lost has a logarithm, too.
            Self::Lost => Some(Observed::Ratio { sum: 1.0 + measured.lost_per_s, count: 1.0 }),
            Self::Above(_) | Self::Cpus => None,
        }
    }

    fn value(&self, measured: &MeasuredBlock) -> Option<f64> {
        match self {
            Self::Percentile(share) => {
                block_percentile(measured.latencies.as_ref()?, measured.block.lost, *share)
            }
            Self::Above(limit_ns) => {
                share_above(measured.latencies.as_ref()?, measured.block.lost, *limit_ns)
            }
            Self::Lost => Some(measured.lost_per_s),
            // Packets that are lost cost less than those that come.
            Self::Cpus => {
                Some(measured.block.cpus_busy).filter(|_| measured.block.lost < MANY_LOST)
            }
            Self::Packets => Some(1.0 / measured.block.rate_per_s),
            Self::Bits => Some(1.0 / measured.gbps),
            Self::Metric(_) => match &measured.block.observed {
                Observed::Latencies { percentile: share, buckets } => {
                    block_percentile(buckets, measured.block.lost, *share)
                }
                Observed::Above { above, of } => (*of > 0).then(|| above / *of as f64),
                Observed::Ratio { sum, count } => (*count > 0.0).then(|| sum / count),
            },
        }
    }

    /// Of all blocks of a side.
    fn pooled(&self, side: &[&MeasuredBlock]) -> Option<f64> {
        let mean = |value: fn(&MeasuredBlock) -> f64| {
            let sum: f64 = side.iter().map(|block| value(block)).sum();
            (!side.is_empty()).then(|| sum / side.len() as f64)
        };
        match self {
            Self::Percentile(share) => percentile(&merged(side), lost_of(side), *share),
            Self::Above(limit_ns) => share_above(&merged(side), lost_of(side), *limit_ns),
            Self::Lost => mean(|its| its.lost_per_s),
            Self::Cpus => mean(|its| its.block.cpus_busy),
            Self::Packets => mean(|its| its.block.rate_per_s),
            Self::Bits => mean(|its| its.gbps),
            Self::Metric(Metric::Path { figure: Statistic::Percentile(share), .. }) => {
                percentile(&merged(side), lost_of(side), *share)
            }
            Self::Metric(_) => {
                let value = Pool::of(side.iter().map(|its| &its.block.observed))?.value()?;
                Some(if self.is_rate() { 1.0 / value } else { value })
            }
        }
    }
}

/// The same in one block, if it has enough packets.
fn block_percentile(buckets: &Buckets, lost: f64, share: f64) -> Option<f64> {
    let packets = count(buckets) / (1.0 - lost).max(f64::MIN_POSITIVE);
    let has_enough = packets * share.min(1.0 - share) >= BEYOND;
    percentile(buckets, lost, share).filter(|_| has_enough)
}

/// A percentile of packets of which a share was lost, and is not in the buckets.
fn percentile(buckets: &Buckets, lost: f64, share: f64) -> Option<f64> {
    let came = 1.0 - lost;
    if buckets.is_empty() {
        return None;
    }
    if share >= came {
        return Some(LOST_NS);
    }
    interpolated_ns(buckets, share / came)
}

/// The share above a limit, with those lost.
fn share_above(buckets: &Buckets, lost: f64, limit_ns: u64) -> Option<f64> {
    let packets = count(buckets);
    let above = |packets: f64| count_above(buckets, limit_ns as f64) / packets;
    (packets > 0.0).then(|| lost + (1.0 - lost) * above(packets))
}

/// The share lost of all packets of these blocks.
fn lost_of(side: &[&MeasuredBlock]) -> f64 {
    let packets = |its: &&MeasuredBlock| its.latencies.as_ref().map_or(0.0, |all| count(all));
    let came: f64 = side.iter().map(packets).sum();
    let lost = |its: &&MeasuredBlock| {
        packets(its) * its.block.lost / (1.0 - its.block.lost).max(f64::MIN_POSITIVE)
    };
    let lost: f64 = side.iter().map(lost).sum();
    if came > 0.0 { lost / (came + lost) } else { 0.0 }
}

/// The latencies of all these blocks.
pub(super) fn merged(side: &[&MeasuredBlock]) -> Buckets {
    let mut merged = BTreeMap::new();
    // Blocks without a packet have none.
    for &(bucket, count) in side.iter().filter_map(|its| its.latencies.as_ref()).flatten() {
        *merged.entry(bucket).or_insert(0) += count;
    }
    merged.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::Verdict;
    use nearpath_model::histogram::bucket;

    fn measured(packets: u64) -> MeasuredBlock {
        let latencies = vec![(bucket(20_000), packets)];
        let observed = Observed::Latencies { percentile: 0.999, buckets: latencies.clone() };
        let (lost, errors, drops, cpus_busy, rate_per_s) = (0.0, 0.0, 0.0, 1.0, 100.0);
        let block = Block { observed, lost, errors, drops, cpus_busy, rate_per_s };
        MeasuredBlock { block, lost_per_s: 2.0, gbps: 1.0, hops: None, latencies: Some(latencies) }
    }

    #[test]
    fn blocks_are_as_long_as_their_percentiles_need() {
        let block = Duration::from_millis(500);
        let packets =
            Figures::new(&Compared::Packets { above_ns: 1_000_000 }, 0.05, PlanTraits::default());
        let length = |packets_per_block| packets.long_enough(block, &measured(packets_per_block));
        assert_eq!(length(1_000), Ok(block));
        // 250 in 500 ms: p99 needs 500, and a quarter more.
        assert_eq!(length(250), Ok(Duration::from_millis(1_250)));
        // p99 would take too long: p50 remains.
        assert_eq!(length(20), Ok(block));
        let metric = Compared::Metric("p99.9".parse().unwrap());
        let asked = Figures::new(&metric, 0.05, PlanTraits::default());
        assert_eq!(asked.long_enough(block, &measured(2_500)), Ok(Duration::from_millis(1_250)));
        let refused = asked.long_enough(block, &measured(250)).unwrap_err();
        assert!(
            refused.starts_with("250 packets in 500ms are too few for p99.9: 5000"),
            "{refused}"
        );
    }

    #[test]
    fn lost_packets_are_late() {
        let packets =
            Figures::new(&Compared::Packets { above_ns: 1_000_000 }, 0.05, PlanTraits::default());
        let mut block = measured(1_000);
        block.block.lost = 0.02;
        let values = packets.block_values(&block);
        assert!(values[0].is_some_and(|p50| p50 < 21_000.0), "{values:?}");
        assert_eq!((values[1], values[2]), (Some(LOST_NS), Some(0.02)));
        let (full, half) = (measured(1_000), [(false, block)]);
        assert!(packets.block_values(&full)[1].is_some_and(|p99| p99 < 21_000.0));
        let none = Effect { estimate: None, interval: None, wealth: [1.0; 2] };
        let found = packets.report(&half, &[none; 6]);
        assert_eq!((found[1].without, found[1].with), (Some(LOST_NS), None));
        assert!(found[2].without.is_some_and(|above| (above - 0.02).abs() < 1e-9));
    }

    #[test]
    fn more_bytes_in_fewer_packets_are_no_harm() {
        let verdicts = |opens_windows, gbps_after: f64| -> Vec<_> {
            let traits = PlanTraits { opens_windows, ..PlanTraits::default() };
            let compared = Compared::Packets { above_ns: 1_000_000 };
            let figures = Figures::new(&compared, 0.05, traits);
            let block = |number: u32, rate_per_s: f64, gbps: f64| {
                let noise = 1.0 + 0.01 * f64::from(number * 7 % 5);
                let its = measured(1_000);
                let cpus_busy = gbps * noise;
                let block =
                    Block { rate_per_s: rate_per_s * noise, cpus_busy, ..its.block.clone() };
                MeasuredBlock { block, gbps: gbps * noise, ..its }
            };
            let before: Vec<_> = (0..12).map(|number| block(number, 100.0, 1.0)).collect();
            let after: Vec<_> = (0..12).map(|number| block(number + 1, 80.0, gbps_after)).collect();
            let sides = (before.iter().collect::<Vec<_>>(), after.iter().collect::<Vec<_>>());
            let found = figures.compared_once((&sides.0, &sides.1));
            found.into_iter().flatten().map(|found| found.verdict).collect()
        };
        let opened = verdicts(true, 3.0);
        assert!(opened.contains(&Verdict::Better) && !opened.contains(&Verdict::Worse));
        assert!(verdicts(true, 0.8).contains(&Verdict::Worse));
        assert!(verdicts(false, 3.0).contains(&Verdict::Worse));
    }

    #[test]
    fn a_change_applied_once_that_ends_losses_is_better_unless_packets_are_far_later() {
        let compared = Compared::Packets { above_ns: 1_000_000 };
        let figures = Figures::new(&compared, 0.05, PlanTraits::default());
        let verdicts = |lost: [fn(u32) -> f64; 2], after_ns: u64, cpus_after: f64| {
            let block = |number: u32, lost: fn(u32) -> f64, ns, cpus_busy| {
                let (its, lost_per_s) = (measured(1_000), lost(number));
                let block = Block { lost: lost_per_s / 2_000.0, cpus_busy, ..its.block.clone() };
                let latencies = Some(vec![(bucket(ns), 1_000)]);
                MeasuredBlock { block, lost_per_s, latencies, ..its }
            };
            let before: Vec<_> =
                (0..12).map(|number| block(number, lost[0], 20_000, 1.0)).collect();
            let after: Vec<_> =
                (12..24).map(|number| block(number, lost[1], after_ns, cpus_after)).collect();
            let sides = (before.iter().collect::<Vec<_>>(), after.iter().collect::<Vec<_>>());
            figures.verdicts_once(&figures.compared_once((&sides.0, &sides.1)))
        };
        let many = |number| 500.0 + 20.0 * f64::from(number * 7 % 5);
        let (none, now_and_then) = (|_| 0.0, |number| f64::from(number % 4 / 3));
        let is_better = |found: Vec<Verdict>| {
            found.contains(&Verdict::Better) && !found.contains(&Verdict::Worse)
        };
        // Packets that come cost more, and wait for each other.
        assert!(is_better(verdicts([many, none], 24_000, 2.0)));
        assert!(verdicts([many, none], 40_000, 2.0).contains(&Verdict::Worse));
        assert!(verdicts([none, many], 20_000, 1.0).contains(&Verdict::Worse));
        assert!(verdicts([none, none], 24_000, 1.0).contains(&Verdict::Worse));
        for lost in [none, now_and_then] {
            let found = verdicts([lost, lost], 20_000, 1.0);
            assert!(!found.contains(&Verdict::Better) && !found.contains(&Verdict::Worse));
        }
        assert!(verdicts([none, none], 20_000, 2.0).contains(&Verdict::Worse));
    }

    #[test]
    fn each_figure_has_a_value_and_rates_are_compared_by_their_inverse() {
        let packets =
            Figures::new(&Compared::Packets { above_ns: 1_000 }, 0.05, PlanTraits::default());
        let values = packets.block_values(&measured(1_000));
        let [Some(p50), Some(p99), Some(above), Some(lost), Some(cpus), Some(rate)] = values[..]
        else {
            panic!("{values:?}")
        };
        assert!((19_000.0..21_000.0).contains(&p50) && p99 >= p50, "{values:?}");
        assert_eq!([above, lost, cpus, rate], [1.0, 2.0, 1.0, 0.01]);
        let effect = Effect { estimate: Some(0.5), interval: Some([0.4, 0.8]), wealth: [1.0; 2] };
        let blocks = [(false, measured(100)), (true, measured(100))];
        let found = packets.report(&blocks, &[effect; 6]);
        let rate = &found[5];
        assert_eq!(
            (rate.without, rate.effect, rate.ci95),
            (Some(100.0), Some(2.0), Some([1.25, 2.5]))
        );
        // Tasks that are moved may compute more.
        let moved = Figures::new(
            &Compared::Packets { above_ns: 1_000 },
            0.05,
            PlanTraits { moves_tasks: true, ..PlanTraits::default() },
        );
        assert!(moved.report(&blocks, &[effect; 5]).iter().all(|its| its.name != "cpus_busy"));
    }
}
