//! The loop around an instrument that has no limit of its own: it observes as long as it is cheap, and in slices
//! otherwise; between slices it is detached.

use super::pace::Pace;
use super::stop::Stop;
use nearpath_instruments::{Instrument, InstrumentError};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Time in which the cost is measured, at the start of each interval.
const WINDOW: Duration = Duration::from_millis(100);
/// A refused instrument is tried again after this time.
const AGAIN: Duration = Duration::from_secs(300);
/// An interval ends early if its start costs this many times its share.
const BURST: f64 = 10.0;

/// CPU time of the calling thread.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (s, ns) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(s.unwrap_or(0), ns.unwrap_or(0))
}

/// How an instrument is read.
pub struct Plan<'a> {
    /// Time between two readings.
    pub interval: Duration,
    /// Share of a CPU that it may take.
    pub limit: Option<f64>,
    /// The end.
    pub stop: &'a Stop,
}

/// What is to follow a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next reading.
    Go,
    /// Another start, with what `make` makes now.
    Renew,
}

/// One reading, with the one before it of the same start.
pub type Take<'a, M> = dyn FnMut(&M, Option<&M>) -> Next + 'a;

/// Observes until the end. `make` creates the instrument, whenever it is to be attached; `cost` gets the CPU time of
/// its programs in seconds from a reading; `refused` the reason why it cannot observe.
pub fn observe<I: Instrument>(
    plan: &Plan<'_>,
    make: &mut dyn FnMut() -> I,
    cost: &dyn Fn(&I::Measurement) -> f64,
    take: &mut Take<'_, I::Measurement>,
    refused: &mut dyn FnMut(&InstrumentError),
) {
    while !plan.stop.is_set() {
        let wait = slice(plan, make(), cost, take).unwrap_or_else(|error| {
            refused(&error);
            AGAIN
        });
        plan.stop.wait(wait);
    }
}

/// Observes until the end, or until an interval has cost more than its share; returns how long to pause.
fn slice<I: Instrument>(
    plan: &Plan<'_>,
    mut instrument: I,
    cost: &dyn Fn(&I::Measurement) -> f64,
    take: &mut Take<'_, I::Measurement>,
) -> Result<Duration, InstrumentError> {
    let mut own = thread_time();
    instrument.start()?;
    let mut before: Option<I::Measurement> = None;
    let mut programs = 0.0;
    loop {
        let began = Instant::now();
        instrument.begin_cost_window();
        let mut stopped = plan.stop.wait(WINDOW.min(plan.interval));
        instrument.end_cost_window();
        let window = began.elapsed();
        let mut now = instrument.read()?;
        // A burst ends the interval early: a tenth of it would cost its share.
        let over = is_over(plan.limit.map(|limit| BURST * limit), cost(&now) - programs, window);
        if !over && !stopped {
            stopped = plan.stop.wait(plan.interval.saturating_sub(began.elapsed()));
            now = instrument.read()?;
        }
        // What loading took is part of the first interval.
        let reading = thread_time().saturating_sub(own);
        let spent = (cost(&now) - programs).max(0.0) + reading.as_secs_f64();
        let programs_alone = spent - if before.is_none() { reading.as_secs_f64() } else { 0.0 };
        if stopped || over || is_over(plan.limit, programs_alone, began.elapsed()) {
            take(&instrument.stop()?, before.as_ref());
            return Ok(pause(plan, spent, began));
        }
        if take(&now, before.as_ref()) == Next::Renew {
            instrument.stop()?;
            // As in the first interval, loading does not count.
            return Ok(pause(plan, programs_alone, began));
        }
        (own, programs, before) = (thread_time(), cost(&now), Some(now));
    }
}

/// How long to pause after an interval that cost so many seconds of CPU time.
fn pause(plan: &Plan<'_>, spent_s: f64, began: Instant) -> Duration {
    let spent = Duration::try_from_secs_f64(spent_s).unwrap_or_default();
    let pace = Pace::new(Duration::ZERO, plan.limit).after(spent);
    pace.saturating_sub(began.elapsed())
}

/// Whether so much CPU time in this time is more than a share of a CPU.
fn is_over(limit: Option<f64>, spent_s: f64, time: Duration) -> bool {
    limit.is_some_and(|limit| spent_s > limit * time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// Counts the seconds for which it observes, at a cost of `rate` CPU seconds per second.
    struct Costly {
        began: Option<Instant>,
        starts: Rc<Cell<u32>>,
        refuses: bool,
    }

    impl Instrument for Costly {
        type Measurement = f64;

        fn available(&self) -> Result<(), InstrumentError> {
            Ok(())
        }
        fn start(&mut self) -> Result<(), InstrumentError> {
            if self.refuses {
                return Err(InstrumentError::Unsupported("no".to_owned()));
            }
            self.starts.set(self.starts.get() + 1);
            self.began = Some(Instant::now());
            Ok(())
        }
        fn begin_cost_window(&mut self) {}
        fn end_cost_window(&mut self) {}
        fn read(&mut self) -> Result<f64, InstrumentError> {
            Ok(self.began.ok_or(InstrumentError::NotStarted)?.elapsed().as_secs_f64())
        }
        fn stop(&mut self) -> Result<f64, InstrumentError> {
            self.read()
        }
    }

    /// The seconds observed of about a second, and the number of starts.
    fn observed(rate: f64, limit: f64) -> (f64, u32) {
        let (stop, starts) = (Stop::new().unwrap(), Rc::new(Cell::new(0)));
        let plan = Plan { interval: Duration::from_millis(50), limit: Some(limit), stop: &stop };
        let (sum, ends) = (Cell::new(0.0), Instant::now() + Duration::from_secs(1));
        observe(
            &plan,
            &mut || Costly { began: None, starts: Rc::clone(&starts), refuses: false },
            &|seconds| rate * seconds,
            &mut |now, before| {
                sum.set(sum.get() + now - before.copied().unwrap_or(0.0));
                if Instant::now() >= ends {
                    stop.set();
                }
                Next::Go
            },
            &mut |error| panic!("{error}"),
        );
        (sum.get(), starts.get())
    }

    #[test]
    fn a_cheap_instrument_observes_all_the_time() {
        let (seconds, starts) = observed(0.0001, 0.9);
        assert_eq!(starts, 1);
        assert!(seconds > 0.9, "{seconds}");
    }

    #[test]
    fn an_expensive_one_observes_its_share_of_the_time() {
        // It may take a fifth of what it costs.
        let (seconds, starts) = observed(0.5, 0.1);
        assert!(starts >= 2, "{starts}");
        assert!((0.05..0.5).contains(&seconds), "{seconds}");
    }

    #[test]
    fn it_starts_again_when_it_is_to_be_renewed() {
        let (stop, starts) = (Stop::new().unwrap(), Rc::new(Cell::new(0)));
        let plan = Plan { interval: Duration::from_millis(10), limit: None, stop: &stop };
        let mut firsts = 0;
        observe(
            &plan,
            &mut || Costly { began: None, starts: Rc::clone(&starts), refuses: false },
            &|_| 0.0,
            &mut |_, before| {
                firsts += u32::from(before.is_none());
                if firsts == 3 {
                    stop.set();
                }
                if before.is_some() { Next::Renew } else { Next::Go }
            },
            &mut |error| panic!("{error}"),
        );
        assert_eq!((firsts, starts.get()), (3, 3));
    }

    #[test]
    fn one_that_is_refused_says_so_and_waits() {
        let stop = Stop::new().unwrap();
        let plan = Plan { interval: Duration::from_millis(50), limit: None, stop: &stop };
        let (starts, said) = (Rc::new(Cell::new(0)), Cell::new(0));
        observe(
            &plan,
            &mut || Costly { began: None, starts: Rc::clone(&starts), refuses: true },
            &|_| 0.0,
            &mut |_, _| panic!("it did not start"),
            &mut |_| {
                said.set(said.get() + 1);
                stop.set();
            },
        );
        assert_eq!((said.get(), starts.get()), (1, 0));
    }
}
