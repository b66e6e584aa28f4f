//! The common interface of all instruments.

use crate::background::Background;
use std::time::{Duration, Instant};

/// Maximum wait for a few packets in flight before the programs are detached.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);

/// A way to gather evidence from the running kernel.
pub trait Instrument {
    /// The result: plain data.
    type Measurement;

    /// Whether it can run here.
    ///
    /// # Errors
    /// Why it cannot: a missing privilege, or a missing kernel feature.
    fn available(&self) -> Result<(), InstrumentError>;

    /// Attaches to the kernel and starts counting.
    ///
    /// # Errors
    /// As [`Instrument::available`], or the kernel refused to load or attach.
    fn start(&mut self) -> Result<(), InstrumentError>;

    /// Starts a window in which the overhead is measured, until [`Instrument::end_cost_window`]: the kernel's
    /// run-time statistics are enabled meanwhile, which has a cost as well.
    fn begin_cost_window(&mut self);

    /// Ends the window.
    fn end_cost_window(&mut self);

    /// The result so far; cheap enough for every interval, and without side effects.
    ///
    /// # Errors
    /// It has not been started.
    fn read(&mut self) -> Result<Self::Measurement, InstrumentError>;

    /// Stops counting, and returns the result. Programs stay attached, without effect, until the instrument is
    /// dropped or started again: the caller need not wait for the kernel, which takes some 100ms to detach from
    /// each function (`synchronize_rcu_tasks` in `ftrace_shutdown` of kernel/trace/ftrace.c).
    ///
    /// # Errors
    /// It has not been started.
    fn stop(&mut self) -> Result<Self::Measurement, InstrumentError>;

    /// How long it observes at the start of each interval of this length; it is paused for the rest of the
    /// interval.
    fn slice(&self, interval: Duration) -> Duration {
        interval
    }

    /// Stops tracking new packets, waits for those in flight while `should_continue` returns true, at most for
    /// `patience`, or for `longest` while they are many, and then detaches until [`Instrument::resume`]. An
    /// instrument that observes continuously is never paused.
    fn pause(
        &mut self,
        _patience: Duration,
        _longest: Duration,
        _goes_on: &dyn Fn(Duration) -> bool,
    ) {
    }

    /// Attaches again, and continues counting.
    fn resume(&mut self) {}

    /// The limit on overhead as a share of a CPU, if set.
    fn limit(&self) -> Option<f64> {
        None
    }

    /// CPU time of the instrument's programs since the start, including the calls; estimated between cost
    /// windows. Cheap, as it is called many times per second.
    fn spent(&mut self) -> Duration {
        Duration::ZERO
    }

    /// What it has cost this process besides its programs since the start: the CPU time for attaching, detaching and
    /// reading within an overhead limit.
    fn charge(&mut self, _own: Duration) {}

    /// Measures until `duration` has passed or `should_continue` returns false, with a cost window of a fifth
    /// of the observed part of each interval (at most 200ms); `each` receives the result so far after each
    /// interval.
    ///
    /// # Errors
    /// As [`Instrument::start`] and [`Instrument::stop`].
    fn measure(
        &mut self,
        duration: Duration,
        interval: Duration,
        should_continue: &dyn Fn(Duration) -> bool,
        each: &mut dyn FnMut(&Self::Measurement),
    ) -> Result<Self::Measurement, InstrumentError> {
        let interval = interval.max(Duration::from_millis(10));
        let _background = Background::enter();
        if let Some(limit) = self.limit() {
            return crate::limited::measure(self, limit, duration, interval, should_continue, each);
        }
        let slice = self.slice(interval).min(interval);
        let window = (slice / 5).min(Duration::from_millis(200));
        self.start()?;
        let began = Instant::now();
        let goes_on_until = |end: Duration| should_continue(end.saturating_sub(began.elapsed()));
        let mut next = Duration::ZERO;
        loop {
            let end = (next + interval).min(duration);
            let pause = (next + slice).min(end);
            self.begin_cost_window();
            let mut running = goes_on_until((next + window).min(end));
            self.end_cost_window();
            running = running && goes_on_until(pause);
            if running && pause < end {
                let patience = slice.min(end - pause).min(PATIENCE);
                self.pause(patience, patience, should_continue);
                running = goes_on_until(end);
            }
            if !running || end >= duration {
                return self.stop();
            }
            next = end;
            each(&self.read()?);
            if pause < end {
                self.resume();
                // Attaching takes time, so neither slice nor pause is shorter than that.
                next = began.elapsed();
            }
        }
    }
}

/// Why an instrument cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InstrumentError {
    /// The process may not do it.
    #[error("{0} needs root (CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN)")]
    Privilege(String),
    /// The kernel lacks something.
    #[error("{0}")]
    Unsupported(String),
    /// The kernel refused a step.
    #[error("{step}: {reason}")]
    Refused {
        /// The operation.
        step: String,
        /// The error of the kernel.
        reason: String,
    },
    /// `read` or `stop` without `start`.
    #[error("the instrument has not been started")]
    NotStarted,
}
