//! Whole paths (`bpf/path.h`). Input: the samples of each kind of path. Output: a [`PathLatency`].

use super::load::types::histogram;
use super::samples::Samples;
use super::table::{SPANS_MAX, STAGES, Stage};
use super::watch::SKB_TSTAMP;
use crate::kernel::{word_of, words_of};
use crate::layout::Layout;
use crate::stamps::NIC_RX;
use nearpath_model::{Above, Direction, PathKind, PathLatency};
use std::time::Duration;

/// Maximum number of thresholds for which slower paths are counted (`ABOVE_MAX`).
pub const ABOVE_MAX: usize = word_of!(histogram, buckets) - word_of!(histogram, above);
/// The number of the first kind's cell in a group (`PATH_CELLS`).
const FIRST_CELL: usize = SPANS_MAX + 1;

const _: () = assert!(FIRST_CELL + PathKind::ALL.len() <= 256, "a cell's number has eight bits");
const _: () = assert!(words_of::<histogram>() > ABOVE_MAX);

/// The default thresholds.
const DEFAULT_ABOVE: [Duration; ABOVE_MAX] =
    [Duration::from_micros(100), Duration::from_millis(1), Duration::from_millis(10)];

/// The number of a kind's cell in a group.
pub fn cell(kind: PathKind) -> usize {
    FIRST_CELL + kind as usize
}

/// The thresholds for which slower paths are counted, in nanoseconds, ascending: those requested, up to the
/// maximum.
fn thresholds(asked: &[Duration]) -> Vec<u64> {
    let times = if asked.is_empty() { &DEFAULT_ABOVE[..] } else { asked };
    let ns = |time: &Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut thresholds: Vec<u64> = times.iter().map(ns).collect();
    thresholds.sort_unstable();
    thresholds.dedup();
    thresholds.truncate(ABOVE_MAX);
    thresholds
}

/// The same in the programs' format.
pub fn above_ns(asked: &[Duration]) -> [u64; ABOVE_MAX] {
    let thresholds = thresholds(asked);
    std::array::from_fn(|at| thresholds.get(at).copied().unwrap_or(u64::MAX))
}

/// The samples of each kind that has any.
pub type PathsOfWhole = Vec<(PathKind, Samples)>;

/// Stages of a send call: what the kernel sends by itself starts after them.
const OF_SEND_CALL: [&str; 2] = ["sock_send", "tcp_sendmsg"];

/// Data shared by the paths of a measurement.
#[derive(Debug, Clone)]
pub struct PathTerms {
    thresholds: Vec<u64>,
    from: [&'static str; PathKind::ALL.len()],
}

impl PathTerms {
    /// With the requested thresholds, and the observed stages.
    pub fn new(above: &[Duration], is_observed: impl Fn(&Stage) -> bool) -> Self {
        let begins = |kind: PathKind, stage: &Stage| match kind {
            PathKind::Watch => false,
            PathKind::ReceiveFromNic | PathKind::ForwardFromNic => stage.name == NIC_RX,
            PathKind::Receive | PathKind::Forward => {
                stage.direction == Direction::Rx && stage.name != NIC_RX
            }
            PathKind::Transmit => stage.direction == Direction::Tx,
            PathKind::KernelTransmit => {
                stage.direction == Direction::Tx && !OF_SEND_CALL.contains(&stage.name)
            }
        };
        let first = |kind| STAGES.iter().find(|stage| begins(kind, stage) && is_observed(stage));
        let from = PathKind::ALL.map(|kind| match kind {
            PathKind::Watch => SKB_TSTAMP,
            _ => first(kind).map_or("", |stage| stage.name),
        });
        Self { thresholds: thresholds(above), from }
    }
}

/// Latencies of one kind of path; `None` without a sample.
pub fn latency(
    kind: PathKind,
    samples: &Samples,
    terms: &PathTerms,
    layout: &Layout,
) -> Option<PathLatency> {
    let figures = samples.figures(layout)?;
    let above = |(at, &ns): (usize, &u64)| {
        let count = samples.above(at).min(figures.count);
        Above { ns, count, share: count as f64 / figures.count as f64 }
    };
    Some(PathLatency {
        kind,
        from: terms.from.get(kind as usize).copied().unwrap_or_default().to_owned(),
        count: figures.count,
        min_ns: figures.min_ns,
        p50_ns: figures.p50_ns,
        p90_ns: figures.p90_ns,
        p99_ns: figures.p99_ns,
        p999_ns: figures.p999_ns,
        max_ns: figures.max_ns,
        total_ns: figures.total_ns,
        above: terms.thresholds.iter().enumerate().map(above).collect(),
        other_cpu: figures.other_cpu,
        other_llc: figures.other_llc,
        other_node: figures.other_node,
        buckets: figures.buckets,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_earliest_stage_that_is_observed() {
        let all = PathTerms::new(&[], |_| true);
        let (nic, irq) = ("nic_rx", "irq_handler");
        assert_eq!(all.from, [nic, irq, nic, irq, "sock_send", "tcp_transmit_skb", SKB_TSTAMP]);
        let few = ["netif_receive_skb", "net_dev_queue", "consume_skb"];
        let few = PathTerms::new(&[], |stage| few.contains(&stage.name));
        let (rx, tx) = (few.from[1], few.from[4]);
        assert_eq!((rx, tx), ("netif_receive_skb", "net_dev_queue"));
        assert_eq!(few.from, ["", rx, "", rx, tx, tx, SKB_TSTAMP]);
    }

    #[test]
    fn thresholds_are_ascending_and_limited_in_number() {
        let ms = Duration::from_millis;
        assert_eq!(thresholds(&[]), [100_000, 1_000_000, 10_000_000]);
        assert_eq!(thresholds(&[ms(5), ms(1), ms(5)]), [1_000_000, 5_000_000]);
        assert_eq!(above_ns(&[ms(5)]), [5_000_000, u64::MAX, u64::MAX]);
        assert_eq!(thresholds(&[ms(4), ms(3), ms(2), ms(1)]).len(), ABOVE_MAX);
    }
}
