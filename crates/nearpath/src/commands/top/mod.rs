//! `nearpath top`: a host, live or recorded, in the terminal.
//!
//! Input: batches of the daemon's instruments, or a recording. Output: a screen, redrawn once an interval and at each key.

mod live;
mod of_recording;

use super::monitor::{Sources, interval};
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::recorded;
use crate::screen::{Input, Screen};
use crate::session::{Overhead, overhead};
use anyhow::Context;
use clap::Args;
use live::Live;
use nearpath_host::Root;
use nearpath_model::frame::Frame;
use nearpath_monitor::recording::{Cached, frame};
use nearpath_monitor::runner;
use nearpath_views::terminal::{Action, Palette, Status, View, draw};
use of_recording::Recorded;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Lengths of the time that figures are of.
const WINDOWS: [Duration; 3] =
    [Duration::from_secs(10), Duration::from_secs(60), Duration::from_secs(2)];
/// A signal is noticed within this time.
const SIGNAL: Duration = Duration::from_millis(250);

const AFTER_HELP: &str = "\
Shows where packets spend their time now, what late ones waited for, which CPUs process them, and
what is wrong. '?' lists the keys, 'q' quits. With DIR, it shows what 'nearpath record' has kept:
the arrow keys go back and forward in time. Nothing is changed.

EXAMPLES
  nearpath top                      this host
  nearpath top --interval 5s        redrawn every five seconds
  nearpath top /var/lib/nearpath/r  a recording, from its end
  nearpath top DIR --at 03:12       a recording at a time (UTC; without a day, of its last day)

Live, it requires root; without it only what needs no program in the kernel is shown.";

/// Arguments of `top`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Top {
    /// A recording, instead of this host
    #[arg(value_name = "DIR", conflicts_with_all = ["interval", "max_overhead", "source", "without_source", "btf"])]
    recording: Option<PathBuf>,
    /// Where to begin in the recording [default: its end]
    #[arg(long, value_name = "TIME", requires = "recording")]
    at: Option<String>,
    /// The host, if the recording has several
    #[arg(long, value_name = "NAME", requires = "recording")]
    hostname: Option<String>,
    /// Time between two readings, and two screens
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Limit of the instruments together, as a share of one CPU such as '5%', or 'none'
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = overhead)]
    max_overhead: Overhead,
    #[command(flatten)]
    sources: Sources,
}

/// Where frames come from.
trait Moments {
    /// What is to be seen.
    fn frame(&mut self, window: Duration) -> Frame;
    /// Goes elsewhere in time, or stands still; one step is as long as the window.
    fn go(&mut self, action: Action, window: Duration);
    /// How it is observed.
    fn status(&self) -> Status;
    /// Time between two frames that differ; `None` if only keys change them.
    fn interval(&self) -> Option<Duration>;
}

impl Top {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.recording {
            Some(folder) => self.of_recording(folder),
            None => self.live(),
        }
    }

    fn live(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let findings = self.interval.max(Duration::from_secs(10));
        let config = self.sources.config(self.interval, findings, self.max_overhead);
        let host = Root::live().text("/proc/sys/kernel/hostname").unwrap_or_default();
        let notices = Mutex::new(Vec::new());
        let say = |text: &str| live::lock(&notices).push(text.to_owned());
        let mut screen = Some(Screen::open().context("cannot show anything")?);
        let shown = runner::watch(&config, &say, |batches| {
            let mut live = Live::new(host.trim(), batches, &notices, self.interval);
            let shown = screen.as_mut().map(|screen| show(screen, &mut live, &interrupt));
            // Detaching takes the kernel a while, which nobody has to watch.
            screen = None;
            shown
        });
        drop(screen);
        let shown = shown.map_err(anyhow::Error::from)?;
        shown.unwrap_or(Ok(())).context("cannot show more")?;
        Ok(())
    }

    fn of_recording(&self, folder: &Path) -> Result<(), Failure> {
        let recording = recorded::open_host(folder, self.hostname.as_deref())?;
        let last = recording.times().map_or(0, |(_, last)| last);
        let at = self.at.as_deref().map(|text| recorded::moment(text, last));
        let at = at.transpose().map_err(Failure::Usage)?;
        let interrupt = Interrupt::listen()?;
        let mut recorded = Recorded::new(Cached::new(recording), at);
        let mut screen = Screen::open().context("cannot show anything")?;
        show(&mut screen, &mut recorded, &interrupt).context("cannot show more")?;
        Ok(())
    }
}

/// Shows until a key or a signal ends it.
fn show(
    screen: &mut Screen,
    moments: &mut dyn Moments,
    interrupt: &Interrupt,
) -> std::io::Result<()> {
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut view = View::new(Palette { colours });
    let mut windows = WINDOWS.iter().cycle();
    let mut window = windows.next().copied().unwrap_or_default();
    let mut frame = moments.frame(window);
    let mut drawn = Instant::now();
    loop {
        screen.draw(|screen| draw(screen, &frame, &view, &moments.status()))?;
        let action = loop {
            if interrupt.happened() {
                return Ok(());
            }
            // Keys do not put the next frame off.
            let left = moments
                .interval()
                .map(|interval| (drawn + interval).saturating_duration_since(Instant::now()));
            match screen.wait(left.unwrap_or(SIGNAL).min(SIGNAL))? {
                Input::Key(key) => break view.press(key, &frame),
                Input::Interrupt => return Ok(()),
                Input::Resized => break Action::None,
                Input::Nothing => {}
            }
            if moments.interval().is_some_and(|interval| drawn.elapsed() >= interval) {
                break Action::None;
            }
        };
        match action {
            Action::None => {}
            Action::Quit => return Ok(()),
            Action::Window => window = windows.next().copied().unwrap_or(window),
            other => moments.go(other, window),
        }
        let is_due = moments.interval().is_some_and(|interval| drawn.elapsed() >= interval);
        if is_due {
            drawn = Instant::now();
        }
        if is_due || action != Action::None {
            frame = moments.frame(window);
        }
    }
}
