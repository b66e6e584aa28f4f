//! Scheduled transmission: each probe is handed over ahead of time, with the time at which it is to leave (SO_TXTIME).
//!
//! Input: the lead, and what the socket's error queue reports. Output: counts of dropped probes by reason, and when the
//! driver, or the NIC, took each of the others, as differences to the schedule.
//!
//! Rules: include/uapi/linux/net_tstamp.h (`struct sock_txtime`), `report_sock_error` in net/sched/sch_etf.c.

use super::deviations::Deviations;
use super::sockets::{Report, Stamp};
use crate::clock::{now_ns, tai_ns, wall_ns};
use nearpath_model::ScheduledTransmission;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// `SO_EE_CODE_TXTIME_INVALID_PARAM` and `SO_EE_CODE_TXTIME_MISSED` (include/uapi/linux/errqueue.h).
const INVALID: u8 = 1;
const MISSED: u8 = 2;

/// The sending side of a flow with scheduled probes.
#[derive(Debug)]
pub(super) struct Scheduled {
    pub(super) lead_ns: u64,
    /// For probes without a time: before the measurement, and the last. They must not meet the qdisc of the others.
    pub(super) plain: OwnedFd,
    /// The number of the first probe with a time: the kernel numbers time stamps from it.
    pub(super) first: Option<u64>,
    /// The times, on CLOCK_TAI, of the first probe that counts, and of the end.
    counted_ns: (u64, u64),
    pub(super) seen: Seen,
}

/// What was seen of the probes that count.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    first_ns: Option<u64>,
    invalid: u64,
    missed: u64,
    other: u64,
    wake_up: Deviations,
    departure: Deviations,
    hardware: Deviations,
}

impl Seen {
    pub(super) fn new() -> Self {
        let new = Deviations::new;
        let (wake_up, departure, hardware) = (new(), new(), new());
        Self { first_ns: None, invalid: 0, missed: 0, other: 0, wake_up, departure, hardware }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.first_ns = [self.first_ns, other.first_ns].into_iter().flatten().min();
        self.invalid += other.invalid;
        self.missed += other.missed;
        self.other += other.other;
        self.wake_up.add(&other.wake_up, 0);
        self.departure.add(&other.departure, 0);
        self.hardware.add(&other.hardware, 0);
    }

    /// As in a report; the rest of it is of the plan.
    pub(super) fn report(&self) -> ScheduledTransmission {
        ScheduledTransmission {
            first_ns: self.first_ns,
            dropped_invalid: self.invalid,
            dropped_missed: self.missed,
            dropped_other: self.other,
            wake_up: self.wake_up.summary().unwrap_or_default(),
            departure: self.departure.summary(),
            departure_hardware: self.hardware.summary(),
            ..ScheduledTransmission::default()
        }
    }
}

impl Scheduled {
    pub(super) fn new(lead_ns: u64, plain: OwnedFd) -> Self {
        let counted_ns = (u64::MAX, u64::MAX);
        Self { lead_ns, plain, first: None, counted_ns, seen: Seen::new() }
    }

    /// The time on CLOCK_TAI of a time on the monotonic clock.
    pub(super) fn tai(intended_ns: u64) -> u64 {
        tai_ns().saturating_sub(now_ns()).saturating_add(intended_ns)
    }

    /// A probe is about to be handed over.
    pub(super) fn sending(&mut self, sequence: u64, at_ns: u64, intended_ns: u64, now_ns: u64) {
        self.first.get_or_insert(sequence);
        if at_ns >= self.counted_ns.0 {
            self.seen.first_ns.get_or_insert(at_ns);
            let due_ns = intended_ns.saturating_sub(self.lead_ns);
            self.seen.wake_up.record(difference(now_ns, due_ns));
        }
    }

    /// Probes count from this time on, on the monotonic clock.
    pub(super) fn begin(&mut self, intended_ns: u64) {
        // A clock that is adjusted meanwhile may be off by less than the interval between two probes.
        self.counted_ns.0 = Self::tai(intended_ns).saturating_sub(1_000);
    }

    /// Probes from this time on do not count.
    pub(super) fn end(&mut self, end_ns: u64) {
        self.counted_ns.1 = Self::tai(end_ns);
    }

    /// The error queue reports a dropped probe.
    pub(super) fn dropped(&mut self, code: u8, at_ns: u64) {
        let (from_ns, end_ns) = self.counted_ns;
        if !(from_ns..end_ns).contains(&at_ns) {
            return;
        }
        let count = match code {
            INVALID => &mut self.seen.invalid,
            MISSED => &mut self.seen.missed,
            _ => &mut self.seen.other,
        };
        *count += 1;
    }

    /// A probe that counts has left: the time of the driver by the wall clock, or that of the NIC by its own, which is to
    /// follow CLOCK_TAI.
    pub(super) fn left(&mut self, stamp: Stamp, intended_ns: u64) {
        match stamp {
            Stamp::Software(ns) => {
                let intended_ns = wall_ns().saturating_sub(now_ns()).saturating_add(intended_ns);
                self.seen.departure.record(difference(ns, intended_ns));
            }
            Stamp::Hardware(ns) => {
                self.seen.hardware.record(difference(ns, Self::tai(intended_ns)));
            }
        }
    }
}

/// `a` minus `b`.
pub(super) fn difference(a: u64, b: u64) -> i64 {
    i64::try_from(i128::from(a) - i128::from(b)).unwrap_or(i64::MAX)
}

impl Report {
    /// The time and the reason of a dropped packet: `ee_data` and `ee_info` are the halves of its time.
    pub(super) fn of_drop(code: u8, data: u32, info: u32) -> Self {
        Self::Dropped { code, at_ns: u64::from(data) << 32 | u64::from(info) }
    }
}

/// The interface with a local address.
pub(super) fn device_of(local: SocketAddr) -> Option<String> {
    let of = |address: &nix::sys::socket::SockaddrStorage| -> Option<IpAddr> {
        let v4 = address.as_sockaddr_in().map(|its| IpAddr::from(its.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|its| IpAddr::from(its.ip())))
    };
    let mut all = nix::ifaddrs::getifaddrs().ok()?;
    let with = all.find(|one| one.address.as_ref().and_then(of) == Some(local.ip()));
    with.map(|found| found.interface_name)
}

/// Seconds that CLOCK_TAI is ahead of the wall clock.
pub(super) fn tai_offset_s() -> Option<i32> {
    let ahead_ns = difference(tai_ns(), wall_ns());
    // The two are read one after the other.
    i32::try_from((ahead_ns + 500_000_000).div_euclid(1_000_000_000)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduled() -> Scheduled {
        Scheduled::new(5, std::fs::File::open("/dev/null").unwrap().into())
    }

    #[test]
    fn drops_are_counted_by_code_within_the_measurement() {
        let mut all = scheduled();
        all.dropped(MISSED, 100);
        all.counted_ns = (200, 300);
        for (code, at_ns) in [(1, 200), (2, 299), (2, 250), (9, 250), (2, 199), (2, 300)] {
            all.dropped(code, at_ns);
        }
        let report = all.seen.report();
        let counts = (report.dropped_invalid, report.dropped_missed, report.dropped_other);
        assert_eq!((counts, report.dropped()), ((1, 2, 1), 4));
    }

    #[test]
    fn the_halves_of_a_time_are_joined() {
        let Report::Dropped { code, at_ns } = Report::of_drop(2, 0x1234_5678, 0x9abc_def0) else {
            panic!("not a drop")
        };
        assert_eq!((code, at_ns), (2, 0x1234_5678_9abc_def0));
    }

    #[test]
    fn departures_are_signed() {
        let mut all = scheduled();
        let now = now_ns();
        let at = |ns: i64| Stamp::Software(wall_ns().saturating_add_signed(ns));
        all.left(at(-3_000_000_000), now);
        all.left(at(5_000_000_000), now);
        let seen = all.seen.report().departure.unwrap();
        let near = |ns: Option<i64>, is: i64| (ns.unwrap() - is).abs() < 2_000_000_000;
        assert!(near(seen.min_ns, -3_000_000_000) && near(seen.max_ns, 5_000_000_000), "{seen:?}");
    }

    #[test]
    fn the_device_of_loopback_is_known() {
        assert_eq!(device_of("127.0.0.1:5".parse().unwrap()).as_deref(), Some("lo"));
        assert_eq!(device_of("192.0.2.77:5".parse().unwrap()), None);
    }
}
