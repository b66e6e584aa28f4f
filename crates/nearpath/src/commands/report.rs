//! `nearpath report`: a diagnosis as one HTML file.

use super::diagnose::Looking;
use crate::failure::{Failure, say};
use crate::output;
use anyhow::{Context, anyhow};
use clap::Args;
use nearpath_host::Root;
use nearpath_model::{Diagnosis, Host};
use nearpath_monitor::recording::{Recording, Replay, replay};
use nearpath_views::html::{self, Report as Document};
use nearpath_views::svg::Interval;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What surrounds a moment.
const AROUND: Duration = Duration::from_secs(120);
const DAY_US: i64 = 24 * 3600 * 1_000_000;

const AFTER_HELP: &str = "\
Writes one file that needs nothing else: verdict, findings with the commands that fix them,
latency along the path, causes, the slowest packets over time, CPUs of packets, the host. It has
no script, and no request leaves it.

EXAMPLES
  nearpath report -o report.html                          this machine, ten seconds
  nearpath report -o report.html --for 1m --dev eth0
  nearpath report -o report.html --recording DIR --at 03:12   two minutes around a recorded moment
  nearpath report -o report.html --recording DIR --from '2026-11-24 03:00' --to '2026-11-24 04:00'
  nearpath report -o report.html --snapshot host.tar.zst  another host, from its configuration only

Times are UTC. A time without a day is of the last day of the recording. Measuring requires root.";

/// Arguments of `report`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Report {
    /// The HTML file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Do not measure: report what 'nearpath record' has kept in this folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["root", "snapshot", "evidence"])]
    recording: Option<PathBuf>,
    /// A moment of the recording, with two minutes before and after it
    #[arg(long, value_name = "TIME", requires = "recording", conflicts_with_all = ["from", "to"])]
    at: Option<String>,
    /// Start of the part of the recording [default: its start]
    #[arg(long, value_name = "TIME", requires = "recording")]
    from: Option<String>,
    /// End of the part of the recording [default: its end]
    #[arg(long, value_name = "TIME", requires = "recording")]
    to: Option<String>,
    #[command(flatten)]
    looking: Looking,
}

impl Report {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.recording {
            Some(folder) => self.of_recording(folder),
            None => self.of_host(),
        }
    }

    fn of_host(&self) -> Result<(), Failure> {
        // Dropped only after the report is written: detaching takes the kernel a while.
        let root = Root::live();
        let mut instrument = None;
        let diagnosis = self.looking.diagnosis(&root, &mut instrument)?;
        let host = self.looking.host()?;
        let name = host.kernel.hostname.clone().unwrap_or_else(|| "host".to_owned());
        self.write(&name, &when(&diagnosis), Some(&host), &diagnosis, &[])
    }

    fn of_recording(&self, folder: &Path) -> Result<(), Failure> {
        let recording = Recording::open(folder)
            .with_context(|| format!("cannot read the recording {}", folder.display()))?;
        let (from, to) = self.times(&recording)?;
        let Replay { hosts, diagnosis, history, notes, times } = replay(&recording, from, to);
        notes.iter().for_each(|note| say(note));
        let Some((host, others)) = hosts.split_first() else {
            let message = format!("nothing is recorded {}", period(from, to));
            return Err(Failure::Error(anyhow!(message)));
        };
        if !others.is_empty() {
            say(&format!("the recording has other hosts too: {}", others.join(", ")));
        }
        let interval = |(time_us, buckets): (i64, Vec<(u64, u64)>)| Interval {
            time_s: u64::try_from(time_us / 1_000_000).unwrap_or(0),
            buckets,
        };
        let history: Vec<(String, Vec<Interval>)> = history
            .into_iter()
            .map(|(path, columns)| (path.to_owned(), columns.into_iter().map(interval).collect()))
            .collect();
        let (from, to) = times.unwrap_or((from, to));
        self.write(host, &format!("recorded {}", period(from, to)), None, &diagnosis, &history)
    }

    /// The part of the recording, in microseconds since 1970.
    fn times(&self, recording: &Recording) -> Result<(i64, i64), Failure> {
        let (first, last) = recording.times().unwrap_or((0, 0));
        let time = |text: &Option<String>| {
            text.as_deref().map(|text| moment(text, last).map_err(Failure::Usage)).transpose()
        };
        if let Some(at) = time(&self.at)? {
            let around = i64::try_from(AROUND.as_micros()).unwrap_or(0);
            return Ok((at - around, at + around));
        }
        // The last segment is not longer than an hour.
        let (from, to) = (time(&self.from)?.unwrap_or(first), time(&self.to)?);
        let to = to.unwrap_or(last + DAY_US / 24);
        if to < from {
            return Err(Failure::Usage("--to is before --from".to_owned()));
        }
        Ok((from, to))
    }

    fn write(
        &self,
        host_name: &str,
        when: &str,
        host: Option<&Host>,
        diagnosis: &Diagnosis,
        history: &[(String, Vec<Interval>)],
    ) -> Result<(), Failure> {
        let document = Document { host_name, when, host, diagnosis, history };
        output::file(&self.output, html::report(&document).as_bytes())
    }
}

/// The page of a daemon's last diagnosis.
pub(super) fn page(host: &Host, diagnosis: &Diagnosis) -> String {
    let name = host.kernel.hostname.as_deref().unwrap_or("host");
    let when = when(diagnosis);
    let host = Some(host);
    html::report(&Document { host_name: name, when: &when, host, diagnosis, history: &[] })
}

/// `at 2026-11-25T09:13:00Z, measured for 10.0s`.
fn when(diagnosis: &Diagnosis) -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now());
    let measured = diagnosis.measurement.as_ref().map(|m| m.duration_s).filter(|s| *s > 0.0);
    let measured = measured.map_or_else(String::new, |s| format!(", measured for {s:.1} s"));
    format!("at {now}{measured}")
}

fn period(from_us: i64, to_us: i64) -> String {
    let text = |us: i64| {
        let at = UNIX_EPOCH + Duration::from_micros(u64::try_from(us).unwrap_or(0));
        humantime::format_rfc3339_seconds(at).to_string()
    };
    format!("from {} to {}", text(from_us), text(to_us))
}

/// A time: `2026-11-25T03:12:00Z`, `2026-11-25 03:12`, or `03:12` of the day of another time.
pub(super) fn moment(text: &str, last_us: i64) -> Result<i64, String> {
    let day = || period(last_us, last_us).chars().skip(5).take(10).collect::<String>();
    let parts = text.trim_end_matches('Z').split_once(['T', ' ']);
    let (day, clock) = parts.map_or_else(|| (day(), text), |(day, clock)| (day.to_owned(), clock));
    let seconds = if clock.matches(':').count() == 1 { ":00" } else { "" };
    let time = humantime::parse_rfc3339_weak(&format!("{day}T{clock}{seconds}"));
    let time = time.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let us = time.and_then(|time| i64::try_from(time.as_micros()).ok());
    us.ok_or_else(|| format!("'{text}' is not a time: expected 03:12 or '2026-11-25 03:12'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_of_the_last_day_unless_they_have_one() {
        let noon = 1_795_608_000_000_000;
        assert_eq!(period(noon, noon), "from 2026-11-25T12:00:00Z to 2026-11-25T12:00:00Z");
        assert_eq!(moment("12:00", noon), Ok(noon));
        assert_eq!(moment("12:00:01", noon), Ok(noon + 1_000_000));
        assert_eq!(moment("2026-11-24 12:00", noon), Ok(noon - DAY_US));
        assert_eq!(moment("2026-11-24T12:00:00Z", noon), Ok(noon - DAY_US));
        for wrong in ["", "noon", "25:00", "2026-11-24", "12:00 2026"] {
            assert!(moment(wrong, noon).is_err(), "{wrong}");
        }
    }
}
