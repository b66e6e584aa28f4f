//! A part of a recording, in place of the running host. Input: the options `--recording`, `--at`, `--from`, `--to`. Output:
//! the recording and the times.

use crate::failure::{Failure, say};
use anyhow::{Context, anyhow, bail};
use clap::Args;
use nearpath_monitor::recording::{Recording, Replay, replay};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// What surrounds a moment.
const AROUND_US: i64 = 120 * 1_000_000;
/// The last segment is not longer.
const HOUR_US: i64 = 3600 * 1_000_000;

/// Hosts that a message lists.
const LISTED_MAX: usize = 20;

/// Options of commands that read a part of a recording.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Recording")]
pub struct RecordedPart {
    /// Do not measure: use what 'nearpath record' has kept in this folder
    #[arg(long, value_name = "DIR")]
    recording: Option<PathBuf>,
    /// A moment of the recording (UTC), with two minutes before and after it
    #[arg(long, value_name = "TIME", requires = "recording", conflicts_with_all = ["from", "to"])]
    at: Option<String>,
    /// Start of the part of the recording [default: its start]
    #[arg(long, value_name = "TIME", requires = "recording")]
    from: Option<String>,
    /// End of the part of the recording [default: its end]
    #[arg(long, value_name = "TIME", requires = "recording")]
    to: Option<String>,
    /// The host, if the recording has several
    #[arg(long, value_name = "NAME", requires = "recording")]
    hostname: Option<String>,
}

/// Times in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The start.
    pub from_us: i64,
    /// The moment that pictures are of.
    pub at_us: i64,
    /// The end.
    pub to_us: i64,
}

impl RecordedPart {
    /// The recording and the part of it; `None` if none is given.
    ///
    /// # Errors
    /// It cannot be read, or the times are wrong.
    pub fn open(&self) -> Result<Option<(Recording, Times)>, Failure> {
        let Some(folder) = &self.recording else { return Ok(None) };
        let recording = open_host(folder, self.hostname.as_deref())?;
        let times = self.times(&recording)?;
        Ok(Some((recording, times)))
    }

    /// What was measured and found then; `None` if no recording is given.
    ///
    /// # Errors
    /// It cannot be read, the times are wrong, or nothing is recorded then.
    pub fn replay(&self) -> Result<Option<Replay>, Failure> {
        let Some((recording, Times { from_us, to_us, .. })) = self.open()? else { return Ok(None) };
        let replay = replay(&recording, from_us, to_us);
        report(&replay.notes, &replay.hosts);
        if replay.hosts.is_empty() {
            return Err(nothing(from_us, to_us).into());
        }
        Ok(Some(replay))
    }

    fn times(&self, recording: &Recording) -> Result<Times, Failure> {
        let (first, last) = recording.times().unwrap_or((0, 0));
        let time = |text: &Option<String>| {
            text.as_deref().map(|text| moment(text, last).map_err(Failure::Usage)).transpose()
        };
        if let Some(at) = time(&self.at)? {
            return Ok(around(at));
        }
        let (from_us, to) = (time(&self.from)?.unwrap_or(first), time(&self.to)?);
        let to_us = to.unwrap_or(last.saturating_add(HOUR_US));
        if to_us < from_us {
            return Err(Failure::Usage("--to is before --from".to_owned()));
        }
        Ok(Times { from_us, at_us: to_us, to_us })
    }
}

/// Opens a recording.
///
/// # Errors
/// It is none, or cannot be read.
pub fn open(folder: &Path) -> anyhow::Result<Recording> {
    Recording::open(folder)
        .with_context(|| format!("cannot read the recording {}", folder.display()))
}

/// Opens a recording of one host: of the one with a name, or of the only one.
///
/// # Errors
/// It cannot be read, has no such host, or has several and no name is given.
pub fn open_host(folder: &Path, host: Option<&str>) -> anyhow::Result<Recording> {
    let recording = open(folder)?;
    let (hosts, folder) = (recording.hosts(), folder.display());
    match host {
        Some(host) if hosts.iter().any(|have| have == host) => Ok(recording.of_host(host)),
        Some(host) => bail!("{folder} has no host '{host}', but {} (--hostname)", listed(&hosts)),
        None if hosts.len() > 1 => {
            let (count, hosts) = (hosts.len(), listed(&hosts));
            bail!("{folder} has {count} hosts: {hosts}; choose one with --hostname")
        }
        None => Ok(recording),
    }
}

/// Names of hosts for a message.
fn listed(hosts: &[String]) -> String {
    match hosts {
        [] => "none that can be read".to_owned(),
        [first @ .., _] if first.len() >= LISTED_MAX => {
            format!("{}, and {} more", hosts[..LISTED_MAX].join(", "), hosts.len() - LISTED_MAX)
        }
        hosts => hosts.join(", "),
    }
}

/// A moment of a recording, with two minutes before and after it; without a moment, around its end.
///
/// # Errors
/// The text is no time.
pub fn moment_of(recording: &Recording, at: Option<&str>) -> Result<Times, String> {
    let last = recording.times().map_or(0, |(_, last)| last);
    match at {
        Some(text) => Ok(around(moment(text, last)?)),
        // The last segment, which begins then.
        None => {
            Ok(Times { from_us: last.saturating_sub(AROUND_US), at_us: i64::MAX, to_us: i64::MAX })
        }
    }
}

fn around(at_us: i64) -> Times {
    Times {
        from_us: at_us.saturating_sub(AROUND_US),
        at_us,
        to_us: at_us.saturating_add(AROUND_US),
    }
}

/// Reports what could not be read, and hosts that are left out.
pub fn report(notes: &[String], hosts: &[String]) {
    notes.iter().for_each(|note| say(note));
    if let Some((host, others @ [_, ..])) = hosts.split_first() {
        say(&format!("this is {host}; the recording has other hosts too: {}", others.join(", ")));
    }
}

/// Why there is no answer.
pub fn nothing(from_us: i64, to_us: i64) -> anyhow::Error {
    anyhow!("nothing is recorded {}", period(from_us, to_us))
}

/// `from 2026-11-25T03:10:00Z to 2026-11-25T03:14:00Z`.
pub fn period(from_us: i64, to_us: i64) -> String {
    let text = |us: i64| {
        // The last time that has a text.
        let us = u64::try_from(us).unwrap_or(0).min(253_402_300_799_000_000);
        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_micros(us)).to_string()
    };
    format!("from {} to {}", text(from_us), text(to_us))
}

/// A time: `2026-11-25T03:12:00Z`, `2026-11-25 03:12`, or `03:12` of the day of another time.
///
/// # Errors
/// It is none.
pub fn moment(text: &str, last_us: i64) -> Result<i64, String> {
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

    const DAY_US: i64 = 24 * HOUR_US;

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
        assert!(period(i64::MIN, i64::MAX).ends_with("to 9999-12-31T23:59:59Z"));
    }
}
