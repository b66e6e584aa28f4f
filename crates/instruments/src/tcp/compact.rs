//! What is kept of each connection in little memory: there may be a hundred thousand.

use nearpath_host::TcpInfo;
use nearpath_model::tcp::TcpCounts;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// A moment, in units of 50 µs since the start: enough for more than two days.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(u32);

impl Moment {
    const UNIT: Duration = Duration::from_micros(50);

    /// The moment so long after the start.
    pub fn after_start(passed: Duration) -> Self {
        let units = passed.as_micros() / Self::UNIT.as_micros();
        Self(u32::try_from(units).unwrap_or(u32::MAX))
    }

    /// So long before this one; not before the start.
    #[must_use]
    pub fn before(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(Self::after_start(time).0))
    }

    /// The time since an earlier one; zero if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        Self::UNIT * self.0.saturating_sub(earlier.0)
    }
}

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

/// [`TcpCounts`] in the kernel's own sizes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Counts {
    bytes: [u64; 3],
    segments: [u32; 5],
    /// Of a kernel that counts timeouts.
    has_timeouts: bool,
    /// What most connections never have.
    trouble: Option<Box<Trouble>>,
}

/// Losses and the like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Trouble {
    retransmitted_bytes: u64,
    segments: [u32; 5],
    timeouts: u32,
    timeout_ms: u32,
}

impl Trouble {
    /// `None` if there is none.
    fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

impl Counts {
    /// Those of a reading.
    pub fn of(info: &TcpInfo) -> Self {
        let trouble = Trouble {
            retransmitted_bytes: info.bytes_retrans,
            segments: [
                info.total_retrans,
                info.dsack_dups,
                info.reord_seen,
                info.rcv_ooopack,
                info.delivered_ce,
            ],
            timeouts: info.total_rto.map_or(0, u32::from),
            timeout_ms: info.total_rto_time_ms.unwrap_or(0),
        };
        Self {
            bytes: [info.bytes_sent, info.bytes_acked, info.bytes_received],
            segments: [
                info.segs_out,
                info.segs_in,
                info.delivered,
                info.data_segs_out,
                info.data_segs_in,
            ],
            has_timeouts: info.total_rto.is_some(),
            trouble: trouble.boxed(),
        }
    }

    /// Those of the end of a connection, which has no timeouts: they are those of an earlier reading.
    pub fn of_end(end: &TcpCounts, earlier: &Self) -> Self {
        let narrow = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let (timeouts, timeout_ms) =
            earlier.trouble.as_ref().map_or((0, 0), |known| (known.timeouts, known.timeout_ms));
        let trouble = Trouble {
            retransmitted_bytes: end.retransmitted_bytes,
            segments: [
                end.retransmits,
                end.spurious_retransmits,
                end.reordered,
                end.out_of_order,
                end.ecn_marked,
            ]
            .map(narrow),
            timeouts,
            timeout_ms,
        };
        Self {
            bytes: [end.bytes_sent, end.bytes_acked, end.bytes_received],
            segments: [
                end.segments_out,
                end.segments_in,
                end.delivered,
                end.segments_sent,
                end.segments_received,
            ]
            .map(narrow),
            has_timeouts: earlier.has_timeouts,
            trouble: trouble.boxed(),
        }
    }

    /// Bytes sent and received.
    pub fn bytes(&self) -> (u64, u64) {
        let [sent, _, received] = self.bytes;
        (sent, received)
    }

    /// Time in timeouts, if the kernel reports it.
    pub fn timeout_ms(&self) -> Option<u32> {
        let known = || self.trouble.as_ref().map_or(0, |trouble| trouble.timeout_ms);
        self.has_timeouts.then(known)
    }

    /// As in the result.
    pub fn get(&self) -> TcpCounts {
        let none = Trouble::default();
        let trouble = self.trouble.as_deref().unwrap_or(&none);
        let [bytes_sent, bytes_acked, bytes_received] = self.bytes;
        let [segments_out, segments_in, delivered, segments_sent, segments_received] =
            self.segments.map(u64::from);
        let [retransmits, spurious_retransmits, reordered, out_of_order, ecn_marked] =
            trouble.segments.map(u64::from);
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
            retransmitted_bytes: trouble.retransmitted_bytes,
            spurious_retransmits,
            timeouts: self.has_timeouts.then_some(trouble.timeouts.into()),
            timeout_s: self.has_timeouts.then_some(f64::from(trouble.timeout_ms) / 1e3),
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
    fn moments_are_kept_to_50_microseconds() {
        let at = |ms: u64| Moment::after_start(Duration::from_millis(ms));
        assert_eq!(at(1500).since(at(300)), Duration::from_millis(1200));
        assert_eq!(at(1500).before(Duration::from_micros(250)).since(at(1499)).as_micros(), 750);
        assert_eq!((at(1).since(at(2)), at(1).before(Duration::MAX)), (Duration::ZERO, at(0)));
        let two_days = 48 * 3600 * 1000;
        assert_eq!(at(two_days + 1).since(at(two_days)), Duration::from_millis(1));
    }

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
        assert_eq!(Counts::default().get(), TcpCounts::default());
        assert_eq!(
            (Counts::of(&info).timeout_ms(), Counts::default().timeout_ms()),
            (Some(1600), None)
        );
        for end in ["10.0.0.1:5", "[2001:db8::1]:6"] {
            let end: SocketAddr = end.parse().unwrap();
            assert_eq!(End::from(end).get(), (end.ip(), end.port()));
        }
    }
}
