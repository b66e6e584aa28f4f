//! A NIC's clock for the programs. Input: readings relative to the monotonic clock. Output: the latest reading
//! and the rate of drift, by which timestamps are converted, and the error of the conversion.

use nearpath_host::timestamping::PhcReading;
use std::collections::VecDeque;

/// The rate is in units of 2^-30 (`RATE_BITS` of `bpf/nic_stamps.h`).
const RATE_BITS: u32 = crate::constants::RATE_BITS as u32;
/// Maximum plausible difference of a clock's rate (1.5%).
const MAX_RATE: i64 = 1 << 24;
/// Number of readings from which the rate is computed.
const READINGS: usize = 16;
/// A reading whose bracket is this many times as long as the shortest was interrupted, and is ignored,
const POOR: u64 = 4;
/// unless the one before it is at least this old.
const OLD_NS: i64 = 5_000_000_000;
/// Maximum deviation of a clock from its extrapolation, as a share of the time between two readings; beyond it,
/// the clock was set.
const STRAYS: u64 = 500;
/// A clock that was set at each of this many readings is not usable.
const STEPS_IN_A_ROW: u32 = 3;

/// A reading, and the rate: used by the programs for conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conversion {
    /// The NIC's clock,
    pub phc_ns: i64,
    /// and the monotonic clock at the same time.
    pub monotonic_ns: i64,
    /// How much longer a time is on the monotonic clock than on the NIC's, in units of 2^-30.
    pub rate: i64,
}

impl Conversion {
    /// Converts a time of the NIC's clock to the monotonic clock, like `nic_stamp_ns` of `bpf/nic_stamps.h`.
    pub fn monotonic(&self, stamp_ns: i64) -> i64 {
        let since = stamp_ns.wrapping_sub(self.phc_ns);
        let strays = (i128::from(since) * i128::from(self.rate)) >> RATE_BITS;
        self.monotonic_ns
            .wrapping_add(since)
            .wrapping_add(i64::try_from(strays).unwrap_or_default())
    }
}

/// A clock that is read periodically.
#[derive(Debug, Clone)]
pub struct Clock {
    readings: VecDeque<PhcReading>,
    rate: i64,
    worst_ns: u64,
    steps: u64,
    in_a_row: u32,
}

impl Clock {
    /// With the first reading; its rate is still unknown.
    pub fn new(first: PhcReading) -> Self {
        let worst_ns = first.uncertainty_ns;
        Self { readings: [first].into(), rate: 0, worst_ns, steps: 0, in_a_row: 0 }
    }

    /// Adds a reading, later than the last.
    ///
    /// # Errors
    /// The clock is not running, or its rate is implausible: its timestamps cannot be used.
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
            // Of the earlier data only the rate is still valid.
            self.readings.clear();
            self.readings.push_back(reading);
            self.steps += 1;
            self.in_a_row += 1;
            return match self.in_a_row < STEPS_IN_A_ROW {
                true => Ok(()),
                false => Err("its clock is set repeatedly".to_owned()),
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

    /// From here on conversion errors are recorded: the rate is as accurate as possible at this point.
    pub fn settle(&mut self) {
        self.worst_ns = self.readings.back().map_or(0, |reading| reading.uncertainty_ns);
        self.steps = 0;
    }

    /// From all readings; a rate that is within their error is 0.
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
            return Err("its clock is not running".to_owned());
        }
        let rate = ((monotonic - phc) << RATE_BITS) / phc;
        i64::try_from(rate)
            .ok()
            .filter(|rate| rate.abs() <= MAX_RATE)
            .ok_or_else(|| "the rate of its clock is implausible".to_owned())
    }

    /// The reading and rate in use.
    pub fn conversion(&self) -> Conversion {
        let last = self.readings.back();
        let (phc_ns, monotonic_ns) = last.map_or((0, 0), |r| (r.phc_ns, r.monotonic_ns));
        Conversion { phc_ns, monotonic_ns, rate: self.rate }
    }

    /// Maximum conversion error in nanoseconds: half of a reading's bracket, or the deviation of the clock from
    /// its extrapolation at the next reading, whichever was larger.
    pub fn uncertainty_ns(&self) -> u64 {
        self.worst_ns
    }

    /// How much faster the NIC's clock is than the monotonic clock, in parts per 10^9; negative: slower.
    pub fn drift_ppb(&self) -> f64 {
        -(self.rate as f64) * 1e9 / f64::from(1u32 << RATE_BITS)
    }

    /// How often it was set in the meantime.
    pub fn steps(&self) -> u64 {
        self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: i64 = 1_000_000_000;
    /// TAI, as used by PTP clocks.
    const EPOCH: i64 = 1_800_000_000 * S;

    /// A clock that is faster by `ppm`, at a time of the monotonic clock.
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
        // In half a second after the last reading 80 ppm are 40µs, which the rate compensates.
        let later = at(55 * S, 80, 0);
        assert!(clock.conversion().monotonic(later.phc_ns).abs_diff(later.monotonic_ns) < 500);
        assert_eq!(clock.steps(), 0);
        // The first ones were converted without a rate, before the measurement started.
        assert!(clock.uncertainty_ns() >= 40_000);
        clock.settle();
        clock.add(later).unwrap();
        assert!(clock.uncertainty_ns() < 1_000, "{}", clock.uncertainty_ns());
    }

    #[test]
    fn drift_below_the_reading_error_is_zero() {
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
        assert!(clock.uncertainty_ns() < 20_000, "the step is not a conversion error");
        assert!(clock.conversion().monotonic(set(5 * S).phc_ns).abs_diff(5 * S) < 1_000);
    }

    #[test]
    fn an_interrupted_reading_is_ignored() {
        let mut clock = Clock::new(at(S, 0, 100));
        clock.add(PhcReading { uncertainty_ns: 900_000, ..at(2 * S, 0, 0) }).unwrap();
        assert_eq!(clock.conversion().monotonic_ns, S);
        // After this long a poor reading is better than none.
        clock.add(PhcReading { uncertainty_ns: 900_000, ..at(7 * S, 0, 0) }).unwrap();
        assert_eq!((clock.conversion().monotonic_ns, clock.uncertainty_ns()), (7 * S, 900_000));
    }

    #[test]
    fn implausible_clocks_are_rejected() {
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

        /// Whatever the drift, the times of day and the brackets: timestamps between two readings are converted
        /// with the reported accuracy.
        #[test]
        fn conversions_have_the_reported_accuracy(
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
