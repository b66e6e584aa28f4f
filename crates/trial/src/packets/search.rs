//! The highest rate without loss, looked for by halving (RFC 2544, 26.1). In goes what became of a trial,
//! out comes the rate of the next one. It knows nothing of packets.

/// The search ends when the rate is known to this share.
const RESOLUTION: f64 = 0.01;
/// More trials than this does no search take.
const TRIALS: u32 = 24;
/// How often a rate that was found is tried at length, each time at a lower one.
const CONFIRMATIONS: u32 = 6;
/// By how much a rate that lost at length is lowered at least; twice as much each further time. What a path
/// holds back (a shaper's burst, a queue) flatters short trials, and by how much nobody knows.
const STEP_DOWN: f64 = 0.03;
/// What arrives of too much is mostly all that the path takes. Where it passes, this much more is tried first,
/// not the middle between it and the far too much.
const STEP_UP: f64 = 0.05;

/// What is tried next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Next {
    /// A short trial at this rate.
    Try(f64),
    /// A long one, whose result counts if it passes.
    Confirm(f64),
    /// The rate that was confirmed last is the result.
    Found,
    /// At no rate there was so little loss.
    None,
}

/// The state of a search.
#[derive(Debug)]
pub(super) struct Search {
    /// The highest rate that passed, and the lowest that did not.
    low: f64,
    high: f64,
    next: Next,
    trials: u32,
    confirmations: u32,
}

impl Search {
    /// After a trial as fast as it goes, of which so many per second were sent and received.
    pub(super) fn new(sent_per_s: f64, received_per_s: f64, passed: bool) -> Self {
        let mut search = Self {
            low: if passed { sent_per_s } else { 0.0 },
            high: sent_per_s,
            // What has arrived is a good guess.
            next: Next::Try(received_per_s.min(sent_per_s)),
            trials: 0,
            confirmations: 0,
        };
        if passed || received_per_s <= 0.0 {
            search.advance();
        }
        search
    }

    /// What to do now.
    pub(super) fn next(&self) -> Next {
        self.next
    }

    /// What became of it: whether it passed, the rate that was really offered, and that of what arrived.
    pub(super) fn told(&mut self, passed: bool, offered_per_s: f64, received_per_s: f64) {
        match self.next {
            Next::Try(rate) => {
                self.trials += 1;
                // One that could not be offered passed at what was offered, and no more can be.
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
                // No more can go through at length than what did.
                let arrived = received_per_s * (1.0 - RESOLUTION);
                let goes_on = self.confirmations < CONFIRMATIONS && arrived >= 1.0;
                self.next = if goes_on { Next::Confirm(lower.min(arrived)) } else { Next::None };
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
            // In the middle of the ratio: a path may take a thousandth of what is sent.
            false if self.low >= 1.0 => Next::Try((self.low * self.high).sqrt()),
            false => Next::Try(self.high / 2.0),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A path that loses nothing up to a rate, a sender that goes no faster than another, and how much more
    /// than that rate arrives of too much.
    fn search(capacity: f64, fastest: f64, more: f64) -> (Option<f64>, u32) {
        let passes = |rate: f64| rate <= capacity;
        let mut search = Search::new(fastest, fastest.min(capacity * more), passes(fastest));
        let mut trials = 0;
        loop {
            trials += 1;
            match search.next() {
                Next::Try(rate) => {
                    let offered = rate.min(fastest);
                    search.told(passes(offered), offered, offered.min(capacity));
                }
                Next::Confirm(rate) if passes(rate) => {
                    search.told(true, rate, rate);
                    assert_eq!(search.next(), Next::Found);
                    return (Some(rate), trials);
                }
                Next::Confirm(rate) => search.told(false, rate, capacity),
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

        /// Of too much a little more may arrive than passes without loss, or much less.
        #[test]
        fn what_arrives_may_mislead(
            capacity in 100.0f64..1e6, times in 1.0f64..1e3, more in 0.1f64..1.5,
        ) {
            let (found, trials) = search(capacity, capacity * times, more);
            prop_assert!(found.unwrap() >= capacity * 0.98, "{:?} of {}", found, capacity);
            prop_assert!(trials <= 14, "{} trials", trials);
        }

        /// Loss that comes and goes does not keep it going.
        #[test]
        fn it_ends_whatever_comes(results: Vec<bool>) {
            let mut search = Search::new(1e6, 5e5, false);
            let mut results = results.into_iter().cycle();
            for _ in 0..40 {
                match search.next() {
                    Next::Try(rate) | Next::Confirm(rate) => {
                        search.told(results.next().unwrap_or(false), rate, rate);
                    }
                    Next::Found | Next::None => return Ok(()),
                }
            }
            prop_assert!(false, "{:?}", search);
        }
    }

    #[test]
    fn where_all_is_lost_nothing_is_found() {
        assert_eq!(search(0.0, 1e6, 1.0).0, None);
    }

    #[test]
    fn a_rate_that_loses_at_length_is_lowered() {
        let mut search = Search::new(1000.0, 1000.0, true);
        assert_eq!(search.next(), Next::Confirm(1000.0));
        search.told(false, 1000.0, 999.0);
        assert_eq!(search.next(), Next::Confirm(970.0));
        // A shaper let its burst through in the short trials; at length it is known what it lets through.
        search.told(false, 970.0, 500.0);
        assert_eq!(search.next(), Next::Confirm(495.0));
        search.told(true, 495.0, 495.0);
        assert_eq!(search.next(), Next::Found);
    }

    #[test]
    fn what_loses_a_little_at_any_rate_is_lowered_by_more_and_more() {
        let mut search = Search::new(1000.0, 1000.0, true);
        let mut rates = Vec::new();
        while let Next::Confirm(rate) = search.next() {
            rates.push(rate.round());
            search.told(false, rate, rate);
        }
        assert_eq!(rates, [1000.0, 970.0, 912.0, 802.0, 610.0, 317.0]);
        assert_eq!(search.next(), Next::None);
    }
}
