//! The time that series, readings and diagnoses are of.

use std::fmt;
use std::time::{Duration, Instant};

/// A clock that only goes forward, from the daemon's start. It stands still while the machine is suspended, and steps of the
/// system's time do not move it.
pub struct Clock(Box<dyn Fn() -> Duration + Send + Sync>);

impl Default for Clock {
    fn default() -> Self {
        let began = Instant::now();
        Self(Box::new(move || began.elapsed()))
    }
}

impl Clock {
    /// One that is as fast as its caller.
    pub fn of(time: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self(Box::new(time))
    }

    /// The time since the start.
    pub fn now(&self) -> Duration {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}
