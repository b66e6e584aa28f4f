//! This host: the last minutes of it, to which each interval adds.

use super::{Moments, frame};
use nearpath_model::frame::Frame;
use nearpath_monitor::recording::{Batch, History};
use nearpath_views::terminal::{Action, Mode, Status};
use rustix::time::{ClockId, clock_gettime};
use std::sync::mpsc::Receiver;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A notice is shown for this time.
const NOTICE: Duration = Duration::from_secs(15);
/// The share of a CPU is of this time, so that it can be read.
const SHARE: Duration = Duration::from_secs(5);

pub(super) struct Live<'a> {
    batches: &'a Receiver<Batch>,
    history: History,
    interval: Duration,
    /// Where it stands still.
    frozen_us: Option<i64>,
    notices: &'a Mutex<Vec<String>>,
    notice: Option<(String, Instant)>,
    cpu: (Instant, Duration),
    own_share: Option<f64>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Live<'a> {
    pub fn new(
        host: &str,
        batches: &'a Receiver<Batch>,
        notices: &'a Mutex<Vec<String>>,
        interval: Duration,
    ) -> Self {
        Self {
            batches,
            history: History::new(host),
            interval,
            frozen_us: None,
            notices,
            notice: None,
            cpu: (Instant::now(), process_time()),
            own_share: None,
        }
    }

    fn take_news(&mut self) {
        self.batches.try_iter().for_each(|batch| self.history.add(batch));
        let now = Instant::now();
        if let Some(text) = lock(self.notices).drain(..).next_back() {
            self.notice = Some((text, now));
        }
        self.notice.take_if(|(_, said)| now.duration_since(*said) > NOTICE);
        let (since, before) = self.cpu;
        if now.duration_since(since) >= SHARE {
            let cpu = process_time();
            let share = cpu.saturating_sub(before).as_secs_f64();
            self.own_share = Some(share / now.duration_since(since).as_secs_f64());
            self.cpu = (now, cpu);
        }
    }
}

impl Moments for Live<'_> {
    fn frame(&mut self, window: Duration) -> Frame {
        self.take_news();
        frame(&self.history, self.frozen_us.unwrap_or_else(now_us), window)
    }

    fn go(&mut self, action: Action, window: Duration) {
        let step = i64::try_from(window.as_micros()).unwrap_or(0);
        let now = now_us();
        let at = self.frozen_us.unwrap_or(now);
        let (first, last) = self.history.times().unwrap_or((now, now));
        let to = match action {
            Action::Freeze => self.frozen_us.is_none().then_some(now),
            Action::Back(steps) => Some(at.saturating_sub(step * i64::from(steps))),
            Action::Forward(steps) => self.frozen_us.map(|at| at + step * i64::from(steps)),
            Action::First => Some(first),
            Action::Last => None,
            Action::None | Action::Quit | Action::Window => self.frozen_us,
        };
        // Beyond the last moment is now.
        let to = to.filter(|&to| to <= last.max(at));
        self.frozen_us = to.map(|to| to.max(first.min(at)));
    }

    fn status(&self) -> Status {
        Status {
            mode: if self.frozen_us.is_some() { Mode::Frozen } else { Mode::Live },
            own_share: self.own_share,
            notice: self.notice.as_ref().map(|(text, _)| text.clone()),
        }
    }

    fn interval(&self) -> Option<Duration> {
        Some(self.interval)
    }
}

fn now_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(0)
}

/// CPU time of this process.
fn process_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let (s, ns) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(s.unwrap_or(0), ns.unwrap_or(0))
}
