//! What limited a connection most, and the figures that show it.

use super::{TcpConnection, TcpLimit, TcpState, TcpVerdict, main_limit};
use crate::units::{bit_rate, bytes, percent, time};

impl TcpConnection {
    /// Sets the verdict from the time of each limit.
    pub fn classify(&mut self) {
        self.verdict = main_limit(&self.limits, self.observed_s).map(|(limit, share)| TcpVerdict {
            limit,
            share,
            evidence: self.evidence(limit).into_iter().flatten().collect(),
        });
    }

    /// Bytes that are in flight when the rate of delivery is reached: rate × minimum RTT.
    pub fn bandwidth_delay_bytes(&self) -> Option<u64> {
        let bits = u128::from(self.delivery_rate_bps?) * u128::from(self.min_rtt_ns?);
        u64::try_from(bits / 8 / 1_000_000_000).ok()
    }

    /// Round-trip time above its minimum: what packets wait in queues.
    pub fn queueing_ns(&self) -> Option<u64> {
        Some(self.rtt_ns?.saturating_sub(self.min_rtt_ns?))
    }

    /// Bits per second that were acknowledged.
    fn throughput_bps(&self) -> Option<u64> {
        let bits = self.interval.bytes_acked as f64 * 8.0;
        (self.observed_s > 0.0).then(|| (bits / self.observed_s) as u64)
    }

    fn evidence(&self, limit: TcpLimit) -> Vec<Option<String>> {
        let counts = &self.interval;
        let queue =
            |what: &str, queued: u32| Some(format!("{what} queue {}", bytes(queued.into())));
        let of = |value: u32, limit: Option<u32>| {
            let limit = limit.map(|limit| format!(" of {}", bytes(limit.into())));
            format!("{}{}", bytes(value.into()), limit.unwrap_or_default())
        };
        let product = self.bandwidth_delay_bytes().map(|b| format!("rate × RTT {}", bytes(b)));
        let retransmits = (counts.retransmits > 0).then(|| {
            let share = counts.retransmit_share().map(|share| format!(" ({})", percent(share)));
            format!("{} retransmits{}", counts.retransmits, share.unwrap_or_default())
        });
        let queueing = || Some(format!("{} of RTT in queues", time(self.queueing_ns()?)));
        match limit {
            TcpLimit::Application => vec![
                self.app_limited_share
                    .map(|share| format!("nothing to send {} of the time", percent(share))),
                queue("send", self.send_queue_bytes),
            ],
            TcpLimit::Reader if self.receive_queue_bytes > 0 => vec![
                queue("receive", self.receive_queue_bytes),
                self.receive_memory_bytes
                    .map(|used| format!("memory {}", of(used, self.receive_buffer_bytes))),
            ],
            TcpLimit::Reader => vec![
                self.rwnd_limited_share.map(|share| {
                    format!("the peer's window is full {} of the time", percent(share))
                }),
                self.send_window_bytes
                    .map(|window| format!("peer offers a window of {}", bytes(window.into()))),
                // A connection that has been closed has none left.
                queue("send", self.send_queue_bytes).filter(|_| self.send_queue_bytes > 0),
            ],
            TcpLimit::ReceiveWindow => {
                let window = if counts.bytes_received > counts.bytes_sent {
                    self.receive_window_bytes
                } else {
                    self.send_window_bytes
                };
                vec![window.map(|window| format!("window {}", bytes(window.into()))), product]
            }
            TcpLimit::SendBuffer => vec![
                self.send_buffer_bytes.map(|limit| format!("send buffer {}", bytes(limit.into()))),
                product,
            ],
            TcpLimit::CongestionWindow => vec![
                self.cwnd.map(|cwnd| match self.ssthresh {
                    Some(ssthresh) => format!("cwnd {cwnd}, ssthresh {ssthresh}"),
                    None => format!("cwnd {cwnd}, in slow start"),
                }),
                retransmits,
            ],
            TcpLimit::Path => vec![
                self.throughput_bps().map(|rate| format!("delivers {}", bit_rate(rate))),
                self.max_pacing_rate_bps
                    .map(|rate| format!("SO_MAX_PACING_RATE {}", bit_rate(rate))),
                queueing(),
                retransmits,
            ],
            TcpLimit::Timeouts => vec![
                counts.timeouts.map(|count| format!("{count} timeouts")),
                self.rto_ns.map(|rto| format!("RTO {}", time(rto))),
                retransmits,
            ],
            TcpLimit::Backlog => vec![
                Some(match self.state {
                    TcpState::SynSent => "SYN not answered".to_owned(),
                    _ => "not accepted".to_owned(),
                }),
                Some(format!("for {}", time((self.observed_s * 1e9) as u64))),
                retransmits,
            ],
            TcpLimit::Cpu => vec![
                self.processed_on_cpu.map(|cpu| format!("packets are processed on CPU {}", cpu.0)),
                (self.receive_queue_bytes > 0)
                    .then(|| format!("receive queue {}", bytes(self.receive_queue_bytes.into()))),
                queueing(),
            ],
            TcpLimit::Peer => vec![
                queue("receive", self.receive_queue_bytes),
                Some(format!("{} received", bytes(counts.bytes_received))),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    #[test]
    fn the_verdict_names_the_largest_share_with_its_figures() {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut connection = TcpConnection::between((local, 1), (local, 2));
        connection.classify();
        assert_eq!(connection.verdict, None);
        connection.observed_s = 2.0;
        connection.limits.extend([(TcpLimit::Path, 1.5), (TcpLimit::Application, 0.5)]);
        connection.delivery_rate_bps = Some(9_600_000);
        connection.interval.bytes_acked = 2_400_000;
        (connection.rtt_ns, connection.min_rtt_ns) = (Some(52_000_000), Some(2_000_000));
        connection.classify();
        let verdict = connection.verdict.clone().unwrap();
        assert_eq!((verdict.limit, verdict.share), (TcpLimit::Path, 0.75));
        assert_eq!(verdict.evidence, ["delivers 9.60 Mbit/s", "50.0ms of RTT in queues"]);
        assert_eq!(connection.bandwidth_delay_bytes(), Some(2400));
    }
}
