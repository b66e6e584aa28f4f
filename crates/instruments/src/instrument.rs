//! What all instruments have in common.

use std::time::{Duration, Instant};

/// The longest wait for packets under way before the programs are detached.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);

/// A way to gather evidence from the running kernel.
pub trait Instrument {
    /// What it returns: plain data.
    type Measurement;

    /// Whether it can run here.
    ///
    /// # Errors
    /// Why it cannot: a missing privilege, something that the kernel lacks.
    fn available(&self) -> Result<(), InstrumentError>;

    /// Attaches to the kernel and begins to count.
    ///
    /// # Errors
    /// As [`Instrument::available`], or the kernel refused to load or attach.
    fn start(&mut self) -> Result<(), InstrumentError>;

    /// Begins to look at what observing costs, until [`Instrument::end_cost_window`]: the kernel's
    /// run-time statistics are on meanwhile, which cost something themselves.
    fn begin_cost_window(&mut self);

    /// Ends the window.
    fn end_cost_window(&mut self);

    /// What was gathered since the start; cheap enough for every interval, and changes nothing.
    ///
    /// # Errors
    /// It has not been started.
    fn read(&mut self) -> Result<Self::Measurement, InstrumentError>;

    /// Counts no longer, and returns what was gathered in all. What is attached stays so, to no effect,
    /// until the instrument is dropped or started again: the result need not wait for the kernel, which takes
    /// some 100 ms to let go of each function (`synchronize_rcu_tasks` in `ftrace_shutdown` of
    /// kernel/trace/ftrace.c).
    ///
    /// # Errors
    /// It has not been started.
    fn stop(&mut self) -> Result<Self::Measurement, InstrumentError>;

    /// For how long it observes at the begin of each interval of this length; for the rest of it the
    /// instrument is paused.
    fn slice(&self, interval: Duration) -> Duration {
        interval
    }

    /// Begins nothing any more, waits for what is under way as long as `goes_on` says, at most for
    /// `patience`, and then detaches until [`Instrument::resume`]. An instrument that observes all the time
    /// is never paused.
    fn pause(&mut self, _patience: Duration, _goes_on: &dyn Fn(Duration) -> bool) {}

    /// Attaches again, and counts on.
    fn resume(&mut self) {}

    /// The share of a CPU that observing may take, if it is limited.
    fn limit(&self) -> Option<f64> {
        None
    }

    /// CPU time that the instrument's programs have taken since it was started, calling them included; by
    /// estimate between cost windows. Cheap, as it is asked for many times a second.
    fn spent(&mut self) -> Duration {
        Duration::ZERO
    }

    /// Measures until `duration` has passed or `goes_on` says no, with a cost window of a fifth
    /// of what it observes of each interval (at most 200 ms); `each` sees what was gathered after each
    /// interval.
    ///
    /// # Errors
    /// As [`Instrument::start`] and [`Instrument::stop`].
    fn measure(
        &mut self,
        duration: Duration,
        interval: Duration,
        goes_on: &dyn Fn(Duration) -> bool,
        each: &mut dyn FnMut(&Self::Measurement),
    ) -> Result<Self::Measurement, InstrumentError> {
        let interval = interval.max(Duration::from_millis(10));
        if let Some(limit) = self.limit() {
            return crate::limited::measure(self, limit, duration, interval, goes_on, each);
        }
        let slice = self.slice(interval).min(interval);
        let window = (slice / 5).min(Duration::from_millis(200));
        self.start()?;
        let began = Instant::now();
        let goes_on_until = |end: Duration| goes_on(end.saturating_sub(began.elapsed()));
        let mut next = Duration::ZERO;
        loop {
            let end = (next + interval).min(duration);
            let pause = (next + slice).min(end);
            self.begin_cost_window();
            let mut running = goes_on_until((next + window).min(end));
            self.end_cost_window();
            running = running && goes_on_until(pause);
            if running && pause < end {
                self.pause(slice.min(end - pause).min(PATIENCE), goes_on);
                running = goes_on_until(end);
            }
            if !running || end >= duration {
                return self.stop();
            }
            next = end;
            each(&self.read()?);
            if pause < end {
                self.resume();
                // Attaching takes its time, for which neither slice nor pause is shorter.
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
        /// What was tried.
        step: String,
        /// What the kernel said.
        reason: String,
    },
    /// `read` or `stop` without `start`.
    #[error("the instrument has not been started")]
    NotStarted,
}
