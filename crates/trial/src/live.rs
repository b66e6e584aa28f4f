//! The metric of a block from live traffic: in go two readings of the instrument `stages`, which counts
//! on, and how busy the CPUs were; out come the block between them and how far packets went.
//!
//! A percentile of the whole path is not measured packet by packet: it is the sum of the spans'
//! percentiles, each by the share of packets that pass the span. It moves as the path's own does, and
//! stays defined when a change takes a span out of the path.

use crate::comparison::Block;
use nearpath_host::CpuTime;
use nearpath_instruments::{Direction, Measurement, Span};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What is compared. Of latencies less is better, of rates more.
#[derive(Debug, Clone, PartialEq)]
pub enum Metric {
    /// Mean time of a received packet in the kernel, over all of its spans.
    Mean,
    /// The same for a percentile, a share of 0 to 1.
    Percentile(f64),
    /// The 99th percentile of one span.
    Span {
        /// The stage before.
        from: String,
        /// The stage after.
        to: String,
    },
    /// Packets that reach their end, per second.
    Packets,
}

/// The names of the metrics, as `--metric` takes them.
pub const METRICS: &str = "mean, p50, p90, p99, p99.9, stage:FROM..TO, pps";

impl FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let span = text.strip_prefix("stage:").and_then(|span| span.split_once(".."));
        match (text, span) {
            ("mean", _) => Ok(Self::Mean),
            ("p50", _) => Ok(Self::Percentile(0.5)),
            ("p90", _) => Ok(Self::Percentile(0.9)),
            ("p99", _) => Ok(Self::Percentile(0.99)),
            ("p99.9", _) => Ok(Self::Percentile(0.999)),
            ("pps", _) => Ok(Self::Packets),
            (_, Some((from, to))) => Ok(Self::Span { from: from.to_owned(), to: to.to_owned() }),
            _ => Err(format!("no metric; there are {METRICS}")),
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mean => f.write_str("mean"),
            Self::Percentile(share) => write!(f, "p{}", share * 100.0),
            Self::Span { from, to } => write!(f, "stage:{from}..{to}"),
            Self::Packets => f.write_str("pps"),
        }
    }
}

impl Metric {
    /// How many packets a block must have for it.
    fn packets_min(&self) -> u64 {
        match self {
            Self::Mean | Self::Packets => 20,
            Self::Percentile(share) => (10.0 / (1.0 - share)).round() as u64,
            Self::Span { .. } => 1_000,
        }
    }

    /// Whether more of it is better.
    pub fn is_rate(&self) -> bool {
        *self == Self::Packets
    }
}

/// How often packets went to another CPU, cache or node between two stages; hops for each packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Hops {
    /// To another CPU.
    pub other_cpu: f64,
    /// To another last-level cache; `None` where caches are not known.
    pub other_llc: Option<f64>,
    /// To another node; `None` where there are none.
    pub other_node: Option<f64>,
}

/// How the host stood at the begin or the end of a block.
#[derive(Debug, Clone)]
pub struct Reading {
    /// What the instrument has counted so far.
    pub measurement: Measurement,
    /// The CPUs' times so far.
    pub cpu_time: Vec<CpuTime>,
}

/// The block between two readings, and the hops of its packets.
///
/// # Errors
/// What the block lacks: packets enough for the metric, or the span that it is of.
pub fn block(metric: &Metric, begin: &Reading, end: &Reading) -> Result<(Block, Hops), String> {
    let packets =
        |of: fn(&Measurement) -> u64| of(&end.measurement).saturating_sub(of(&begin.measurement));
    let seconds = end.measurement.duration_s - begin.measurement.duration_s;
    let started = packets(|m| m.packets.started);
    let completed = packets(|m| m.packets.completed);
    let spans: Vec<Part> = end
        .measurement
        .spans
        .iter()
        .map(|span| {
            let before = begin.measurement.spans.iter().find(|old| is_same(old, span));
            Part::of(before, span)
        })
        .collect();
    let received: Vec<&Part> =
        spans.iter().filter(|part| part.span.direction == Direction::Rx).collect();
    let passed = received.iter().map(|part| part.count()).max().unwrap_or(0);
    let enough = |count: u64| {
        if count >= metric.packets_min() {
            return Ok(());
        }
        Err(format!(
            "{count} packets in {seconds:.1} s are too few for {metric}: it takes {}; try a longer --block",
            metric.packets_min()
        ))
    };
    let over_path = |value: &dyn Fn(&Part) -> f64| -> f64 {
        let weighted = |part: &&Part| value(part) * part.count() as f64 / passed as f64;
        received.iter().filter(|part| part.count() > 0).map(weighted).sum()
    };
    let value = match metric {
        Metric::Packets => {
            enough(completed)?;
            seconds / completed as f64
        }
        Metric::Mean => {
            enough(passed)?;
            over_path(&|part| part.mean())
        }
        Metric::Percentile(share) => {
            enough(passed)?;
            over_path(&|part| part.percentile(*share))
        }
        Metric::Span { from, to } => {
            let is_asked = |part: &&Part| part.span.from == *from && part.span.to == *to;
            let part = spans.iter().find(is_asked).ok_or_else(|| {
                format!("no packet went from {from} to {to}: a change that takes this span out of the path has no other to be compared with")
            })?;
            enough(part.count())?;
            part.percentile(0.99)
        }
    };
    let block = Block {
        metric: value,
        lost: packets(|m| m.packets.dropped) as f64 / started.max(1) as f64,
        cpus_busy: cpus_busy(&begin.cpu_time, &end.cpu_time),
        rate_per_s: completed as f64 / seconds,
    };
    Ok((block, hops(&spans, started)))
}

fn is_same(a: &Span, b: &Span) -> bool {
    (a.direction, &a.from, &a.to) == (b.direction, &b.from, &b.to)
}

/// The samples of a span that came between two readings.
struct Part<'a> {
    span: &'a Span,
    total_ns: u64,
    /// `[upper_ns, count]`, ascending.
    buckets: Vec<(u64, u64)>,
    hops: [Option<f64>; 3],
}

impl<'a> Part<'a> {
    fn of(before: Option<&Span>, span: &'a Span) -> Self {
        let old = |upper: u64| {
            let buckets = before.map_or(&[][..], |span| &span.buckets);
            let found = buckets.binary_search_by_key(&upper, |&(upper, _)| upper);
            found.ok().and_then(|index| buckets.get(index)).map_or(0, |&(_, count)| count)
        };
        let new = |&(upper, count): &(u64, u64)| (upper, count.saturating_sub(old(upper)));
        let crossed = |share: fn(&Span) -> Option<f64>| {
            let hops = |span: &Span| share(span).map(|share| share * span.count as f64);
            Some((hops(span)? - before.and_then(hops).unwrap_or(0.0)).max(0.0))
        };
        Self {
            span,
            total_ns: span.total_ns.saturating_sub(before.map_or(0, |span| span.total_ns)),
            buckets: span.buckets.iter().map(new).filter(|&(_, count)| count > 0).collect(),
            hops: [crossed(|s| s.other_cpu), crossed(|s| s.other_llc), crossed(|s| s.other_node)],
        }
    }

    fn count(&self) -> u64 {
        self.buckets.iter().map(|&(_, count)| count).sum()
    }

    fn mean(&self) -> f64 {
        self.total_ns as f64 / self.count() as f64
    }

    /// By nearest rank, and within a bucket by the place among its samples, so that a small shift is
    /// not lost in the width of a bucket (3.2 %).
    fn percentile(&self, share: f64) -> f64 {
        let rank = (self.count() as f64 * share).ceil().max(1.0);
        let mut seen = 0.0;
        for &(upper, count) in &self.buckets {
            let count = count as f64;
            if seen + count >= rank {
                let lower = upper as f64 / 1.032;
                return lower + (upper as f64 - lower) * (rank - seen) / count;
            }
            seen += count;
        }
        0.0
    }
}

fn hops(spans: &[Part], started: u64) -> Hops {
    let each = |of: usize| {
        let sums: Option<Vec<f64>> = spans.iter().map(|part| part.hops[of]).collect();
        sums.map(|sums| sums.iter().sum::<f64>() / started.max(1) as f64)
    };
    Hops { other_cpu: each(0).unwrap_or(0.0), other_llc: each(1), other_node: each(2) }
}

/// How many CPUs did something between two readings, on average.
fn cpus_busy(begin: &[CpuTime], end: &[CpuTime]) -> f64 {
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
