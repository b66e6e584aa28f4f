//! A NIC's clock as the programs need it: in go readings of it beside the monotonic clock, out come the latest of them
//! and the rate at which both drift apart, by which any stamp is converted; and how far that was off.

use nearpath_host::timestamping::PhcReading;
use std::collections::VecDeque;

/// The rate is in 2^-30 (`RATE_BITS` of `bpf/nic_stamps.h`).
const RATE_BITS: u32 = 30;
/// A faster or slower clock (by 1.5 %) is no clock.
const MAX_RATE: i64 = 1 << 24;
/// Readings over which the rate is taken.
const READINGS: usize = 16;
/// A reading whose bracket is so many times as long as the shortest was interrupted, and is left out,
const POOR: u64 = 4;
/// unless the one before it is as old as this.
const OLD_NS: i64 = 5_000_000_000;
/// By what part of the time between two readings a clock may stray from its course: else it was set.
const STRAYS: u64 = 500;
/// What is set at each of so many readings is no clock.
const STEPS_IN_A_ROW: u32 = 3;

/// One reading, and the rate: what the programs convert by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conversion {
    /// What the NIC's clock showed,
    pub phc_ns: i64,
    /// when the monotonic clock showed this.
    pub monotonic_ns: i64,
    /// By how much a time on the monotonic clock is longer than one on the NIC's, in 2^-30.
    pub rate: i64,
}

impl Conversion {
    /// A time of the NIC's clock on the monotonic clock, as `nic_stamp_ns` of `bpf/nic_stamps.h` has it.
    pub fn monotonic(&self, stamp_ns: i64) -> i64 {
        let since = stamp_ns.wrapping_sub(self.phc_ns);
        let strays = (i128::from(since) * i128::from(self.rate)) >> RATE_BITS;
        self.monotonic_ns
            .wrapping_add(since)
            .wrapping_add(i64::try_from(strays).unwrap_or_default())
    }
}

/// A clock that is read at intervals.
#[derive(Debug, Clone)]
pub struct Clock {
    readings: VecDeque<PhcReading>,
    rate: i64,
    worst_ns: u64,
    steps: u64,
    in_a_row: u32,
}

impl Clock {
    /// With the first reading; its rate is not known yet.
    pub fn new(first: PhcReading) -> Self {
        let worst_ns = first.uncertainty_ns;
        Self { readings: [first].into(), rate: 0, worst_ns, steps: 0, in_a_row: 0 }
    }

    /// A further reading, later than the last.
    ///
    /// # Errors
    /// The clock stands still, or runs at a speed that is none of a clock: its stamps are not to be used.
    pub fn add(&mut self, reading: PhcReading) -> Result<(), String> {
        let Some(last) = self.readings.back().copied() else {
            *self = Self::new(reading);
            return Ok(());
        };
        let elapsed = reading.monotonic_ns.saturating_sub(last.monotonic_ns);
        let best = self.readings.iter().map(|r| r.uncertainty_ns).min().unwrap_or(0);
        if reading.uncertainty_ns / POOR > best && elapsed < OLD_NS {
            return Ok(());
        }
        let off = self.conversion().monotonic(reading.phc_ns).abs_diff(reading.monotonic_ns);
        let unsure = reading.uncertainty_ns.saturating_add(last.uncertainty_ns);
        let may_stray = elapsed.unsigned_abs() / STRAYS;
        if off > unsure.saturating_add(may_stray) {
            // Of what was before nothing holds now but the rate.
            self.readings.clear();
            self.readings.push_back(reading);
            self.steps += 1;
            self.in_a_row += 1;
            return match self.in_a_row < STEPS_IN_A_ROW {
                true => Ok(()),
                false => Err("its clock does not keep the kernel's time".to_owned()),
            };
        }
        self.in_a_row = 0;
        self.worst_ns = self.worst_ns.max(off).max(reading.uncertainty_ns);
        if self.readings.len() == READINGS {
            self.readings.pop_front();
        }
        self.readings.push_back(reading);
        self.rate = self.measured_rate()?;
        Ok(())
    }

    /// From here on it counts how far conversions are off: the rate is known as well as it can be so far.
    pub fn settle(&mut self) {
        self.worst_ns = self.readings.back().map_or(0, |reading| reading.uncertainty_ns);
        self.steps = 0;
    }

    /// Over all readings; one that they cannot tell from none is none.
    fn measured_rate(&self) -> Result<i64, String> {
        let (Some(first), Some(last)) = (self.readings.front(), self.readings.back()) else {
            return Ok(0);
        };
        let monotonic = i128::from(last.monotonic_ns) - i128::from(first.monotonic_ns);
        let phc = i128::from(last.phc_ns) - i128::from(first.phc_ns);
        let unsure = i128::from(first.uncertainty_ns) + i128::from(last.uncertainty_ns);
        if (monotonic - phc).abs() <= unsure {
            return Ok(0);
        }
        if phc <= 0 {
            return Err("its clock does not run".to_owned());
        }
        let rate = ((monotonic - phc) << RATE_BITS) / phc;
        i64::try_from(rate)
            .ok()
            .filter(|rate| rate.abs() <= MAX_RATE)
            .ok_or_else(|| "its clock runs at another speed than the kernel's".to_owned())
    }

    /// By which stamps are converted from now on.
    pub fn conversion(&self) -> Conversion {
        let last = self.readings.back();
        let (phc_ns, monotonic_ns) = last.map_or((0, 0), |r| (r.phc_ns, r.monotonic_ns));
        Conversion { phc_ns, monotonic_ns, rate: self.rate }
    }

    /// By how much a conversion may have been off, in nanoseconds: half of a reading's bracket, or how far the clock
    /// was from its course at the next reading, whichever was most.
    pub fn uncertainty_ns(&self) -> u64 {
        self.worst_ns
    }

    /// By how much the NIC's clock is faster than the monotonic clock, in parts per 10^9; negative: slower.
    pub fn drift_ppb(&self) -> f64 {
        -(self.rate as f64) * 1e9 / f64::from(1u32 << RATE_BITS)
    }

    /// How often it was set meanwhile.
    pub fn steps(&self) -> u64 {
        self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: i64 = 1_000_000_000;
    /// TAI, as PTP's clocks show it.
    const EPOCH: i64 = 1_800_000_000 * S;

    /// A clock that is `ppm` faster, at a time of the monotonic clock.
    fn at(monotonic_ns: i64, ppm: i64, uncertainty_ns: u64) -> PhcReading {
        let phc_ns = EPOCH + monotonic_ns + monotonic_ns / 1_000_000 * ppm;
        PhcReading { phc_ns, monotonic_ns, uncertainty_ns }
    }

    #[test]
    fn a_clock_that_drifts_is_followed() {
        let mut clock = Clock::new(at(50 * S, 80, 300));
        for tick in 1..10 {
            clock.add(at(50 * S + tick * S / 2, 80, 300)).unwrap();
        }
        assert!((clock.drift_ppb() - 80_000.0).abs() < 300.0, "{}", clock.drift_ppb());
        // Half a second after the last reading 80 ppm are 40 µs, which the rate makes up for.
        let later = at(55 * S, 80, 0);
        assert!(clock.conversion().monotonic(later.phc_ns).abs_diff(later.monotonic_ns) < 500);
        assert_eq!(clock.steps(), 0);
        // The first of them were converted without a rate; that was before anything was measured.
        assert!(clock.uncertainty_ns() >= 40_000);
        clock.settle();
        clock.add(later).unwrap();
        assert!(clock.uncertainty_ns() < 1_000, "{}", clock.uncertainty_ns());
    }

    #[test]
    fn what_the_readings_cannot_tell_is_no_drift() {
        let mut clock = Clock::new(at(S, 0, 40_000));
        clock
            .add(PhcReading {
                phc_ns: at(S + S / 10, 0, 0).phc_ns + 30_000,
                ..at(S + S / 10, 0, 40_000)
            })
            .unwrap();
        assert_eq!((clock.conversion().rate, clock.uncertainty_ns()), (0, 40_000));
    }

    #[test]
    fn a_clock_that_is_set_is_followed_from_there_and_counted() {
        let mut clock = Clock::new(at(S, 10, 100));
        clock.add(at(2 * S, 10, 100)).unwrap();
        let set = |monotonic| PhcReading {
            phc_ns: at(monotonic, 10, 0).phc_ns - 37 * S,
            ..at(monotonic, 10, 100)
        };
        clock.add(set(3 * S)).unwrap();
        clock.add(set(4 * S)).unwrap();
        assert_eq!(clock.steps(), 1);
        assert!(clock.uncertainty_ns() < 20_000, "the step is none of the conversion");
        assert!(clock.conversion().monotonic(set(5 * S).phc_ns).abs_diff(5 * S) < 1_000);
    }

    #[test]
    fn an_interrupted_reading_is_left_out() {
        let mut clock = Clock::new(at(S, 0, 100));
        clock.add(PhcReading { uncertainty_ns: 900_000, ..at(2 * S, 0, 0) }).unwrap();
        assert_eq!(clock.conversion().monotonic_ns, S);
        // After so long a poor one is better than none.
        clock.add(PhcReading { uncertainty_ns: 900_000, ..at(7 * S, 0, 0) }).unwrap();
        assert_eq!((clock.conversion().monotonic_ns, clock.uncertainty_ns()), (7 * S, 900_000));
    }

    #[test]
    fn what_is_no_clock_is_refused() {
        let stopped = |monotonic_ns| PhcReading { phc_ns: EPOCH, ..at(monotonic_ns, 0, 10) };
        let mut clock = Clock::new(at(S, 0, 10));
        let added: Vec<bool> = (2..8).map(|s| clock.add(stopped(s * S)).is_ok()).collect();
        // Once or twice it may have been set.
        assert_eq!(added, [true, true, false, false, false, false]);
        // It runs again.
        let added: Vec<bool> = (8..11).map(|s| clock.add(at(s * S, 0, 10)).is_ok()).collect();
        assert_eq!(added, [false, true, true]);
        let fast = |s: i64| PhcReading { phc_ns: EPOCH + 2 * s * S, ..at(s * S, 0, 10) };
        let mut clock = Clock::new(fast(1));
        assert!((2..5).any(|s| clock.add(fast(s)).is_err()));
    }

    #[test]
    fn numbers_are_those_of_the_programs() {
        let header = include_str!("../../../../../bpf/nic_stamps.h");
        assert!(header.contains(&format!("#define RATE_BITS {RATE_BITS}")));
        assert!(header.contains("#define STAMP_FARTHEST_NS (1LL << 36)"));
        // The product that the programs make has room in 64 bits.
        assert!(MAX_RATE.checked_mul(1 << 36).is_some());
    }

    proptest! {
        #[test]
        fn no_reading_makes_it_panic(readings in prop::collection::vec((any::<i64>(), any::<i64>(), any::<u64>()), 1..40), stamp in any::<i64>()) {
            let reading = |(phc_ns, monotonic_ns, uncertainty_ns)| PhcReading { phc_ns, monotonic_ns, uncertainty_ns };
            let mut readings = readings.into_iter().map(reading);
            let mut clock = Clock::new(readings.next().unwrap());
            for reading in readings {
                let _ = clock.add(reading);
                let _ = (clock.conversion().monotonic(stamp), clock.drift_ppb());
            }
        }

        /// Whatever the drift, the times of day and the brackets: a stamp between two readings is converted as exactly
        /// as it says.
        #[test]
        fn conversions_are_as_exact_as_they_say(
            ppm in -300..300i64,
            start in 0..1_000_000 * S,
            ticks in 12..30i64,
            half in 0..5_000u64,
        ) {
            let mut clock = Clock::new(at(start, ppm, half));
            for tick in 1..4 {
                clock.add(at(start + tick * S / 20, ppm, half)).unwrap();
            }
            clock.settle();
            for tick in 4..ticks {
                let now = start + tick * S / 4;
                let stamp = at(now - S / 9, ppm, 0);
                let found = clock.conversion().monotonic(stamp.phc_ns);
                clock.add(at(now, ppm, half)).unwrap();
                prop_assert!(
                    found.abs_diff(stamp.monotonic_ns) <= clock.uncertainty_ns() + 1_000,
                    "{} {}", found - stamp.monotonic_ns, clock.uncertainty_ns(),
                );
            }
            prop_assert_eq!(clock.steps(), 0);
        }
    }
}
