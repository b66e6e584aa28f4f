//! Decides when to observe, so that the overhead stays below a share of a CPU: a pure function of time and of
//! the cost so far.
//!
//! The allowance grows with time, and costs are subtracted from it. While there is some, packets are observed
//! continuously. Once it is used up they are observed in slices: each slice costs some milliseconds of CPU
//! time, so that the cost of pausing and resuming is a small part of it, and is followed by a pause until the
//! allowance is balanced again. The length of a pause is randomized, so that slices do not synchronize with
//! what they observe.

use std::time::Duration;

/// Maximum unused allowance that is kept.
const KEPT: Duration = Duration::from_secs(1);
/// A slice costs this many times as much as pausing and resuming.
const SWITCHES: f64 = 8.0;
/// A slice may cost the allowance of this period,
const OF_SLICE: Duration = Duration::from_millis(250);
/// and no more than this share of the allowance of the whole measurement.
const PART: f64 = 0.2;
/// Minimum slice: attaching for less is not worthwhile.
const SHORTEST_SLICE: Duration = Duration::from_millis(10);
/// Interval between checks of the cost.
const SHORTEST_LOOK: Duration = Duration::from_millis(2);
const LONGEST_LOOK: Duration = Duration::from_millis(50);
const PAUSED_LOOK: Duration = Duration::from_millis(100);

/// Keeps the overhead within a limit.
#[derive(Debug)]
pub struct Governor {
    /// The share of a CPU.
    limit: f64,
    /// Maximum cost of a slice, in nanoseconds, whatever pausing costs.
    most: f64,
    /// The remaining allowance; negative if overdrawn.
    left: f64,
    /// Time of the last update, and the cost up to then.
    at: Duration,
    spent: f64,
    /// Recent CPU time per time while observing.
    rate: f64,
    /// Recent cost of pausing and resuming.
    switching: f64,
    /// Recent CPU time per time in pauses: of what runs on.
    base: f64,
    just_paused: bool,
    /// Start of the current slice, and its cost.
    slice: Option<(Duration, f64)>,
    /// The allowance at which the current pause ends.
    enough: f64,
    random: u64,
}

impl Governor {
    /// For a measurement of this duration, which starts with a slice; `limit` is a share of one CPU.
    pub fn new(limit: f64, duration: Duration, seed: u64) -> Self {
        Self {
            limit,
            most: (limit * nanoseconds(duration) * PART).max(1.0),
            left: 0.0,
            at: Duration::ZERO,
            spent: 0.0,
            rate: 0.0,
            switching: 0.0,
            base: 0.0,
            just_paused: false,
            slice: Some((Duration::ZERO, 0.0)),
            enough: 0.0,
            random: seed | 1,
        }
    }

    /// Updates the total cost so far.
    pub fn account(&mut self, now: Duration, spent: Duration) {
        let passed = nanoseconds(now.saturating_sub(self.at));
        let more = (nanoseconds(spent) - self.spent).max(0.0);
        self.left = (self.left + self.limit * passed - more).min(self.limit * nanoseconds(KEPT));
        // The first look in a pause includes what pausing cost.
        if self.slice.is_none() && passed > 0.0 && !std::mem::take(&mut self.just_paused) {
            self.base += (more / passed - self.base) / 2.0;
        }
        if let Some((_, cost)) = &mut self.slice {
            *cost += more;
            if passed > 0.0 {
                // A burst is reflected immediately, its end after several updates.
                let rate = more / passed;
                self.rate = rate.max((self.rate + rate) / 2.0);
            }
        }
        self.at = now;
        self.spent = self.spent.max(nanoseconds(spent));
    }

    /// Maximum cost of a slice once the allowance is used up.
    fn of_slice(&self) -> f64 {
        let wanted = (SWITCHES * self.switching).max(self.limit * nanoseconds(OF_SLICE));
        wanted.min(self.most.max(self.switching))
    }

    /// Whether the current slice is over: the allowance is overdrawn, and the slice has cost enough to be
    /// worthwhile.
    pub fn is_over(&self) -> bool {
        let Some((since, cost)) = self.slice else { return false };
        self.left < 0.0 && cost >= self.of_slice() && self.at - since >= SHORTEST_SLICE
    }

    /// Expected length of the current slice, from its cost so far.
    pub fn expected_slice(&self) -> Duration {
        if self.rate <= self.limit {
            return KEPT;
        }
        let slice = Duration::from_nanos((self.of_slice() / self.rate) as u64);
        slice.clamp(SHORTEST_SLICE, KEPT)
    }

    /// When to check the cost again.
    pub fn look_again(&self) -> Duration {
        // What runs on meanwhile is looked at, too.
        let Some((_, cost)) = self.slice else { return self.pause_left().min(PAUSED_LOOK) };
        if self.rate <= self.limit {
            return LONGEST_LOOK;
        }
        let may_cost = (self.of_slice() - cost).max(self.left);
        let look = Duration::from_nanos((may_cost / self.rate).max(0.0) as u64);
        look.clamp(SHORTEST_LOOK, LONGEST_LOOK)
    }

    /// The slice has ended; estimated cost of pausing and resuming.
    pub fn paused(&mut self, switching: Duration) {
        self.slice = None;
        self.just_paused = true;
        self.switching = nanoseconds(switching);
        // xorshift64
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let part = (self.random >> 11) as f64 / (1u64 << 53) as f64;
        // Randomized by up to half a slice's allowance in either direction.
        self.enough = (part - 0.5) * self.of_slice();
    }

    /// Remaining length of the pause.
    pub fn pause_left(&self) -> Duration {
        let lacks = (self.enough - self.left).max(0.0);
        let gains = (self.limit - self.base).max(0.1 * self.limit);
        Duration::from_nanos((lacks / gains).min(1e18) as u64)
    }

    /// A slice starts; actual cost of the pause before it and of resuming.
    pub fn resumed(&mut self, now: Duration, switching: Duration) {
        self.switching = nanoseconds(switching);
        self.slice = Some((now, 0.0));
    }
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// CPU time per time that observing takes, as a function of time.
    type Load<'a> = &'a dyn Fn(f64) -> f64;

    /// Result of a measurement: CPU time spent, time observed, and slices.
    struct Came {
        spent_s: f64,
        observed_s: f64,
        pauses: u32,
    }

    /// A measurement of a load, as driven by `limited.rs`, in steps of a tenth of a millisecond.
    fn simulate(limit: f64, seconds: f64, switching_s: f64, load: Load<'_>) -> Came {
        simulate_beside(0.0, limit, seconds, switching_s, load)
    }

    /// The same while something else always takes `base`.
    fn simulate_beside(
        base: f64,
        limit: f64,
        seconds: f64,
        switching_s: f64,
        load: Load<'_>,
    ) -> Came {
        let time = Duration::from_secs_f64;
        let mut governor = Governor::new(limit, time(seconds), 0x1234_5678);
        let (mut now, mut came) = (0.0, Came { spent_s: 0.0, observed_s: 0.0, pauses: 0 });
        let mut observes = true;
        while now < seconds {
            let wait = if observes { governor.look_again() } else { governor.pause_left() };
            let until = (now + wait.as_secs_f64()).min(seconds) + 1e-4;
            while now < until {
                came.spent_s += base * 1e-4;
                if observes {
                    came.spent_s += load(now) * 1e-4;
                    came.observed_s += 1e-4;
                }
                now += 1e-4;
            }
            governor.account(time(now), time(came.spent_s));
            if observes && governor.is_over() {
                observes = false;
                came.pauses += 1;
                came.spent_s += switching_s / 2.0;
                governor.paused(time(switching_s));
            } else if !observes && governor.pause_left().is_zero() {
                observes = true;
                came.spent_s += switching_s / 2.0;
                governor.resumed(time(now), time(switching_s));
            }
        }
        came
    }

    #[test]
    fn a_cost_below_the_limit_is_observed_continuously() {
        let came = simulate(0.02, 20.0, 0.002, &|_| 0.015);
        assert_eq!(came.pauses, 0);
    }

    #[test]
    fn the_allowance_is_used() {
        for (limit, load) in [(0.02, 0.15), (0.02, 0.4), (0.05, 0.06), (0.01, 2.0)] {
            let came = simulate(limit, 20.0, 0.001, &|_| load);
            let share = came.spent_s / 20.0 / limit;
            assert!((0.8..1.2).contains(&share), "{share} of {limit} at {load}");
            assert!(came.pauses > 5, "{}", came.pauses);
        }
    }

    #[test]
    fn what_always_runs_is_part_of_the_allowance() {
        for base in [0.005, 0.015, 0.018] {
            let came = simulate_beside(base, 0.02, 20.0, 0.001, &|_| 0.15);
            let share = came.spent_s / 20.0 / 0.02;
            assert!((0.8..1.2).contains(&share), "{share} of it beside {base}");
            assert!(came.observed_s > 0.0 && came.pauses > 2, "{}", came.pauses);
        }
        // The watch alone takes more: stages are hardly observed, but the rest is not stopped for them.
        let came = simulate_beside(0.03, 0.02, 20.0, 0.001, &|_| 0.15);
        assert!(came.observed_s < 0.5, "{}", came.observed_s);
    }

    #[test]
    fn slices_do_not_synchronize_with_a_load() {
        // Busy half of the time, in step with the average pauses for a load of this height.
        let busy = |now: f64| now.rem_euclid(0.06) < 0.03;
        let load = |now: f64| if busy(now) { 0.2 } else { 0.1 };
        let came = simulate(0.02, 60.0, 0.0005, &load);
        // If only one of the halves were observed, it would cost 0.1 or 0.2 per second observed.
        let mean = came.spent_s / came.observed_s;
        assert!((0.13..0.18).contains(&mean), "{mean}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
        /// Bursts of any height and length, and idle times between them: the limit is kept.
        #[test]
        fn bursts_do_not_break_the_limit(
            limit in 0.01..0.1f64,
            heights in prop::collection::vec(0.0..0.6f64, 1..40),
            lengths in prop::collection::vec(0.01..2.0f64, 40),
            switching_s in 0.0001..0.003f64,
        ) {
            let mut steps = Vec::new();
            let mut end = 0.0;
            for (height, length) in heights.iter().zip(&lengths).cycle().take(2000) {
                end += length;
                steps.push((end, *height));
            }
            let load = |now: f64| {
                let at = steps.partition_point(|&(end, _)| end <= now);
                steps.get(at).map_or(0.0, |&(_, height)| height)
            };
            let came = simulate(limit, 10.0, switching_s, &load);
            let share = came.spent_s / 10.0 / limit;
            prop_assert!(share < 1.5, "{share} of {limit}");
        }
    }
}
