//! A recording: a moment of it, that keys move.

use super::{Moments, frame};
use nearpath_model::frame::Frame;
use nearpath_monitor::recording::{Cached, Source, Table};
use nearpath_views::terminal::{Action, Mode, Status};
use std::time::Duration;

/// While it plays, a step each time.
const PLAY: Duration = Duration::from_secs(1);
/// The last segment is not longer than an hour.
const HOUR_US: i64 = 3600 * 1_000_000;
/// Tables of which one at least has rows in each interval.
const ALWAYS: [Table; 3] = [Table::Cost, Table::Softnet, Table::Packets];

pub(super) struct Recorded {
    recording: Cached,
    at_us: i64,
    first_us: i64,
    last_us: i64,
    playing: bool,
}

impl Recorded {
    /// At a time, or at its end.
    pub fn new(recording: Cached, at_us: Option<i64>) -> Self {
        let (first, last) = recording.recording().times().unwrap_or((0, 0));
        let mut recorded =
            Self { recording, at_us: first, first_us: first, last_us: last, playing: false };
        recorded.last_us = recorded.last(last, last.saturating_add(HOUR_US)).unwrap_or(last);
        recorded.at_us = at_us.unwrap_or(recorded.last_us).clamp(first, recorded.last_us);
        recorded
    }

    fn times(&self, from_us: i64, to_us: i64) -> impl Iterator<Item = i64> {
        ALWAYS.into_iter().flat_map(move |table| {
            let rows = self.recording.rows(table, from_us, to_us).rows;
            rows.into_iter().map(|row| row.time_us)
        })
    }

    /// The last moment between two that was recorded.
    fn last(&self, from_us: i64, to_us: i64) -> Option<i64> {
        self.times(from_us, to_us).max()
    }

    /// Later by a time, beyond what was not recorded.
    fn forward(&self, by_us: i64) -> i64 {
        let to = self.at_us.saturating_add(by_us);
        if to >= self.last_us || self.last(self.at_us + 1, to).is_some() {
            return to;
        }
        let next = self.recording.recording().next_after(to).unwrap_or(self.last_us);
        next.saturating_add(by_us)
    }

    /// Earlier by a time, beyond what was not recorded.
    fn back(&self, by_us: i64) -> i64 {
        let to = self.at_us.saturating_sub(by_us);
        if to <= self.first_us || self.last(to.saturating_sub(by_us), to).is_some() {
            return to;
        }
        let segment = self.recording.recording().last_before(to).unwrap_or(self.first_us);
        self.last(segment, to).unwrap_or(segment)
    }
}

impl Moments for Recorded {
    fn frame(&mut self, window: Duration) -> Frame {
        if self.playing {
            self.go(Action::Forward(1), PLAY);
        }
        frame(&self.recording, self.at_us, window)
    }

    fn go(&mut self, action: Action, window: Duration) {
        let step = i64::try_from(window.as_micros()).unwrap_or(0);
        let to = match action {
            Action::Freeze => {
                self.playing = !self.playing;
                self.at_us
            }
            Action::Back(steps) => self.back(step.saturating_mul(steps.into())),
            Action::Forward(steps) => self.forward(step.saturating_mul(steps.into())),
            Action::First => self.first_us.saturating_add(step),
            Action::Last => self.last_us,
            Action::None | Action::Quit | Action::Window => self.at_us,
        };
        self.at_us = to.clamp(self.first_us, self.last_us);
        self.playing &= self.at_us < self.last_us;
    }

    fn status(&self) -> Status {
        let mode = Mode::Recorded { playing: self.playing };
        Status { mode, own_share: None, notice: None }
    }

    fn interval(&self) -> Option<Duration> {
        self.playing.then_some(PLAY)
    }
}
