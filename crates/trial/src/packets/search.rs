//! The highest rate without loss, found by binary search (RFC 2544, 26.1). Input: the result of a trial.
//! Output: the rate of the next one. Independent of packets.

/// Relative precision at which the search ends.
const RESOLUTION: f64 = 0.01;
/// Maximum number of trials of a search.
const TRIALS: u32 = 24;
/// How often a rate that was found is tried in a long trial, each time at a lower rate.
const CONFIRMATIONS: u32 = 6;
/// Minimum reduction of a rate that lost packets in a long trial; doubled each further time. Buffers of a path
/// (a shaper's burst, a queue) improve short trials by an unknown amount.
const STEP_DOWN: f64 = 0.03;
/// The rate received at overload is usually the capacity of the path. If it passes, a rate higher by this much
/// is tried next, not the middle between it and the overload.
const STEP_UP: f64 = 0.05;

/// The next trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Next {
    /// A short trial at this rate.
    Try(f64),
    /// A long one, whose result counts if it passes.
    Confirm(f64),
    /// The last confirmed rate is the result.
    Found,
    /// No rate had a loss below the limit.
    None,
}

/// The state of a search.
#[derive(Debug)]
pub(super) struct Search {
    /// The highest rate that passed, and the lowest that failed.
    low: f64,
    high: f64,
    next: Next,
    trials: u32,
    confirmations: u32,
}

impl Search {
    /// After a trial with unlimited rate, which sent and received this many per second.
    pub(super) fn new(sent_per_s: f64, received_per_s: f64, passed: bool) -> Self {
        let mut search = Self {
            low: if passed { sent_per_s } else { 0.0 },
            high: sent_per_s,
            // The rate received is a good estimate.
            next: Next::Try(received_per_s.min(sent_per_s)),
            trials: 0,
            confirmations: 0,
        };
        if passed || received_per_s <= 0.0 {
            search.advance();
        }
        search
    }

    /// The next step.
    pub(super) fn next(&self) -> Next {
        self.next
    }

    /// The result of a trial: whether it passed, the rate actually offered, and the rate received.
    pub(super) fn record_result(&mut self, passed: bool, offered_per_s: f64, received_per_s: f64) {
        match self.next {
            Next::Try(rate) => {
                self.trials += 1;
                // A rate that could not be offered passed at what was offered, and no more is possible.
                let reached = offered_per_s >= rate * 0.99;
                if passed {
                    self.low = self.low.max(if reached { rate } else { offered_per_s });
                }
                if !passed || !reached {
                    self.high = self.high.min(rate);
                }
                self.high = self.high.max(self.low);
                self.advance();
            }
            Next::Confirm(_) if passed => self.next = Next::Found,
            Next::Confirm(rate) => {
                let lower = rate * (1.0 - STEP_DOWN * f64::from(1 << self.confirmations));
                self.confirmations += 1;
                // A long trial cannot pass more than what was received.
                let arrived = received_per_s * (1.0 - RESOLUTION);
                let should_continue = self.confirmations < CONFIRMATIONS && arrived >= 1.0;
                self.next =
                    if should_continue { Next::Confirm(lower.min(arrived)) } else { Next::None };
            }
            Next::Found | Next::None => {}
        }
    }

    fn advance(&mut self) {
        let above = self.low * (1.0 + STEP_UP);
        let known = self.high - self.low <= self.high * RESOLUTION || self.trials >= TRIALS;
        self.next = match known {
            true if self.low >= 1.0 => Next::Confirm(self.low),
            true => Next::None,
            false if self.high < 2.0 => Next::None,
            false if self.low >= 1.0 && self.trials == 1 && self.high > above => Next::Try(above),
            // The middle of the ratio: a path may pass a thousandth of what is sent.
            false if self.low >= 1.0 => Next::Try((self.low * self.high).sqrt()),
            false => Next::Try(self.high / 2.0),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A path without loss up to a rate, a sender with a maximum rate, and how much more than the path's rate
    /// is received at overload.
    fn search(capacity: f64, fastest: f64, more: f64) -> (Option<f64>, u32) {
        let passes = |rate: f64| rate <= capacity;
        let mut search = Search::new(fastest, fastest.min(capacity * more), passes(fastest));
        let mut trials = 0;
        loop {
            trials += 1;
            match search.next() {
                Next::Try(rate) => {
                    let offered = rate.min(fastest);
                    search.record_result(passes(offered), offered, offered.min(capacity));
                }
                Next::Confirm(rate) if passes(rate) => {
                    search.record_result(true, rate, rate);
                    assert_eq!(search.next(), Next::Found);
                    return (Some(rate), trials);
                }
                Next::Confirm(rate) => search.record_result(false, rate, capacity),
                Next::Found | Next::None => return (None, trials),
            }
        }
    }

    proptest! {
        #[test]
        fn the_highest_rate_is_found_to_a_percent(capacity in 100.0f64..1e8, fastest in 100.0f64..1e8) {
            let (found, trials) = search(capacity, fastest, 1.0);
            let (found, best) = (found.unwrap(), capacity.min(fastest));
            prop_assert!(found <= best && found >= best * 0.98, "{} of {}", found, best);
            prop_assert!(trials <= 8, "{} trials", trials);
        }

        /// At overload a little more may be received than passes without loss, or much less.
        #[test]
        fn the_rate_received_may_mislead(
            capacity in 100.0f64..1e6, times in 1.0f64..1e3, more in 0.1f64..1.5,
        ) {
            let (found, trials) = search(capacity, capacity * times, more);
            prop_assert!(found.unwrap() >= capacity * 0.98, "{:?} of {}", found, capacity);
            prop_assert!(trials <= 14, "{} trials", trials);
        }

        /// Intermittent loss does not prolong it indefinitely.
        #[test]
        fn it_always_ends(results: Vec<bool>) {
            let mut search = Search::new(1e6, 5e5, false);
            let mut results = results.into_iter().cycle();
            for _ in 0..40 {
                match search.next() {
                    Next::Try(rate) | Next::Confirm(rate) => {
                        search.record_result(results.next().unwrap_or(false), rate, rate);
                    }
                    Next::Found | Next::None => return Ok(()),
                }
            }
            prop_assert!(false, "{:?}", search);
        }
    }

    #[test]
    fn if_everything_is_lost_nothing_is_found() {
        assert_eq!(search(0.0, 1e6, 1.0).0, None);
    }

    #[test]
    fn a_rate_with_loss_in_a_long_trial_is_lowered() {
        let mut search = Search::new(1000.0, 1000.0, true);
        assert_eq!(search.next(), Next::Confirm(1000.0));
        search.record_result(false, 1000.0, 999.0);
        assert_eq!(search.next(), Next::Confirm(970.0));
        // A shaper let its burst through in the short trials; the long trial shows its rate.
        search.record_result(false, 970.0, 500.0);
        assert_eq!(search.next(), Next::Confirm(495.0));
        search.record_result(true, 495.0, 495.0);
        assert_eq!(search.next(), Next::Found);
    }

    #[test]
    fn persistent_loss_lowers_the_rate_in_growing_steps() {
        let mut search = Search::new(1000.0, 1000.0, true);
        let mut rates = Vec::new();
        while let Next::Confirm(rate) = search.next() {
            rates.push(rate.round());
            search.record_result(false, rate, rate);
        }
        assert_eq!(rates, [1000.0, 970.0, 912.0, 802.0, 610.0, 317.0]);
        assert_eq!(search.next(), Next::None);
    }
}
