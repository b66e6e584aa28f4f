//! The block between two readings. Input: the values of instruments and counters at the start and the end, the
//! probes between them, and the CPU times. Output: the block and the hops of packets.
//!
//! Latencies are those of whole packets, each from its first stage to its end: percentiles are of packets, and
//! stay defined if a change removes a span from the path.

mod metric;
mod part;

pub use metric::{Figure, METRICS, Metric};

use crate::latency::Probes;
use nearpath_model::{Block, CpuTime, Hops, Measurement, PathKind, units};
use part::{Part, PathPart, paths_between, spans_between};

/// The state of the host at the start or the end of a block.
#[derive(Debug, Clone)]
pub struct Reading {
    /// On a monotonic clock, in seconds.
    pub time_s: f64,
    /// The instrument's totals; `None` if packets cannot be tracked.
    pub measurement: Option<Measurement>,
    /// Bytes received and sent by interfaces, in total.
    pub bytes: Option<u64>,
    /// Probes since the previous reading; `None` if none are sent.
    pub probes: Option<Probes>,
    /// The CPUs' total times.
    pub cpu_time: Vec<CpuTime>,
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
    fn of_path(&self, kind: PathKind, figure: Figure) -> Result<(f64, u64), String> {
        let has_packets = |part: &&PathPart| part.samples.count() > 0;
        let part = self.paths.iter().filter(has_packets).find(|part| part.kind == kind);
        let Some(PathPart { samples, .. }) = part else {
            let others: Vec<String> = self
                .paths
                .iter()
                .filter(has_packets)
                .map(|part| {
                    format!("{}:{figure} ({} packets)", part.kind.name(), part.samples.count())
                })
                .collect();
            let advice = match others.as_slice() {
                [] => String::new(),
                others => format!("; available: {}", others.join(", ")),
            };
            return Err(format!("no packet completed a {} path{advice}", kind.name()));
        };
        let value = match figure {
            Figure::Mean => samples.mean(),
            Figure::Percentile(share) => samples.percentile(share),
        };
        Ok((value, samples.count()))
    }
}

/// The block between two readings, and the hops of its packets if they were tracked.
///
/// # Errors
/// Data missing for the metric: too few packets or probes, or the span does not occur.
pub fn block(
    metric: &Metric,
    begin: &Reading,
    end: &Reading,
) -> Result<(Block, Option<Hops>), String> {
    let seconds = end.time_s - begin.time_s;
    let followed = Followed::between(begin, end);
    let enough = |count: u64, what: &str| {
        let least = metric.samples_min();
        if count >= least {
            return Ok(());
        }
        Err(format!(
            "{count} {what} in {} are too few for {metric}: {least} needed; try a longer --block",
            units::seconds(seconds)
        ))
    };
    let value = match (metric, &end.probes) {
        (Metric::Bits, _) => seconds / gigabits(begin, end, seconds)?,
        (Metric::Path { kind: None, figure }, Some(probes)) => {
            enough(probes.latency.count, "probes")?;
            of_probes(*figure, probes)?
        }
        _ => {
            let followed = followed.as_ref().ok_or("packets cannot be tracked on this host")?;
            let (value, count) = of_packets(metric, followed, seconds)?;
            enough(count, "packets")?;
            value
        }
    };
    let probes = end.probes.as_ref();
    let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
    let dropped = followed.as_ref().map_or(0.0, |f| share(f.dropped, f.started));
    let unanswered = probes.map_or(0.0, |probes| share(probes.lost(), probes.sent));
    let came = followed.as_ref().map(|f| f.completed).or(probes.map(|probes| probes.received));
    let bytes = || Some(end.bytes?.saturating_sub(begin.bytes?));
    let block = Block {
        metric: value,
        lost: dropped.max(unanswered),
        cpus_busy: cpus_busy(&begin.cpu_time, &end.cpu_time),
        rate_per_s: came.or_else(bytes).unwrap_or(0) as f64 / seconds,
    };
    Ok((block, followed.map(|f| part::hops(&f.spans, f.started))))
}

fn gigabits(begin: &Reading, end: &Reading, seconds: f64) -> Result<f64, String> {
    let (before, after) =
        begin.bytes.zip(end.bytes).ok_or("the interfaces have no byte counters")?;
    match after.saturating_sub(before) {
        0 => Err(format!("no bytes were received or sent in {}", units::seconds(seconds))),
        bytes => Ok(bytes as f64 * 8e-9),
    }
}

fn of_probes(figure: Figure, probes: &Probes) -> Result<f64, String> {
    let value = match figure {
        Figure::Percentile(share) => {
            let name = (share * 100.0).to_string();
            probes.latency.percentiles.get(&name).map(|&ns| ns as f64)
        }
        Figure::Mean => probes.latency.mean_ns,
    };
    value.ok_or_else(|| format!("{} probes have no {figure}", probes.latency.count))
}

/// The metric, and the number of packets behind it.
fn of_packets(
    metric: &Metric,
    followed: &Followed<'_>,
    seconds: f64,
) -> Result<(f64, u64), String> {
    Ok(match metric {
        Metric::Packets | Metric::Bits => (seconds / followed.completed as f64, followed.completed),
        Metric::Path { kind, figure } => {
            followed.of_path(kind.unwrap_or(PathKind::Receive), *figure)?
        }
        Metric::Span { from, to } => {
            let is_asked = |part: &&Part| part.span.from == *from && part.span.to == *to;
            let part = followed.spans.iter().find(is_asked).ok_or_else(|| {
                format!("no packet passed from {from} to {to}: if a change removes this span from the path, compare a whole path instead")
            })?;
            (part.samples.percentile(0.99), part.samples.count())
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
