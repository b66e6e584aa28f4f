//! What is compared, by the names that `--metric` takes.

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
    /// Bits that interfaces receive and send, per second.
    Bits,
}

/// The names of the metrics, as `--metric` takes them.
pub const METRICS: &str = "mean, p50, p90, p99, p99.9, stage:FROM..TO, pps, gbps";

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
            ("gbps", _) => Ok(Self::Bits),
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
            Self::Bits => f.write_str("gbps"),
        }
    }
}

impl Metric {
    /// How many packets, or probes, a block must have for it.
    pub(super) fn samples_min(&self) -> u64 {
        match self {
            Self::Mean | Self::Packets | Self::Bits => 20,
            Self::Percentile(share) => (10.0 / (1.0 - share)).round() as u64,
            Self::Span { .. } => 1_000,
        }
    }

    /// Whether more of it is better.
    pub fn is_rate(&self) -> bool {
        matches!(self, Self::Packets | Self::Bits)
    }
}
