//! The largest value of the last minute.

use std::collections::VecDeque;
use std::time::Duration;

/// How long a value counts.
const MINUTE: Duration = Duration::from_secs(60);

/// Values with their times; each is smaller than the one before it, so that the first is the largest.
#[derive(Debug, Default)]
pub struct Window(VecDeque<(Duration, f64)>);

impl Window {
    /// Adds a value; returns the largest of the last minute.
    pub fn add(&mut self, now: Duration, value: f64) -> f64 {
        while self.0.front().is_some_and(|&(at, _)| now.saturating_sub(at) >= MINUTE) {
            self.0.pop_front();
        }
        while self.0.back().is_some_and(|&(_, earlier)| earlier <= value) {
            self.0.pop_back();
        }
        self.0.push_back((now, value));
        self.0.front().map_or(value, |&(_, most)| most)
    }

    /// Whether it has no value of the last minute.
    pub fn is_over(&self, now: Duration) -> bool {
        self.0.back().is_none_or(|&(at, _)| now.saturating_sub(at) >= 2 * MINUTE)
    }
}
