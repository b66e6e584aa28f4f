//! The stamps of received packets: makes the kernel set them, and reads their clock.

use crate::InstrumentError;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::time::{ClockId, DynamicClockId, Timespec, clock_gettime, clock_gettime_dynamic};
use std::os::fd::{AsRawFd, OwnedFd};

/// A socket that wants its packets stamped, so that the kernel stamps all: nothing is received on it.
pub fn stamping() -> Result<OwnedFd, InstrumentError> {
    let families = [AddressFamily::INET, AddressFamily::INET6];
    let opened =
        families.into_iter().find_map(|family| socket(family, SocketType::DGRAM, None).ok());
    let error = || refused_by_kernel("opening a socket", &std::io::Error::last_os_error());
    let opened = opened.ok_or_else(error)?;
    let on: libc::c_int = 1;
    // SAFETY: the option's value is an int of that size, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            opened.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        return Err(refused_by_kernel("asking for timestamps of packets", &error));
    }
    Ok(opened)
}

fn refused_by_kernel(step: &str, error: &std::io::Error) -> InstrumentError {
    InstrumentError::Refused { step: step.to_owned(), reason: error.to_string() }
}

const SECOND_NS: i64 = 1_000_000_000;

fn clock_ns(clock: ClockId) -> i64 {
    in_ns(clock_gettime(clock))
}

fn in_ns(now: Timespec) -> i64 {
    now.tv_sec.saturating_mul(SECOND_NS).saturating_add(now.tv_nsec)
}

/// From CLOCK_TAI to CLOCK_REALTIME: whole seconds.
pub fn real_from_tai_ns() -> i64 {
    let Ok(tai) = clock_gettime_dynamic(DynamicClockId::Tai) else { return 0 };
    let difference = clock_ns(ClockId::Realtime) - in_ns(tai);
    (difference + SECOND_NS / 2).div_euclid(SECOND_NS) * SECOND_NS
}

/// From CLOCK_MONOTONIC to CLOCK_REALTIME, by the closest of some readings.
pub fn real_from_monotonic_ns() -> i64 {
    let read = |_| {
        let before = clock_ns(ClockId::Monotonic);
        let real = clock_ns(ClockId::Realtime);
        let after = clock_ns(ClockId::Monotonic);
        (after - before, real - before - (after - before) / 2)
    };
    (0..5).map(read).min().map_or(0, |(_, offset)| offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clocks_differ_by_what_user_space_reads() {
        let tai = real_from_tai_ns();
        assert!(tai % SECOND_NS == 0 && (-60..=0).contains(&(tai / SECOND_NS)), "{tai}");
        let real = clock_ns(ClockId::Monotonic) + real_from_monotonic_ns();
        assert!((clock_ns(ClockId::Realtime) - real).abs() < SECOND_NS / 10);
    }
}
