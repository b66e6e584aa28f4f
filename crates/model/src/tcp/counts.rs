//! What a connection, or several, did.

use serde::{Deserialize, Serialize};

/// Counts of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct TcpCounts {
    /// Bytes sent, including retransmissions.
    pub bytes_sent: u64,
    /// Bytes acknowledged by the receiver.
    pub bytes_acked: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Segments sent, with data or not.
    pub segments_out: u64,
    /// Segments received, with data or not.
    pub segments_in: u64,
    /// Segments sent with data.
    pub segments_sent: u64,
    /// Segments received with data.
    pub segments_received: u64,
    /// Segments that reached the receiver.
    pub delivered: u64,
    /// Segments retransmitted.
    pub retransmits: u64,
    /// Their bytes.
    pub retransmitted_bytes: u64,
    /// Retransmissions that were not necessary, as the receiver reported (RFC 2883).
    pub spurious_retransmits: u64,
    /// Retransmission time-outs; `None` before Linux 6.7.
    pub timeouts: Option<u64>,
    /// Time in recoveries that began with a time-out, in seconds; `None` before Linux 6.7.
    pub timeout_s: Option<f64>,
    /// How often segments were found to be reordered.
    pub reordered: u64,
    /// Segments received out of order.
    pub out_of_order: u64,
    /// Segments delivered with a mark of congestion (ECN).
    pub ecn_marked: u64,
}

impl TcpCounts {
    /// The sum; what is unknown of one is unknown of the sum.
    pub fn add(&mut self, other: &Self) {
        let sum = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        for (to, from) in self.numbers().into_iter().zip(other.clone().numbers()) {
            *to = to.saturating_add(*from);
        }
        self.timeouts = sum(self.timeouts, other.timeouts);
        self.timeout_s = self.timeout_s.zip(other.timeout_s).map(|(a, b)| a + b);
    }

    /// The increase since an earlier count.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut change = *self;
        for (now, old) in change.numbers().into_iter().zip(earlier.clone().numbers()) {
            *now = now.saturating_sub(*old);
        }
        let both = self.timeouts.zip(earlier.timeouts);
        change.timeouts = both.map(|(now, old)| now.saturating_sub(old));
        let both = self.timeout_s.zip(earlier.timeout_s);
        change.timeout_s = both.map(|(now, old)| (now - old).max(0.0));
        change
    }

    fn numbers(&mut self) -> [&mut u64; 14] {
        [
            &mut self.bytes_sent,
            &mut self.bytes_acked,
            &mut self.bytes_received,
            &mut self.segments_out,
            &mut self.segments_in,
            &mut self.delivered,
            &mut self.segments_sent,
            &mut self.segments_received,
            &mut self.retransmits,
            &mut self.retransmitted_bytes,
            &mut self.spurious_retransmits,
            &mut self.reordered,
            &mut self.out_of_order,
            &mut self.ecn_marked,
        ]
    }

    /// Bytes sent and received.
    pub fn bytes(&self) -> u64 {
        self.bytes_sent.saturating_add(self.bytes_received)
    }

    /// Share of the segments sent that were retransmissions, 0 to 1; `None` if none was sent.
    pub fn retransmit_share(&self) -> Option<f64> {
        (self.segments_sent > 0).then(|| self.retransmits as f64 / self.segments_sent as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_an_interval_are_those_since_its_start() {
        let count = |n: u64, timeouts| TcpCounts {
            bytes_sent: n,
            retransmits: n / 2,
            timeouts,
            ..TcpCounts::default()
        };
        let interval = count(10, Some(3)).since(&count(4, Some(1)));
        assert_eq!((interval.bytes_sent, interval.retransmits), (6, 3));
        assert_eq!(interval.timeouts, Some(2));
        let mut sum = count(1, None);
        sum.add(&count(2, Some(1)));
        assert_eq!((sum.bytes_sent, sum.timeouts), (3, None), "unknown and 1 is unknown");
    }
}
