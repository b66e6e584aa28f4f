//! The schedule of probes. Input: a rate and the start. Output: intended send times, one after the other,
//! whatever happens to the probes. None is ever skipped.

use crate::clock::SECOND_NS;
use serde::{Deserialize, Serialize};

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

/// The intended send times of one flow.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
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
    pub(super) fn new(
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
    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Advances to the next probe.
    pub(super) fn advance(&mut self) {
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
    pub(super) fn skip_to(&mut self, ns: u64) {
        while self.next_ns < ns {
            self.advance();
        }
    }

    /// How many were due before that time and were not handed out.
    pub(super) fn overdue(mut self, ns: u64) -> u64 {
        let handed_out = self.count;
        self.skip_to(ns);
        self.count - handed_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
