//! A latency distribution as a bar histogram in powers of two, as bpftrace and perf users read
//! it: `    2-3us       :    400 |**`.
//!
//! Input: the buckets of a span. Output: lines. Latencies under 1µs are in ns.

use super::line;
use nearpath_model::{Direction, Span};
use std::collections::BTreeMap;

/// Length of the longest bar.
const BAR: u64 = 36;
/// Minimum widths of a row's range and count, as in the bcc tools.
const RANGE: usize = 12;
const COUNT: usize = 7;

/// The title, the number of samples and the bars of a span; rows without samples are skipped.
/// A bucket goes where its upper end lies (at most the span's maximum), so that a latency up to
/// one bucket (4.4%) below a power of two may be one row too low.
pub fn histogram(span: &Span) -> String {
    let mut out = String::new();
    line!(out, "{} {} -> {}:", direction(span.direction), span.from, span.to);
    let upper = |ns: u64| span.max_ns.map_or(ns, |max| ns.min(max));
    out + &bars(span.count, span.buckets.iter().map(|&(ns, count)| (upper(ns), count)))
}

/// The number of samples and a bar for each power of two; a bucket is `(upper_ns, count)`.
pub(super) fn bars(samples: u64, buckets: impl Iterator<Item = (u64, u64)>) -> String {
    let mut out = String::new();
    let mut rows: BTreeMap<Row, u64> = BTreeMap::new();
    for (ns, count) in buckets {
        let row = rows.entry(Row::of(ns)).or_default();
        *row = row.saturating_add(count);
    }
    let most = rows.values().copied().max().unwrap_or(0);
    line!(out, "  Total samples: {samples}");
    line!(out, "  Latency distribution:");
    let range = rows.keys().map(|row| row.label().len()).max().unwrap_or(0).max(RANGE);
    let digits = most.to_string().len().max(COUNT);
    for (row, &count) in &rows {
        let bar = (u128::from(count) * u128::from(BAR)).checked_div(u128::from(most)).unwrap_or(0);
        let bar = "*".repeat(usize::try_from(bar).unwrap_or(0));
        let end = if count == most { "|" } else { "" };
        line!(out, "    {:<range$}:{count:>digits$} |{bar}{end}", row.label());
    }
    out
}

/// `RX` or `TX`.
pub(super) fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Rx => "RX",
        Direction::Tx => "TX",
    }
}

/// A row of the histogram: a power of two of nanoseconds or of microseconds.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    Nanoseconds(u32),
    Microseconds(u32),
}

impl Row {
    fn of(ns: u64) -> Self {
        match ns / 1000 {
            0 => Self::Nanoseconds(ns.max(1).ilog2()),
            us => Self::Microseconds(us.ilog2()),
        }
    }

    fn label(&self) -> String {
        match self {
            Self::Nanoseconds(0) => "0-1ns".to_owned(),
            Self::Nanoseconds(power) => {
                format!("{}-{}ns", 1u64 << power, ((2u64 << power) - 1).min(999))
            }
            Self::Microseconds(0) => "1us".to_owned(),
            Self::Microseconds(power) => format!("{}-{}us", 1u64 << power, (2u64 << power) - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(buckets: &[(u64, u64)], max_ns: Option<u64>) -> Span {
        Span {
            direction: Direction::Rx,
            from: "ovs_vport_send".into(),
            to: "tcp_v4_rcv".into(),
            count: buckets.iter().fold(0, |sum, bucket| bucket.1.saturating_add(sum)),
            min_ns: None,
            p50_ns: None,
            p90_ns: None,
            p99_ns: None,
            p999_ns: None,
            max_ns,
            total_ns: 0,
            other_cpu: None,
            other_llc: None,
            other_node: None,
            buckets: buckets.to_vec(),
            places: Vec::new(),
        }
    }

    /// A table in the format of the bcc tools.
    #[test]
    fn the_format_is_that_of_bcc_histograms() {
        let us = |us: u64| us * 1000;
        let buckets = [
            (us(3), 400),
            (us(7), 1414),
            (us(15), 5000),
            (us(15) + 999, 27),
            (us(31), 6560),
            (us(63), 1541),
            (us(300), 2),
            (us(16000), 2),
        ];
        assert_eq!(
            histogram(&span(&buckets, Some(us(16000)))),
            "RX ovs_vport_send -> tcp_v4_rcv:\n\
             \x20 Total samples: 14946\n\
             \x20 Latency distribution:\n\
             \x20   2-3us       :    400 |**\n\
             \x20   4-7us       :   1414 |*******\n\
             \x20   8-15us      :   5027 |***************************\n\
             \x20   16-31us     :   6560 |************************************|\n\
             \x20   32-63us     :   1541 |********\n\
             \x20   256-511us   :      2 |\n\
             \x20   8192-16383us:      2 |\n"
        );
    }

    #[test]
    fn rows_are_aligned_in_nanoseconds_and_microseconds_up_to_the_maximum() {
        let text = histogram(&span(&[(0, 1), (700, 2), (1007, 1), (4031, 1)], Some(3990)));
        let labels: Vec<&str> =
            text.lines().skip(3).filter_map(|l| l.split(':').next()).map(str::trim).collect();
        assert_eq!(labels, ["0-1ns", "512-999ns", "1us", "2-3us"]);
        let wide = histogram(&span(&[(3_000, 123_456_789), (20_000_000, 1)], None));
        let bars: Vec<&str> = wide.lines().skip(3).filter_map(|l| l.split('|').next()).collect();
        assert_eq!(bars, ["    2-3us        :123456789 ", "    16384-32767us:        1 "]);
        histogram(&span(&[(u64::MAX, u64::MAX), (u64::MAX, 1)], None));
        histogram(&span(&[], None));
    }
}
