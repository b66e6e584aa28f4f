//! The pacer of everything that sends in an open loop: probes, requests and load. Input: a rate and the start. Output:
//! intended send times, one after the other, whatever happens to what is sent; and the wait for them.
//!
//! A prober never skips a time: what was due during a stall is sent after it, and its latency counts from when it was
//! due. A load skips what is far too late ([`Pacer`]): it is there to keep the path busy, not to be measured.

use crate::clock::{SECOND_NS, now_ns, sleep_until};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};

/// Longest single sleep, so that a slow schedule can be stopped.
const NAP_NS: u64 = 50_000_000;
/// How late a message of a load may be before it is skipped: a stalled machine is not followed by a burst that stalls
/// it again.
const MAX_LATE_NS: u64 = 20_000_000;

/// The distribution of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// At constant intervals.
    Constant,
    /// As a Poisson process: intervals are exponentially distributed, so that probes cannot be in step with
    /// anything on the path (PASTA).
    Poisson,
}

/// Waits until that time; `false` if it was stopped. Spinning is on time to the microsecond, and takes a CPU.
pub(crate) fn wait_until(ns: u64, spin: bool, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let now = now_ns();
        if now >= ns {
            return true;
        }
        if spin {
            std::hint::spin_loop();
        } else {
            sleep_until(ns.min(now + NAP_NS));
        }
    }
}

/// The intended send times of one flow.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    begin_ns: u64,
    /// Mean interval between two probes of this flow.
    interval_ns: f64,
    /// Number of due times handed out.
    count: u64,
    /// For a Poisson process: its random numbers, and the time since the start.
    random: Option<(fastrand::Rng, f64)>,
    next_ns: u64,
}

impl Schedule {
    /// The flow numbered `flow` of `flows` that together send `rate_per_s` probes per second. Constant
    /// schedules are offset against each other; Poisson processes add up to one.
    pub(crate) fn new(
        begin_ns: u64,
        rate_per_s: u32,
        (flow, flows): (u32, u32),
        arrivals: Arrivals,
    ) -> Self {
        let all_ns = SECOND_NS as f64 / f64::from(rate_per_s.max(1));
        let interval_ns = all_ns * f64::from(flows.max(1));
        let offset_ns = (all_ns * f64::from(flow)) as u64;
        let random = (arrivals == Arrivals::Poisson).then(|| (fastrand::Rng::new(), 0.0));
        let begin_ns = begin_ns + if random.is_some() { 0 } else { offset_ns };
        let mut schedule = Self { begin_ns, interval_ns, count: 0, random, next_ns: begin_ns };
        if schedule.random.is_some() {
            schedule.advance();
        }
        schedule
    }

    /// When the next probe is due.
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Advances to the next probe.
    pub(crate) fn advance(&mut self) {
        self.count += 1;
        let passed_ns = match &mut self.random {
            // Computed from the number, so that rounding errors do not accumulate.
            None => self.count as f64 * self.interval_ns,
            Some((random, passed_ns)) => {
                *passed_ns -= (1.0 - random.f64()).ln() * self.interval_ns;
                *passed_ns
            }
        };
        self.next_ns = self.begin_ns + passed_ns as u64;
    }

    /// Advances to the first probe due after that time.
    pub(crate) fn skip_to(&mut self, ns: u64) {
        while self.next_ns < ns {
            self.advance();
        }
    }

    /// How many were due before that time and were not handed out.
    pub(crate) fn overdue(mut self, ns: u64) -> u64 {
        let handed_out = self.count;
        self.skip_to(ns);
        self.count - handed_out
    }
}

/// The pacer of a load.
#[derive(Debug)]
pub(crate) struct Pacer(Schedule);

impl Pacer {
    /// `rate_hz` messages per second; the pacer numbered `index` of `of`, so that they do not all send at the
    /// same moment.
    pub(crate) fn new(rate_hz: u32, index: u16, of: u16) -> Self {
        let begin_ns = now_ns() + SECOND_NS / u64::from(rate_hz.max(1));
        let of_all = rate_hz.max(1).saturating_mul(u32::from(of.max(1)));
        let flow = (u32::from(index), u32::from(of));
        Self(Schedule::new(begin_ns, of_all, flow, Arrivals::Constant))
    }

    /// Sleeps until the next message is due. `false` if it was stopped.
    pub(crate) fn wait(&mut self, stop: &AtomicBool) -> bool {
        let came = wait_until(self.0.next_ns(), false, stop);
        if came {
            self.advance(now_ns());
        }
        came
    }

    /// Messages that were due; those not sent were skipped as too late.
    pub(crate) fn planned(&self) -> u64 {
        self.0.count
    }

    fn advance(&mut self, now_ns: u64) {
        let late_ns = now_ns.saturating_sub(self.0.next_ns());
        self.0.advance();
        if late_ns > MAX_LATE_NS {
            self.0.skip_to(now_ns + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_load_are_an_interval_apart() {
        let (mut pacer, begin_ns) = (Pacer::new(1_000, 0, 1), now_ns());
        for _ in 0..50 {
            assert!(pacer.wait(&AtomicBool::new(false)));
        }
        let elapsed_ns = now_ns() - begin_ns;
        assert!(elapsed_ns >= 49_000_000, "{elapsed_ns}ns is too short for 50 at 1,000/s");
        assert!(pacer.planned() >= 50);
    }

    #[test]
    fn a_small_delay_of_a_load_is_caught_up_and_a_long_one_skipped() {
        let mut pacer = Pacer(Schedule::new(1_000_000, 1_000, (0, 1), Arrivals::Constant));
        pacer.advance(6_000_000);
        assert_eq!((pacer.planned(), pacer.0.next_ns()), (1, 2_000_000));
        pacer.advance(102_500_000);
        assert_eq!((pacer.planned(), pacer.0.next_ns()), (102, 103_000_000));
    }

    #[test]
    fn a_pacer_stops_on_request() {
        assert!(!Pacer::new(1, 0, 1).wait(&AtomicBool::new(true)));
    }

    #[test]
    fn pacers_of_one_load_take_turns() {
        let first = |index| Pacer::new(10, index, 4).0.next_ns();
        let between = first(1) - first(0);
        assert!((24_000_000..60_000_000).contains(&between), "a quarter of 100ms: {between}");
    }

    fn times(schedule: &mut Schedule, count: usize) -> Vec<u64> {
        let mut next = || {
            let due_ns = schedule.next_ns();
            schedule.advance();
            due_ns
        };
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn constant_probes_are_an_interval_apart_and_do_not_drift() {
        let mut schedule = Schedule::new(500, 3, (0, 1), Arrivals::Constant);
        assert_eq!(times(&mut schedule, 4), [500, 333_333_833, 666_667_166, 1_000_000_500]);
        let mut schedule = Schedule::new(0, 7_000, (0, 1), Arrivals::Constant);
        times(&mut schedule, 7_000 * 3600);
        assert_eq!(schedule.next_ns(), 3600 * SECOND_NS);
    }

    #[test]
    fn flows_alternate() {
        let mut all: Vec<u64> = (0..4)
            .flat_map(|flow| {
                let mut one = Schedule::new(0, 1_000, (flow, 4), Arrivals::Constant);
                times(&mut one, 5)
            })
            .collect();
        all.sort_unstable();
        assert_eq!(all, (0..20).map(|i| i * 1_000_000).collect::<Vec<_>>());
    }

    #[test]
    fn poisson_intervals_are_exponential() {
        let mut schedule = Schedule::new(1_000, 1_000, (0, 1), Arrivals::Poisson);
        schedule.random = Some((fastrand::Rng::with_seed(7), 0.0));
        schedule.count = 0;
        schedule.advance();
        let due = times(&mut schedule, 100_001);
        let intervals: Vec<f64> = due.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
        let mean = intervals.iter().sum::<f64>() / 1e5;
        let variance = intervals.iter().map(|i| (i - mean).powi(2)).sum::<f64>() / 1e5;
        // Of 100,000 the mean is within 1.6% (5 σ); the σ of an exponential distribution is its mean.
        assert!((mean / 1e6 - 1.0).abs() < 0.016, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "{variance}");
        // Intervals longer than 3 means: a share of e^-3.
        let long = intervals.iter().filter(|i| **i > 3e6).count();
        assert!((4_500..5_500).contains(&long), "{long}");
    }

    #[test]
    fn overdue_probes_are_counted() {
        let mut schedule = Schedule::new(0, 1_000, (0, 1), Arrivals::Constant);
        times(&mut schedule, 3);
        assert_eq!(schedule.clone().overdue(10_000_000), 7);
        assert_eq!(schedule.clone().overdue(0), 0);
        schedule.skip_to(5_500_000);
        assert_eq!(schedule.next_ns(), 6_000_000);
    }
}
