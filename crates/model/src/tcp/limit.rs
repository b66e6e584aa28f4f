//! What limits a connection.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What limits a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TcpLimit {
    /// The sending application: nothing to send.
    Application,
    /// The receiving application does not read.
    Reader,
    /// The receiver's window is too small.
    ReceiveWindow,
    /// The send buffer is too small.
    SendBuffer,
    /// The congestion window, reduced by loss or still growing.
    CongestionWindow,
    /// The path: the rate of its bottleneck, or the pacing rate.
    Path,
    /// The backlog of the listening socket, or of connections that are being established.
    Backlog,
    /// Waiting for retransmission time-outs.
    Timeouts,
    /// A CPU of this host that handles packets late.
    Cpu,
    /// The peer: this host only receives, and reads what it receives.
    Peer,
}

impl TcpLimit {
    /// As part of a sentence: `limited by …`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Application => "nothing to send",
            Self::Reader => "slow reader",
            Self::ReceiveWindow => "receive window",
            Self::SendBuffer => "send buffer",
            Self::CongestionWindow => "congestion window",
            Self::Path => "path rate",
            Self::Backlog => "backlog",
            Self::Timeouts => "retransmission timeouts",
            Self::Cpu => "late CPU",
            Self::Peer => "the peer",
        }
    }
}

/// What limited a connection most of the time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TcpVerdict {
    /// The limit.
    pub limit: TcpLimit,
    /// Share of the observed time, 0 to 1.
    pub share: f64,
    /// The figures that show it, each a short text.
    pub evidence: Vec<String>,
}

/// The limit with the most time, and its share of `observed_s`; `None` if there is none.
pub fn main_limit(limits: &BTreeMap<TcpLimit, f64>, observed_s: f64) -> Option<(TcpLimit, f64)> {
    let most = limits.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
    (observed_s > 0.0 && *most.1 > 0.0).then(|| (*most.0, (most.1 / observed_s).min(1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_limit_has_the_most_time() {
        let limits = BTreeMap::from([(TcpLimit::Path, 0.5), (TcpLimit::Reader, 1.5)]);
        assert_eq!(main_limit(&limits, 3.0), Some((TcpLimit::Reader, 0.5)));
        assert_eq!(main_limit(&BTreeMap::new(), 3.0), None);
        assert_eq!(main_limit(&limits, 0.0), None);
    }
}
