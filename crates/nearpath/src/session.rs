//! A measurement on this machine: for how long, and what is seen of it while it runs.
//!
//! In go the host and which packets are looked at, out comes the measurement. A signal ends it
//! early with what was gathered. That it has begun is said on standard error, so that who calls it in a
//! script knows when to send packets; a progress bar is there where that is a terminal.

use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use nearpath_instruments::stages::{ABOVE_MAX, Options, STAGES, Stages};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::{Detail, Host, Measurement};
use serde::Serialize;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Shorter than this says nothing; longer is a mistake.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Between looks at what was gathered, where no interval was asked for.
const INTERVAL: Duration = Duration::from_secs(1);
/// Slow packets that are shown, where no number is given.
const OUTLIERS: usize = 10;

/// How long is measured.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "How to measure")]
pub struct Time {
    /// How long to measure: 500ms, 10s, 2m
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub duration: Duration,
    /// How often to look at what was gathered, and at what observing costs; each second where it is not
    /// given
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub interval: Option<Duration>,
    /// The kernel's BTF from a file, for a kernel that has none of its own
    #[arg(long, value_name = "FILE")]
    pub btf: Option<PathBuf>,
}

impl Time {
    /// Between looks at what was gathered.
    fn interval(&self) -> Duration {
        self.interval.unwrap_or(INTERVAL)
    }

    /// Measures until the time is over or a signal comes; `each` sees what was gathered after each
    /// interval, and says it in a word for the progress bar. The instrument is the caller's to drop, once
    /// the result is told: each of its functions takes the kernel some 100 ms to let go of
    /// (`synchronize_rcu_tasks` in `ftrace_shutdown` of kernel/trace/ftrace.c).
    ///
    /// # Errors
    /// The instrument cannot run here.
    pub fn measure<I: Instrument>(
        &self,
        instrument: &mut I,
        interrupt: &Interrupt,
        each: impl FnMut(&I::Measurement) -> String,
    ) -> anyhow::Result<I::Measurement> {
        self.measure_part(instrument, interrupt, Duration::ZERO..self.duration, each)
    }

    /// The same for a part of the time; what is said of the progress is of the whole.
    ///
    /// # Errors
    /// The instrument cannot run here.
    pub fn measure_part<I: Instrument>(
        &self,
        instrument: &mut I,
        interrupt: &Interrupt,
        part: Range<Duration>,
        mut each: impl FnMut(&I::Measurement) -> String,
    ) -> anyhow::Result<I::Measurement> {
        let progress = Progress::new(self.duration);
        let began = Cell::new(None);
        let goes_on = |wait: Duration| {
            // Asked for the first time when the programs are attached.
            if began.get().is_none() {
                began.set(Some(Instant::now()));
                if part.start.is_zero() {
                    progress.begin(self.duration);
                }
            }
            !interrupt.wait(wait)
        };
        let mut each = |measurement: &I::Measurement| {
            let passed = began.get().map_or(Duration::ZERO, |began: Instant| began.elapsed());
            progress.show(part.start + passed, &each(measurement));
        };
        let length = part.end.saturating_sub(part.start);
        instrument.measure(length, self.interval(), &goes_on, &mut each).context("cannot measure")
    }
}

impl Time {
    /// The same for who prints what is gathered as it comes, and so without a progress bar; it ends,
    /// too, when `each` says no.
    ///
    /// # Errors
    /// The instrument cannot run here.
    pub fn watch<I: Instrument>(
        &self,
        instrument: &mut I,
        interrupt: &Interrupt,
        mut each: impl FnMut(&I::Measurement) -> bool,
    ) -> anyhow::Result<I::Measurement> {
        let (wanted, begun) = (Cell::new(true), Cell::new(false));
        let goes_on = |wait: Duration| {
            if !begun.replace(true) {
                say_begun(self.duration);
            }
            wanted.get() && !interrupt.wait(wait)
        };
        let mut each = |measurement: &I::Measurement| wanted.set(each(measurement));
        instrument
            .measure(self.duration, self.interval(), &goes_on, &mut each)
            .context("cannot measure")
    }

    /// The same in JSON, a document a line: `print` prints what came between two readings, and the last line
    /// is the whole. Who reads them may go away; then it ends.
    ///
    /// # Errors
    /// The instrument cannot run here, or nobody reads.
    pub fn print_lines<I>(
        &self,
        instrument: &mut I,
        interrupt: &Interrupt,
        print: impl Fn(&I::Measurement, &I::Measurement) -> Result<(), Failure>,
    ) -> Result<I::Measurement, Failure>
    where
        I: Instrument,
        I::Measurement: Clone + Default + Serialize,
    {
        let mut last = I::Measurement::default();
        let mut printed = Ok(());
        let whole = self.watch(instrument, interrupt, |now| {
            printed = print(&last, now);
            last = now.clone();
            printed.is_ok()
        })?;
        printed?;
        print(&last, &whole)?;
        output::json_line(&whole)?;
        Ok(whole)
    }
}

/// How the stages are measured.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "How to measure")]
pub struct Timing {
    #[command(flatten)]
    pub time: Time,
    /// How much of the path to observe: 'coarse' has the device, the stack, the socket and its reader, the
    /// queue and the driver; 'path' the main stages between them; 'full' all that this kernel has. Without
    /// it 'measure stages' takes 'coarse', and 'diagnose' what it needs
    #[arg(long, value_name = "HOW", value_enum)]
    detail: Option<How>,
    /// Stages to observe, and no others, by their names in 'measure stages --list-stages'
    #[arg(long, value_name = "STAGE", value_delimiter = ',', value_parser = stage_names())]
    #[arg(hide_possible_values = true, conflicts_with = "detail")]
    stages: Option<Vec<String>>,
    /// How much of one CPU observing may take: a share such as '2%', or 'none'. Beyond it packets are
    /// observed in slices, and the output says for how long they were
    #[arg(long, value_name = "SHARE", default_value = "2%", value_parser = overhead)]
    max_overhead: Overhead,
    /// Stages not to observe, by their names in 'measure stages --list-stages'. 'sock_send' watches
    /// every system call of the host and is the dearest where there are many
    #[arg(long, value_name = "STAGE", value_delimiter = ',', value_parser = stage_names())]
    #[arg(hide_possible_values = true)]
    without: Vec<String>,
    /// From which latency on a packet is slow and explained; without it the slowest 1 in 10,000 of
    /// each span that has had so many
    #[arg(long, value_name = "TIME", value_parser = latency)]
    slow: Option<Duration>,
    /// Count how many packets took longer than each of these times from end to end: up to three, 1ms,10ms. Without
    /// it that of --slow, else 100us, 1ms and 10ms
    #[arg(long, value_name = "TIME[,TIME]", value_parser = latencies)]
    above: Option<Latencies>,
    /// How many of the slowest packets to show individually, as timelines [default: 10]
    #[arg(long, value_name = "N")]
    outliers: Option<usize>,
    /// Do not explain slow packets: saves the history of what each CPU runs
    #[arg(long, conflicts_with_all = ["slow", "outliers"])]
    no_budgets: bool,
}

/// The share of one CPU that observing may take; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Overhead(Option<f64>);

/// A share on the command line.
fn overhead(text: &str) -> Result<Overhead, String> {
    if text == "none" {
        return Ok(Overhead(None));
    }
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    match percent {
        Some(percent) if (0.1..=100.0).contains(&percent) => Ok(Overhead(Some(percent / 100.0))),
        _ => Err("from 0.1% to 100%, or none".to_owned()),
    }
}

/// How much of the path is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum How {
    Coarse,
    Path,
    Full,
}

impl From<How> for Detail {
    fn from(how: How) -> Self {
        match how {
            How::Coarse => Self::Coarse,
            How::Path => Self::Path,
            How::Full => Self::Full,
        }
    }
}

/// A stage of both directions has one name.
fn stage_names() -> PossibleValuesParser {
    PossibleValuesParser::new(STAGES.iter().map(|stage| stage.name).collect::<BTreeSet<_>>())
}

/// Whether RPS is set on a queue, or is at work: queues of other namespaces are not seen, but what the CPUs count of
/// them is.
fn steers(host: &Host) -> bool {
    let mut queues = host.nics.iter().flat_map(|nic| &nic.rx_queues);
    queues.any(|queue| queue.rps_cpus.as_ref().is_none_or(|cpus| !cpus.is_empty()))
        || host.softnet.iter().any(|cpu| cpu.received_rps.is_some_and(|count| count > 0))
}

impl Timing {
    /// The instrument's options for these packets, with a detail where none is asked for.
    pub fn options(&self, filter: Filter, or: Detail) -> Options {
        let detail = self.detail.map_or(or, Detail::from);
        Options {
            filter,
            without: self.without.clone(),
            btf_file: self.time.btf.clone(),
            detail,
            limit: self.max_overhead.0,
            stages: self.stages.clone(),
            budgets: self.explains(detail),
            slow: self.slow,
            above: self
                .above
                .as_ref()
                .map_or_else(|| self.slow.into_iter().collect(), |a| a.0.clone()),
            outliers: self.outliers.unwrap_or(OUTLIERS),
            ..Options::default()
        }
    }

    /// Whether it was said what to observe; otherwise that can be found out.
    pub fn says_what(&self) -> bool {
        self.detail.is_some() || self.stages.is_some()
    }

    /// The options of a coarse look, with what is asked for. Where RPS chooses CPUs, the stages before it does are
    /// observed as well: else what a packet waits for the CPU that was chosen is in none of its spans.
    pub fn coarse(&self, host: &Host, filter: Filter) -> Options {
        let arrivals = !self.says_what() && steers(host);
        Options { arrivals, ..self.options(filter, Detail::Coarse) }
    }

    /// The options of a closer look at these stages, which explains slow packets, too.
    pub fn closer(&self, filter: Filter, stages: Vec<String>) -> Options {
        let budgets = !self.no_budgets;
        Options { stages: Some(stages), budgets, ..self.options(filter, Detail::Path) }
    }

    /// Whether slow packets are explained: if that is asked for, or the detail is not the cheapest. What
    /// each CPU runs is observed for it, which costs more than the stages of `coarse` do.
    fn explains(&self, detail: Detail) -> bool {
        let wanted = self.slow.is_some() || self.outliers.is_some();
        let detailed = self.stages.is_none() && detail > Detail::Coarse;
        (wanted || detailed) && !self.no_budgets
    }

    /// Measures until the time is over or a signal comes.
    ///
    /// # Errors
    /// The instrument cannot run here.
    pub fn measure(
        &self,
        stages: &mut Stages,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Measurement> {
        let each = |measurement: &Measurement| format!("{} packets", measurement.packets.started);
        self.time.measure(stages, interrupt, each)
    }
}

/// The bar on standard error; nothing where that is no terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Of what takes so long.
    pub fn new(duration: Duration) -> Self {
        let length = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let bar = ProgressBar::new(length);
        // The template is a constant: were it wrong, the default style would do.
        if let Ok(style) = ProgressStyle::with_template("measuring [{wide_bar}] {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message("loading the programs");
        Self { bar }
    }

    /// All is attached.
    fn begin(&self, duration: Duration) {
        if self.bar.is_hidden() {
            say_begun(duration);
        } else {
            self.bar.set_message("(^C ends it early)");
        }
    }

    /// So much has passed; `seen` says what was gathered.
    pub fn show(&self, passed: Duration, seen: &str) {
        self.bar.set_message(format!("{seen} (^C ends it early)"));
        self.bar.set_position(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Says that packets are seen from now on.
fn say_begun(duration: Duration) {
    say(&format!("measuring for {}; ^C ends it early", humantime::format_duration(duration)));
}

/// A time as people write it: `10s`, `500ms`, `1m`; a number alone is of seconds.
pub fn span(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|_| !text.contains(['e', 'E', 'n', 'N']));
    match seconds {
        Some(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        None => humantime::parse_duration(text).map_err(|error| error.to_string()),
    }
}

/// A time as people write it, within bounds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let time = span(text)?;
    if (SHORTEST..=LONGEST).contains(&time) {
        Ok(time)
    } else {
        Err("from 100ms to 1day".to_owned())
    }
}

/// A latency on the command line.
fn latency(text: &str) -> Result<Duration, String> {
    // With its unit: a bare number would be of seconds elsewhere, and of microseconds to some.
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (Duration::from_nanos(100)..=Duration::from_secs(30)).contains(&time) {
        Ok(time)
    } else {
        Err("from 100ns to 30s".to_owned())
    }
}

/// One or a few latencies.
#[derive(Debug, Clone)]
struct Latencies(Vec<Duration>);

fn latencies(text: &str) -> Result<Latencies, String> {
    let times: Vec<Duration> = text.split(',').map(latency).collect::<Result<_, _>>()?;
    if times.len() > ABOVE_MAX {
        return Err(format!("{ABOVE_MAX} times at the most"));
    }
    Ok(Latencies(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_latencies_may_be_given() {
        let ms = Duration::from_millis;
        assert_eq!(latencies("1ms,10ms").unwrap().0, [ms(1), ms(10)]);
        assert_eq!(latencies("1ms,2ms,3ms,4ms").unwrap_err(), "3 times at the most");
        assert!(latencies("1ms,").is_err() && latencies("").is_err());
    }

    #[test]
    fn latencies_are_read_and_bounded() {
        assert_eq!(latency("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(latency("250us"), Ok(Duration::from_micros(250)));
        for bad in ["", "0s", "1ns", "31s", "fast"] {
            assert!(latency(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn overheads_are_read_and_bounded() {
        assert_eq!(overhead("none"), Ok(Overhead(None)));
        assert_eq!(overhead("2%"), Ok(Overhead(Some(0.02))));
        assert_eq!(overhead("0.5%"), Ok(Overhead(Some(0.005))));
        for bad in ["", "2", "0%", "101%", "-1%", "NaN%", "inf%", "%"] {
            assert!(overhead(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_read_and_bounded() {
        for (text, ms) in [
            ("500ms", 500),
            ("10s", 10_000),
            ("2m", 120_000),
            ("1m 30s", 90_000),
            ("10", 10_000),
            ("0.5", 500),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)));
        }
        for bad in [
            "",
            "0",
            "-1",
            "nan",
            "inf",
            "1e3",
            "0s",
            "1ms",
            "2days",
            "-1s",
            "99999999999999999999s",
            "10 parsecs",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
