//! The block between two readings. Input: the values of instruments and counters at the start and the end, the
//! probes between them, and the CPU times. Output: the block and the hops of packets.
//!
//! Latencies are those of whole packets, each from its first stage to its end: percentiles are of packets, and
//! stay defined if a change removes a span from the path.

mod metric;
mod part;

pub use metric::{Figure, METRICS, Metric};

use crate::latency::Probes;
use nearpath_model::{Block, CpuTime, Hops, Measurement, Observed, PathKind, units};
use part::{Part, PathPart, Samples, paths_between, spans_between};

/// The state of the host at the start or the end of a block.
#[derive(Debug, Clone)]
pub struct Reading {
    /// On a monotonic clock, in seconds.
    pub time_s: f64,
    /// The instrument's totals; `None` if packets cannot be tracked.
    pub measurement: Option<Measurement>,
    /// Counters of interfaces, in total.
    pub interfaces: Option<Interfaces>,
    /// Probes since the previous reading; `None` if none are sent.
    pub probes: Option<Probes>,
    /// The CPUs' total times.
    pub cpu_time: Vec<CpuTime>,
}

/// What interfaces count, received and sent together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets with errors.
    pub errors: u64,
    /// Packets dropped, also by the CPUs' backlogs.
    pub drops: u64,
}

impl Interfaces {
    /// What was counted since an earlier reading.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            packets: self.packets.saturating_sub(before.packets),
            errors: self.errors.saturating_sub(before.errors),
            drops: self.drops.saturating_sub(before.drops),
        }
    }

    /// Errors and drops per packet, 0 to 1.
    pub fn shares(self) -> [f64; 2] {
        [self.errors, self.drops].map(|bad| bad as f64 / (self.packets + bad).max(1) as f64)
    }
}

/// The difference between two readings of the instrument.
struct Followed<'a> {
    started: u64,
    completed: u64,
    dropped: u64,
    spans: Vec<Part<'a>>,
    paths: Vec<PathPart>,
}

impl<'a> Followed<'a> {
    fn between(begin: &'a Reading, end: &'a Reading) -> Option<Self> {
        let (begin, end) = (begin.measurement.as_ref()?, end.measurement.as_ref()?);
        let packets = |of: fn(&Measurement) -> u64| of(end).saturating_sub(of(begin));
        Some(Self {
            started: packets(|m| m.packets.started),
            completed: packets(|m| m.packets.completed),
            dropped: packets(|m| m.packets.dropped),
            spans: spans_between(begin, end),
            paths: paths_between(begin, end),
        })
    }

    /// A figure of the whole packets with this kind of path, and their number.
    fn of_path(
        &self,
        kind: PathKind,
        figure: Figure,
        needs: Needs,
    ) -> Result<(Observed, u64), String> {
        let has_packets = |part: &&PathPart| part.samples.count() > 0;
        let part = self.paths.iter().filter(has_packets).find(|part| part.kind == kind);
        let Some(PathPart { samples, .. }) = part else {
            if needs == Needs::Anything {
                return Ok((Samples::default().observed(figure), 0));
            }
            let others: Vec<String> = self
                .paths
                .iter()
                .filter(has_packets)
                .map(|part| {
                    format!("{}:{figure} ({} packets)", part.kind.name(), part.samples.count())
                })
                .collect();
            let advice = match others.as_slice() {
                [] => "; try a longer --block, or check that traffic flows".to_owned(),
                others => format!("; available: {}", others.join(", ")),
            };
            return Err(format!("no packet completed a {} path{advice}", kind.name()));
        };
        Ok((samples.observed(figure), samples.count()))
    }
}

/// What a block must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// A packet, or a probe.
    Some,
    /// Nothing: that no packet comes through is a result, too.
    Anything,
}

/// The block between two readings, and the hops of its packets if they were tracked.
///
/// # Errors
/// Data missing for the metric: too few packets or probes, or the span does not occur.
pub fn block(
    metric: &Metric,
    begin: &Reading,
    end: &Reading,
    needs: Needs,
) -> Result<(Block, Option<Hops>), String> {
    let seconds = end.time_s - begin.time_s;
    let followed = Followed::between(begin, end);
    let enough = |count: u64, what: &str| {
        if count > 0 || needs == Needs::Anything {
            return Ok(());
        }
        Err(format!("no {what} in {}; try a longer --block", units::seconds(seconds)))
    };
    let counted = end.interfaces.zip(begin.interfaces).map(|(end, begin)| end.since(begin));
    let observed = match (metric, &end.probes) {
        (Metric::Bits, _) => {
            Observed::Ratio { sum: seconds, count: gigabits(counted, seconds, needs)? }
        }
        (Metric::Path { kind: None, figure }, Some(probes)) => {
            enough(probes.latency.count, "probes")?;
            Samples::of_probes(probes).observed(*figure)
        }
        _ => {
            let followed = followed.as_ref().ok_or("packets cannot be tracked on this host")?;
            let (observed, count) = of_packets(metric, followed, seconds, needs)?;
            enough(count, "packets")?;
            observed
        }
    };
    let probes = end.probes.as_ref();
    let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
    let dropped = followed.as_ref().map_or(0.0, |f| share(f.dropped, f.started));
    let unanswered = probes.map_or(0.0, |probes| share(probes.lost(), probes.sent));
    let came = followed.as_ref().map(|f| f.completed).or(probes.map(|probes| probes.received));
    let bytes = || Some(counted?.bytes);
    let [errors, drops] = counted.unwrap_or_default().shares();
    let block = Block {
        observed,
        lost: dropped.max(unanswered),
        errors,
        drops,
        cpus_busy: cpus_busy(&begin.cpu_time, &end.cpu_time),
        rate_per_s: came.or_else(bytes).unwrap_or(0) as f64 / seconds,
    };
    Ok((block, followed.map(|f| part::hops(&f.spans, f.started))))
}

/// The latencies between two readings that the metric is of; `None` if it is of none.
pub fn latencies(metric: &Metric, begin: &Reading, end: &Reading) -> Option<Vec<(usize, u64)>> {
    match (metric, &end.probes) {
        (Metric::Path { kind: None, .. }, Some(probes)) => {
            Some(Samples::of_probes(probes).numbered())
        }
        (Metric::Path { kind, .. }, _) => {
            let followed = Followed::between(begin, end)?;
            let kind = kind.unwrap_or(PathKind::Receive);
            let part = followed.paths.iter().find(|part| part.kind == kind)?;
            Some(part.samples.numbered())
        }
        _ => None,
    }
}

fn gigabits(counted: Option<Interfaces>, seconds: f64, needs: Needs) -> Result<f64, String> {
    match counted.ok_or("the interfaces have no byte counters")?.bytes {
        0 if needs == Needs::Anything => Ok(0.0),
        0 => Err(format!(
            "no bytes were received or sent in {}; try a longer --block",
            units::seconds(seconds)
        )),
        bytes => Ok(bytes as f64 * 8e-9),
    }
}

/// What is observed for the metric, and the number of packets behind it.
fn of_packets(
    metric: &Metric,
    followed: &Followed<'_>,
    seconds: f64,
    needs: Needs,
) -> Result<(Observed, u64), String> {
    let completed = followed.completed;
    Ok(match metric {
        Metric::Packets | Metric::Bits => {
            (Observed::Ratio { sum: seconds, count: completed as f64 }, completed)
        }
        Metric::Path { kind, figure } => {
            followed.of_path(kind.unwrap_or(PathKind::Receive), *figure, needs)?
        }
        Metric::Span { from, to } => {
            let is_asked = |part: &&Part| part.span.from == *from && part.span.to == *to;
            let found = followed.spans.iter().find(is_asked);
            if found.is_none() && needs == Needs::Anything {
                return Ok((Samples::default().observed(Figure::Percentile(0.99)), 0));
            }
            let part = found.ok_or_else(|| {
                format!("no packet passed from {from} to {to}: if a change removes this span from the path, compare a whole path instead")
            })?;
            (part.samples.observed(Figure::Percentile(0.99)), part.samples.count())
        }
    })
}

/// Average number of busy CPUs between two readings.
pub fn cpus_busy(begin: &[CpuTime], end: &[CpuTime]) -> f64 {
    let busy = |now: &CpuTime| {
        let was = begin.iter().find(|was| was.cpu == now.cpu)?;
        let past = |of: fn(&CpuTime) -> u64| of(now).saturating_sub(of(was)) as f64;
        let worked =
            past(|t| t.user + t.nice) + past(|t| t.system) + past(|t| t.irq) + past(|t| t.softirq);
        let all = worked + past(|t| t.idle) + past(|t| t.iowait) + past(|t| t.steal.unwrap_or(0));
        (all > 0.0).then(|| worked / all)
    };
    end.iter().filter_map(busy).sum()
}

#[cfg(test)]
mod tests;
