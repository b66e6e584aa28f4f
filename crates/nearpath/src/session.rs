//! A measurement on this host: its options, its duration, and its progress.
//!
//! Input: the host and the packets to observe. Output: the measurement. A signal stops it early and keeps the
//! results so far. A line on standard error reports its start, so that scripts know when to send packets; on a
//! terminal there is a progress bar instead.

use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use nearpath_instruments::stages::{ABOVE_MAX, Options, SKB_TSTAMP, STAGES};
use nearpath_instruments::{Filter, Instrument};
use nearpath_model::{Detail, Host, Measurement};
use serde::Serialize;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Shorter measurements are useless; longer ones are probably a mistake.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// Default interval between readings.
const INTERVAL: Duration = Duration::from_secs(1);
/// Default number of slow packets shown.
const OUTLIERS: usize = 10;

/// Duration and interval of a measurement.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Measurement")]
pub struct Time {
    /// Duration of the measurement: 500ms, 10s, 2m
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub duration: Duration,
    /// Interval between readings of the results and the overhead [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub interval: Option<Duration>,
    /// Read the kernel's BTF from this file, for kernels without /sys/kernel/btf/vmlinux
    #[arg(long, value_name = "FILE")]
    pub btf: Option<PathBuf>,
}

impl Time {
    /// Interval between readings.
    fn interval(&self) -> Duration {
        self.interval.unwrap_or(INTERVAL)
    }

    /// Measures until the time is over or a signal arrives. `each` gets the results after each interval and
    /// returns a short text for the progress bar. The caller should print the result before it drops the
    /// instrument: the kernel takes some 100ms to detach each function (`synchronize_rcu_tasks` in
    /// `ftrace_shutdown` of kernel/trace/ftrace.c).
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

    /// The same for part of the time; progress is reported for the whole.
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
        let should_continue = |wait: Duration| {
            // First called when the programs are attached.
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
        instrument
            .measure(length, self.interval(), &should_continue, &mut each)
            .context("cannot measure")
    }
}

impl Time {
    /// The same without a progress bar, for callers that print results as they arrive. It also ends when `each`
    /// returns false.
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
        let should_continue = |wait: Duration| {
            if !begun.replace(true) {
                say_begun(self.duration);
            }
            wanted.get() && !interrupt.wait(wait)
        };
        let mut each = |measurement: &I::Measurement| wanted.set(each(measurement));
        instrument
            .measure(self.duration, self.interval(), &should_continue, &mut each)
            .context("cannot measure")
    }

    /// The same as JSON, one document per line: `print` prints the difference of two readings, and the last line
    /// is the total. It ends when the reader closes the pipe.
    ///
    /// # Errors
    /// The instrument cannot run here, or the output cannot be written.
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

/// How stages are measured.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Measurement")]
pub struct Timing {
    #[command(flatten)]
    pub time: Time,
    /// How much of the path to observe: 'coarse' is device, stack, socket, reader, queue and driver; 'path'
    /// adds the main stages in between; 'full' is everything that this kernel supports. Default: 'coarse' for
    /// 'measure stages', automatic for 'diagnose'
    #[arg(long, value_name = "HOW", value_enum)]
    detail: Option<How>,
    /// Observe only these stages, named as in 'measure stages --list-stages'
    #[arg(long, value_name = "STAGE", value_delimiter = ',', value_parser = stage_names())]
    #[arg(hide_possible_values = true, conflicts_with = "detail")]
    stages: Option<Vec<String>>,
    /// Overhead limit, as a share of one CPU such as '2%', or 'none'. Above it, packets are observed in time
    /// slices, and the output reports the observed time
    #[arg(long, value_name = "SHARE", default_value = "3%", value_parser = overhead)]
    max_overhead: Overhead,
    /// Stages not to observe, named as in 'measure stages --list-stages'. 'sock_send' hooks every system call
    /// of the host, and is the most expensive where there are many
    #[arg(long, value_name = "STAGE", value_delimiter = ',', value_parser = stage_names())]
    #[arg(hide_possible_values = true)]
    without: Vec<String>,
    /// Explain packets slower than this [default: the slowest 1 in 10,000 of each span, and of those above
    /// 1ms the slowest 20 per second]
    #[arg(long, value_name = "TIME", value_parser = latency)]
    slow: Option<Duration>,
    /// Count packets whose end-to-end time exceeds each of up to three limits, e.g. 1ms,10ms [default: that of
    /// --slow, else 100us,1ms,10ms]
    #[arg(long, value_name = "TIME[,TIME]", value_parser = latencies)]
    above: Option<Latencies>,
    /// Number of slowest packets to show as timelines [default: 10]
    #[arg(long, value_name = "N")]
    outliers: Option<usize>,
    /// Do not explain slow packets; saves recording what each CPU runs
    #[arg(long, conflicts_with_all = ["slow", "outliers"])]
    no_budgets: bool,
}

/// Overhead limit as a share of one CPU; `None` means unlimited.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overhead(pub Option<f64>);

/// Parses an overhead limit.
///
/// # Errors
/// It is not a share of 0.1% to 100%, or `none`.
pub fn overhead(text: &str) -> Result<Overhead, String> {
    if text == "none" {
        return Ok(Overhead(None));
    }
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    match percent {
        Some(percent) if (0.1..=100.0).contains(&percent) => Ok(Overhead(Some(percent / 100.0))),
        _ => Err("expected 0.1% to 100%, or none".to_owned()),
    }
}

/// How much of the path to observe.
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

/// Stages of both directions share a name.
fn stage_names() -> PossibleValuesParser {
    // What is watched is no choice.
    let names = STAGES.iter().map(|stage| stage.name).filter(|&name| name != SKB_TSTAMP);
    PossibleValuesParser::new(names.collect::<BTreeSet<_>>())
}

/// Whether RPS is set on a queue or active: queues of other namespaces are not visible, but the per-CPU counters
/// include them.
fn steers(host: &Host) -> bool {
    let mut queues = host.nics.iter().flat_map(|nic| &nic.rx_queues);
    queues.any(|queue| queue.rps_cpus.as_ref().is_none_or(|cpus| !cpus.is_empty()))
        || host.softnet.iter().any(|cpu| cpu.received_rps.is_some_and(|count| count > 0))
}

impl Timing {
    /// The instrument's options for these packets, with a default detail.
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
            watch: true,
            causes: !self.no_budgets,
            ..Options::default()
        }
    }

    /// The share of one CPU that the overhead may have; `None`: any.
    pub fn limit(&self) -> Option<f64> {
        self.max_overhead.0
    }

    /// Whether options select what to observe; otherwise it is chosen automatically.
    pub fn says_what(&self) -> bool {
        self.detail.is_some() || self.stages.is_some()
    }

    /// The options of a coarse measurement. Where RPS is active, the stages before it chooses a CPU are included:
    /// otherwise the wait for that CPU would be in none of the spans.
    pub fn coarse(&self, host: &Host, filter: Filter) -> Options {
        let arrivals = !self.says_what() && steers(host);
        Options { arrivals, ..self.options(filter, Detail::Coarse) }
    }

    /// The options of a closer measurement of these stages, which also explains slow packets.
    pub fn closer(&self, filter: Filter, stages: Vec<String>) -> Options {
        let budgets = !self.no_budgets;
        Options { stages: Some(stages), budgets, ..self.options(filter, Detail::Path) }
    }

    /// Whether slow packets are explained: if requested, or if the detail is not the cheapest. It requires recording
    /// what each CPU runs, which costs more than the stages of `coarse`.
    fn explains(&self, detail: Detail) -> bool {
        let wanted = self.slow.is_some() || self.outliers.is_some();
        let detailed = self.stages.is_none() && detail > Detail::Coarse;
        (wanted || detailed) && !self.no_budgets
    }

    /// Measures until the time is over or a signal arrives.
    ///
    /// # Errors
    /// The instrument cannot run here.
    pub fn measure(
        &self,
        stages: &mut impl Instrument<Measurement = Measurement>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Measurement> {
        let each = |measurement: &Measurement| format!("{} packets", measurement.packets.started);
        self.time.measure(stages, interrupt, each)
    }
}

/// The progress bar on standard error; absent if that is not a terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for this duration.
    pub fn new(duration: Duration) -> Self {
        let length = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let bar = ProgressBar::new(length);
        // The template is a constant; if it were wrong, the default style would do.
        if let Ok(style) = ProgressStyle::with_template("measuring [{wide_bar}] {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message("loading programs");
        Self { bar }
    }

    /// Whether nobody sees it.
    pub fn is_hidden(&self) -> bool {
        self.bar.is_hidden()
    }

    /// All programs are attached.
    fn begin(&self, duration: Duration) {
        if self.bar.is_hidden() {
            say_begun(duration);
        } else {
            self.bar.set_message("(Ctrl-C stops early)");
        }
    }

    /// Shows the time passed; `seen` describes the results so far.
    pub fn show(&self, passed: Duration, seen: &str) {
        self.bar.set_message(format!("{seen} (Ctrl-C stops early)"));
        self.bar.set_position(u64::try_from(passed.as_millis()).unwrap_or(u64::MAX));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Reports that packets are observed from now on.
fn say_begun(duration: Duration) {
    say(&format!("measuring for {}; Ctrl-C stops early", humantime::format_duration(duration)));
}

/// Parses a time: `10s`, `500ms`, `1m`; a bare number is in seconds.
pub fn span(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|_| !text.contains(['e', 'E', 'n', 'N']));
    match seconds {
        Some(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        None => humantime::parse_duration(text).map_err(|error| error.to_string()),
    }
}

/// Parses a time within bounds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let time = span(text)?;
    if (SHORTEST..=LONGEST).contains(&time) {
        Ok(time)
    } else {
        Err("expected 100ms to 1day".to_owned())
    }
}

/// Parses a latency.
pub fn latency(text: &str) -> Result<Duration, String> {
    // The unit is required: a bare number is in seconds elsewhere, but could be read as microseconds.
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (Duration::from_nanos(100)..=Duration::from_secs(30)).contains(&time) {
        Ok(time)
    } else {
        Err("expected 100ns to 30s".to_owned())
    }
}

/// Parses up to [`ABOVE_MAX`] latencies.
#[derive(Debug, Clone)]
struct Latencies(Vec<Duration>);

fn latencies(text: &str) -> Result<Latencies, String> {
    let times: Vec<Duration> = text.split(',').map(latency).collect::<Result<_, _>>()?;
    if times.len() > ABOVE_MAX {
        return Err(format!("at most {ABOVE_MAX} times"));
    }
    Ok(Latencies(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_three_latencies_are_accepted() {
        let ms = Duration::from_millis;
        assert_eq!(latencies("1ms,10ms").unwrap().0, [ms(1), ms(10)]);
        assert_eq!(latencies("1ms,2ms,3ms,4ms").unwrap_err(), "at most 3 times");
        assert!(latencies("1ms,").is_err() && latencies("").is_err());
    }

    #[test]
    fn latencies_are_parsed_and_bounded() {
        assert_eq!(latency("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(latency("250us"), Ok(Duration::from_micros(250)));
        for bad in ["", "0s", "1ns", "31s", "fast"] {
            assert!(latency(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn overheads_are_parsed_and_bounded() {
        assert_eq!(overhead("none"), Ok(Overhead(None)));
        assert_eq!(overhead("2%"), Ok(Overhead(Some(0.02))));
        assert_eq!(overhead("0.5%"), Ok(Overhead(Some(0.005))));
        for bad in ["", "2", "0%", "101%", "-1%", "NaN%", "inf%", "%"] {
            assert!(overhead(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_parsed_and_bounded() {
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
