//! The clocks: the monotonic one for schedules and latencies, and the wall clock for the kernel's packet
//! timestamps, which use it (`ktime_get_real` in `__net_timestamp` and `__skb_tstamp_tx`, net/core).

use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds in a second.
pub(crate) const SECOND_NS: u64 = 1_000_000_000;

/// Nanoseconds on the monotonic clock, which starts at 0 or later.
pub(crate) fn now_ns() -> u64 {
    nanoseconds(&clock_gettime(ClockId::Monotonic))
}

/// Nanoseconds on the wall clock since 1970.
pub(crate) fn wall_ns() -> u64 {
    nanoseconds(&clock_gettime(ClockId::Realtime))
}

/// Nanoseconds of international atomic time since 1970, which scheduled transmission uses.
pub(crate) fn tai_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the structure, which outlives the call; it has had this clock since 3.10.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_TAI, &raw mut time) };
    debug_assert_eq!(result, 0, "CLOCK_TAI");
    nanoseconds(&Timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec })
}

fn nanoseconds(time: &Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(SECOND_NS).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Sleeps until that time; a signal ends the sleep early, and the caller checks the clock again.
pub(crate) fn sleep_until(ns: u64) {
    let at = Timespec {
        tv_sec: (ns / SECOND_NS).try_into().unwrap_or(i64::MAX),
        tv_nsec: (ns % SECOND_NS).try_into().unwrap_or(0),
    };
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &at);
}
