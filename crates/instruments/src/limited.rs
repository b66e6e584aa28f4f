//! A measurement within an overhead limit: the loop around an instrument and the [`Governor`].

use crate::governor::Governor;
use crate::instrument::PATIENCE;
use crate::{Instrument, InstrumentError};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Length of the cost window while the cost is unknown,
const FIRST_WINDOW: Duration = Duration::from_millis(20);
/// and later: this share of the observed time, within these bounds, at least once per second.
const WINDOW_PART: u32 = 5;
const SHORTEST_WINDOW: Duration = Duration::from_millis(8);
const LONGEST_WINDOW: Duration = Duration::from_millis(200);
const BETWEEN_WINDOWS: Duration = Duration::from_secs(1);
/// Maximum wait for many packets in flight: a reader that does not keep up has its packets wait as long as its buffer
/// lasts, and these are the ones to explain.
const LONGEST_PATIENCE: Duration = Duration::from_secs(1);

/// CPU time of the calling thread: attaching, detaching and reading are part of the overhead.
pub(crate) fn own_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Measures like [`Instrument::measure`], and pauses the instrument whenever it has cost more than `limit`, a
/// share of one CPU.
///
/// # Errors
/// As [`Instrument::start`] and [`Instrument::stop`].
pub fn measure<I: Instrument + ?Sized>(
    instrument: &mut I,
    limit: f64,
    duration: Duration,
    interval: Duration,
    should_continue: &dyn Fn(Duration) -> bool,
    per_interval: &mut dyn FnMut(&I::Measurement),
) -> Result<I::Measurement, InstrumentError> {
    instrument.start()?;
    let (began, own) = (Instant::now(), own_time());
    let seed = u64::try_from(own.as_nanos()).unwrap_or(1);
    let mut governor = Governor::new(limit, duration, seed);
    let mut reading = interval;
    let mut pausing = Duration::ZERO;
    let mut observes = true;
    instrument.begin_cost_window();
    let mut window: Option<Duration> = Some(FIRST_WINDOW);
    let mut next_window = BETWEEN_WINDOWS;
    loop {
        let now = began.elapsed();
        let due = duration.min(reading).saturating_sub(now);
        let wait = governor.look_again().min(due);
        let in_window = window.map_or(wait, |end| end.saturating_sub(now));
        let running = should_continue(wait.min(in_window));
        let now = began.elapsed();
        if !running || now >= duration {
            return instrument.stop();
        }
        if now >= reading {
            per_interval(&instrument.read()?);
            reading = (reading + interval).max(now);
        }
        if window.is_some_and(|end| now >= end) {
            instrument.end_cost_window();
            window = None;
            next_window = now + BETWEEN_WINDOWS;
        }
        let own = own_time().saturating_sub(own);
        instrument.charge(own);
        governor.account(now, instrument.spent() + own);
        if observes && governor.is_over() {
            instrument.end_cost_window();
            window = None;
            let before = own_time();
            let longest = LONGEST_PATIENCE.min(duration.saturating_sub(now));
            instrument.pause(PATIENCE, longest, should_continue);
            pausing = own_time().saturating_sub(before);
            governor.paused(2 * pausing);
            observes = false;
        } else if !observes && governor.pause_left().is_zero() {
            let before = own_time();
            instrument.resume();
            let switching = pausing + own_time().saturating_sub(before);
            governor.resumed(began.elapsed(), switching);
            observes = true;
        } else if !observes || window.is_some() || now < next_window {
            continue;
        }
        if observes {
            instrument.begin_cost_window();
            let part = governor.expected_slice() / WINDOW_PART;
            window = Some(began.elapsed() + part.clamp(SHORTEST_WINDOW, LONGEST_WINDOW));
        }
    }
}
