//! The clocks that a host and its guests have in common.

use nearpath_model::clock::{ClockReading, Clocks};

/// An interrupt may come between the readings of the two clocks: of so many, the closest is taken.
const TRIES: usize = 8;

/// Both clocks now; `None` where the CPU has no time stamp counter.
pub fn clocks_now() -> Option<ClockReading> {
    let read = |_| {
        let (before, tsc, after) = (monotonic_ns(), tsc()?, monotonic_ns());
        let took = after.saturating_sub(before);
        Some((took, ClockReading { monotonic_ns: before + took / 2, tsc }))
    };
    (0..TRIES).filter_map(read).min_by_key(|(took, _)| *took).map(|(_, reading)| reading)
}

/// Both clocks from an earlier reading to now.
pub fn clocks_since(begin: Option<ClockReading>) -> Option<Clocks> {
    Some(Clocks { begin: begin?, end: clocks_now()? })
}

/// `CLOCK_MONOTONIC`, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::unnecessary_wraps, reason = "other architectures have none")]
fn tsc() -> Option<u64> {
    // SAFETY: every x86-64 CPU has the instruction, and Linux allows it in user space.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn tsc() -> Option<u64> {
    None
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_time_between_two_readings_is_on_their_line() {
        let begin = clocks_now();
        std::thread::sleep(Duration::from_millis(20));
        let between = clocks_now().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        let clocks = clocks_since(begin).unwrap();
        let found = clocks.monotonic_at(between.tsc).unwrap();
        assert!(found.abs_diff(between.monotonic_ns) < 100_000, "{clocks:?} {between:?}");
    }
}
