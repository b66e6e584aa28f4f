//! Clocks that two kernels have in common, so that their recordings can be put side by side.

use serde::{Deserialize, Serialize};

/// Two clocks, read at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockReading {
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub monotonic_ns: u64,
    /// The time stamp counter of the CPU (`rdtsc`).
    pub tsc: u64,
}

/// Both clocks at the start and at the end of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// When it began.
    pub begin: ClockReading,
    /// When it ended.
    pub end: ClockReading,
}

impl Clocks {
    /// The time stamp counter at a time of `CLOCK_MONOTONIC`, on the line through both readings; `None` if they are no
    /// two readings, or the result is no count.
    pub fn tsc_at(&self, monotonic_ns: u64) -> Option<u64> {
        let monotonic = (self.begin.monotonic_ns, self.end.monotonic_ns);
        on_line(monotonic_ns, monotonic, (self.begin.tsc, self.end.tsc))
    }

    /// The time of `CLOCK_MONOTONIC`, in nanoseconds, at a count of the time stamp counter, likewise.
    pub fn monotonic_at(&self, tsc: u64) -> Option<u64> {
        let monotonic = (self.begin.monotonic_ns, self.end.monotonic_ns);
        on_line(tsc, (self.begin.tsc, self.end.tsc), monotonic)
    }
}

/// The `y` of this `x`, on the line through two points.
fn on_line(x: u64, xs: (u64, u64), ys: (u64, u64)) -> Option<u64> {
    let (x, width) = (i128::from(x) - i128::from(xs.0), i128::from(xs.1) - i128::from(xs.0));
    let height = i128::from(ys.1) - i128::from(ys.0);
    if width <= 0 || height <= 0 {
        return None;
    }
    u64::try_from(i128::from(ys.0) + x.checked_mul(height)? / width).ok()
}

/// How the time stamp counter of a guest is made from the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestTsc {
    /// What the CPU adds, after it has multiplied.
    pub offset: i64,
    /// What it multiplies by, in units of `2^-fraction_bits`.
    pub ratio: u64,
    /// Bits of the fraction; 0, with a ratio of 1, where the CPU does not multiply.
    pub fraction_bits: u32,
}

impl GuestTsc {
    /// The host's count when the guest's was this: `guest = (host * ratio >> fraction_bits) + offset` (`kvm_scale_tsc` of
    /// arch/x86/kvm/x86.c, which wraps around).
    pub fn host(&self, guest: u64) -> Option<u64> {
        let scaled = u128::from(guest.wrapping_sub(self.offset.cast_unsigned()));
        if self.fraction_bits > 63 {
            return None;
        }
        u64::try_from((scaled << self.fraction_bits).checked_div(u128::from(self.ratio))?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn clocks(begin: (u64, u64), end: (u64, u64)) -> Clocks {
        let reading = |(monotonic_ns, tsc)| ClockReading { monotonic_ns, tsc };
        Clocks { begin: reading(begin), end: reading(end) }
    }

    #[test]
    fn a_time_is_on_the_line_through_both_readings_and_beyond() {
        // 2.5 counts a nanosecond.
        let of = clocks((1000, 50_000), (2000, 52_500));
        assert_eq!(of.tsc_at(1000), Some(50_000));
        assert_eq!(of.tsc_at(1400), Some(51_000));
        assert_eq!((of.tsc_at(3000), of.tsc_at(0)), (Some(55_000), Some(47_500)));
        assert_eq!(of.monotonic_at(51_000), Some(1400));
        assert_eq!(of.monotonic_at(0), None, "before the clock began");
        assert_eq!(clocks((5, 5), (5, 9)).tsc_at(5), None, "one reading is no line");
        assert_eq!(clocks((5, 9), (9, 5)).tsc_at(5), None, "a counter that runs back");
    }

    #[test]
    fn a_guest_starts_near_zero_by_a_negative_offset() {
        let of = GuestTsc { offset: -70_000, ratio: 1, fraction_bits: 0 };
        assert_eq!(of.host(5), Some(70_005));
        assert_eq!(GuestTsc { ratio: 0, ..of }.host(5), None);
        assert_eq!(GuestTsc { fraction_bits: 64, ..of }.host(5), None);
    }

    proptest! {
        /// Written as KVM computes it, in the other direction.
        #[test]
        fn the_hosts_count_is_found_again(
            host in 0..u64::MAX >> 16,
            offset: i64,
            half in 1u64..8,
            fraction_bits in 1u32..49,
        ) {
            // From half of the host's frequency to three and a half times.
            let ratio = half << (fraction_bits - 1);
            let scaled = ((u128::from(host) * u128::from(ratio)) >> fraction_bits) as u64;
            let guest = scaled.wrapping_add(offset as u64);
            let found = GuestTsc { offset, ratio, fraction_bits }.host(guest).unwrap();
            prop_assert!(host.abs_diff(found) <= 2, "{host} {found}");
        }

        #[test]
        fn nothing_that_was_read_panics(b: (u64, u64), e: (u64, u64), x: u64, offset: i64, ratio: u64, fraction_bits: u32) {
            let of = clocks(b, e);
            let _ = (of.tsc_at(x), of.monotonic_at(x));
            let _ = GuestTsc { offset, ratio, fraction_bits }.host(x);
        }
    }
}
