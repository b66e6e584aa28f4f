//! The metrics, by the names that `--metric` accepts.

use nearpath_model::PathKind;
use std::fmt;
use std::str::FromStr;

/// A metric. For latencies less is better, for rates more.
#[derive(Debug, Clone, PartialEq)]
pub enum Metric {
    /// End-to-end latency of packets.
    Path {
        /// Of packets with this kind of path; `None` means round trips of probes if there are any, and received
        /// packets otherwise.
        kind: Option<PathKind>,
        /// The figure.
        figure: Figure,
    },
    /// The 99th percentile of one span.
    Span {
        /// The first stage.
        from: String,
        /// The second stage.
        to: String,
    },
    /// Packets that complete their path, per second.
    Packets,
    /// Bits that interfaces receive and send, per second.
    Bits,
}

/// A figure of a latency distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Figure {
    /// The mean.
    Mean,
    /// A percentile, a share of 0 to 1.
    Percentile(f64),
    /// The share of packets that take longer than this, in nanoseconds: for tails beyond every percentile.
    Above(u64),
}

/// The names of the metrics, as accepted by `--metric`.
pub const METRICS: &str = "mean, p50, p90, p99, p99.9, above:TIME (each also as PATH:p99, where PATH is receive, receive_from_nic, forward, \
                           forward_from_nic, transmit or kernel_transmit), stage:FROM..TO, pps, gbps";

impl FromStr for Figure {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Ok(match text {
            "mean" => Self::Mean,
            "p50" => Self::Percentile(0.5),
            "p90" => Self::Percentile(0.9),
            "p99" => Self::Percentile(0.99),
            "p99.9" => Self::Percentile(0.999),
            _ => Self::Above(limit_ns(text).ok_or(())?),
        })
    }
}

/// The limit of `above:250us`.
fn limit_ns(text: &str) -> Option<u64> {
    let time = text.strip_prefix("above:")?;
    let digits = time.len() - time.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = time.split_at(digits);
    let unit_ns: u64 = match unit {
        "ns" => 1,
        "us" | "µs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    // The last bucket of histograms ends at 64 s.
    number.parse::<u64>().ok()?.checked_mul(unit_ns).filter(|ns| (1..64_000_000_000).contains(ns))
}

impl FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let none = || format!("unknown metric; available: {METRICS}");
        if let Some((from, to)) = text.strip_prefix("stage:").and_then(|span| span.split_once(".."))
        {
            return Ok(Self::Span { from: from.to_owned(), to: to.to_owned() });
        }
        match text {
            "pps" => return Ok(Self::Packets),
            "gbps" => return Ok(Self::Bits),
            _ => {}
        }
        let (kind, figure) = match text.split_once(':') {
            Some((kind, figure)) if kind != "above" => {
                let found = PathKind::ALL.into_iter().find(|found| found.name() == kind);
                (Some(found.ok_or_else(none)?), figure)
            }
            _ => (None, text),
        };
        Ok(Self::Path { kind, figure: figure.parse().map_err(|()| none())? })
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mean => f.write_str("mean"),
            Self::Percentile(share) => write!(f, "p{}", share * 100.0),
            Self::Above(ns) => {
                let (divisor, unit) = match ns {
                    ns if ns % 1_000_000_000 == 0 => (1_000_000_000, "s"),
                    ns if ns % 1_000_000 == 0 => (1_000_000, "ms"),
                    ns if ns % 1_000 == 0 => (1_000, "us"),
                    _ => (1, "ns"),
                };
                write!(f, "above:{}{unit}", ns / divisor)
            }
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path { kind: None, figure } => figure.fmt(f),
            Self::Path { kind: Some(kind), figure } => write!(f, "{}:{figure}", kind.name()),
            Self::Span { from, to } => write!(f, "stage:{from}..{to}"),
            Self::Packets => f.write_str("pps"),
            Self::Bits => f.write_str("gbps"),
        }
    }
}

impl Metric {
    /// A figure of received packets, or of round trips if there are probes.
    pub fn of(figure: Figure) -> Self {
        Self::Path { kind: None, figure }
    }

    /// Whether it is of the probes' round trips, if there are probes.
    pub fn is_of_probes(&self) -> bool {
        matches!(self, Self::Path { kind: None, .. })
    }

    /// The kind of path whose packets it is of, with probes or without.
    pub fn path(&self, has_probes: bool) -> Option<PathKind> {
        match self {
            Self::Path { kind: None, .. } if has_probes => None,
            Self::Path { kind, .. } => Some(kind.unwrap_or(PathKind::Receive)),
            _ => None,
        }
    }
}
