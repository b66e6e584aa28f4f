//! What is kept of each connection in little memory: there may be a hundred thousand.

use nearpath_host::TcpInfo;
use nearpath_model::tcp::TcpCounts;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// One end of a connection; IPv4 as a mapped address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    address: [u8; 16],
    port: u16,
}

impl From<SocketAddr> for End {
    fn from(end: SocketAddr) -> Self {
        let address = match end.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        Self { address: address.octets(), port: end.port() }
    }
}

impl End {
    /// The address and the port.
    pub fn get(self) -> (IpAddr, u16) {
        (Ipv6Addr::from(self.address).to_canonical(), self.port)
    }
}

/// Unknown number of timeouts.
const UNKNOWN: u32 = u32::MAX;

/// [`TcpCounts`] in the kernel's own sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    bytes: [u64; 4],
    segments: [u32; 10],
    timeouts: u32,
    timeout_ms: u32,
}

impl Counts {
    /// Those of a reading.
    pub fn of(info: &TcpInfo) -> Self {
        Self {
            bytes: [info.bytes_sent, info.bytes_acked, info.bytes_received, info.bytes_retrans],
            segments: [
                info.segs_out,
                info.segs_in,
                info.delivered,
                info.data_segs_out,
                info.data_segs_in,
                info.total_retrans,
                info.dsack_dups,
                info.reord_seen,
                info.rcv_ooopack,
                info.delivered_ce,
            ],
            timeouts: info.total_rto.map_or(UNKNOWN, u32::from),
            timeout_ms: info.total_rto_time_ms.unwrap_or(UNKNOWN),
        }
    }

    /// Those of the end of a connection, which has no timeouts: they are those of an earlier reading.
    pub fn of_end(end: &TcpCounts, earlier: &Self) -> Self {
        let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Self {
            bytes: [end.bytes_sent, end.bytes_acked, end.bytes_received, end.retransmitted_bytes],
            segments: [
                end.segments_out,
                end.segments_in,
                end.delivered,
                end.segments_sent,
                end.segments_received,
                end.retransmits,
                end.spurious_retransmits,
                end.reordered,
                end.out_of_order,
                end.ecn_marked,
            ]
            .map(narrow),
            timeouts: earlier.timeouts,
            timeout_ms: earlier.timeout_ms,
        }
    }

    /// Of a connection of which no reading is known.
    pub fn unknown() -> Self {
        Self { timeouts: UNKNOWN, timeout_ms: UNKNOWN, ..Self::default() }
    }

    /// As in the result.
    pub fn get(&self) -> TcpCounts {
        let [bytes_sent, bytes_acked, bytes_received, retransmitted_bytes] = self.bytes;
        let [
            segments_out,
            segments_in,
            delivered,
            segments_sent,
            segments_received,
            retransmits,
            spurious_retransmits,
            reordered,
            out_of_order,
            ecn_marked,
        ] = self.segments.map(u64::from);
        let known = |count: u32| (count != UNKNOWN).then_some(count);
        TcpCounts {
            bytes_sent,
            bytes_acked,
            bytes_received,
            segments_out,
            segments_in,
            segments_sent,
            segments_received,
            delivered,
            retransmits,
            retransmitted_bytes,
            spurious_retransmits,
            timeouts: known(self.timeouts).map(u64::from),
            timeout_s: known(self.timeout_ms).map(|ms| f64::from(ms) / 1e3),
            reordered,
            out_of_order,
            ecn_marked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost() {
        let info = TcpInfo {
            bytes_sent: 1 << 40,
            bytes_acked: 2,
            bytes_received: 3,
            bytes_retrans: 4,
            segs_out: 5,
            segs_in: 6,
            delivered: 7,
            data_segs_out: 8,
            data_segs_in: 9,
            total_retrans: 10,
            dsack_dups: 11,
            reord_seen: 12,
            rcv_ooopack: 13,
            delivered_ce: 14,
            total_rto: Some(15),
            total_rto_time_ms: Some(1600),
            ..TcpInfo::default()
        };
        let counts = Counts::of(&info).get();
        let wanted = TcpCounts {
            bytes_sent: 1 << 40,
            bytes_acked: 2,
            bytes_received: 3,
            retransmitted_bytes: 4,
            segments_out: 5,
            segments_in: 6,
            delivered: 7,
            segments_sent: 8,
            segments_received: 9,
            retransmits: 10,
            spurious_retransmits: 11,
            reordered: 12,
            out_of_order: 13,
            ecn_marked: 14,
            timeouts: Some(15),
            timeout_s: Some(1.6),
        };
        assert_eq!(counts, wanted);
        assert_eq!(Counts::of_end(&wanted, &Counts::of(&info)), Counts::of(&info));
        assert_eq!(Counts::unknown().get(), TcpCounts::default());
        for end in ["10.0.0.1:5", "[2001:db8::1]:6"] {
            let end: SocketAddr = end.parse().unwrap();
            assert_eq!(End::from(end).get(), (end.ip(), end.port()));
        }
    }
}
