//! `nearpath report`: a diagnosis as one HTML file.

use super::diagnose::Looking;
use crate::failure::Failure;
use crate::output;
use crate::recorded::{RecordedPart, period};
use clap::Args;
use nearpath_host::Root;
use nearpath_model::{Diagnosis, Host, Plan, TrialReport};
use nearpath_monitor::recording::Replay;
use nearpath_views::html::{self, Report as Document};
use nearpath_views::svg::Interval;
use std::path::PathBuf;
use std::time::SystemTime;

const AFTER_HELP: &str = "\
Writes one file that needs nothing else: verdict, findings with the commands that fix them,
latency along the path, causes, the slowest packets over time, CPUs of packets, the host. It has
no script, and no request leaves it.

EXAMPLES
  nearpath report -o report.html                          this machine, ten seconds
  nearpath report -o report.html --for 1m --dev eth0
  nearpath report -o report.html --recording DIR --at 03:12   two minutes around a recorded moment
  nearpath report -o report.html --recording DIR --from '2026-11-24 03:00' --to '2026-11-24 04:00'
  nearpath report -o report.html --plan plan.json --trial trial.json   with what 'tune' says
  nearpath report -o report.html --snapshot host.tar.zst  another host, from its configuration only

Times are UTC. A time without a day is of the last day of the recording. Measuring requires root.";

/// Arguments of `report`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP, mut_arg("recording", Looking::excluded))]
pub struct Report {
    /// The HTML file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Also report this plan: the --json output of 'tune plan'
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Also report this trial: the --json output of 'tune try'; repeatable
    #[arg(long, value_name = "FILE")]
    trial: Vec<PathBuf>,
    #[command(flatten)]
    recorded: RecordedPart,
    #[command(flatten, next_help_heading = None::<&'static str>)]
    looking: Looking,
}

/// A plan, and trials.
type Tuning = (Option<Plan>, Vec<TrialReport>);

impl Report {
    pub(super) fn run(&self) -> Result<(), Failure> {
        // Before anything is measured: files that are wrong are reported at once.
        let tuning = self.tuning()?;
        match self.recorded.replay()? {
            Some(replay) => self.of_recording(replay, &tuning),
            None => self.of_host(&tuning),
        }
    }

    /// The plan and the trials in files.
    fn tuning(&self) -> Result<Tuning, Failure> {
        let plan = self.plan.as_deref().map(super::tune::plan_of).transpose()?;
        let mut trials = Vec::new();
        for file in &self.trial {
            trials.extend(super::tune::trials_of(file)?);
        }
        Ok((plan, trials))
    }

    fn of_host(&self, tuning: &Tuning) -> Result<(), Failure> {
        // Dropped only after the report is written: detaching takes the kernel a while.
        let root = Root::live();
        let mut instrument = None;
        let diagnosis = self.looking.diagnosis(&root, &mut instrument)?;
        let host = self.looking.host()?;
        let name = host.kernel.hostname.clone().unwrap_or_else(|| "host".to_owned());
        self.write(&name, &when(&diagnosis), Some(&host), &diagnosis, &[], tuning)
    }

    fn of_recording(&self, replay: Replay, tuning: &Tuning) -> Result<(), Failure> {
        let Replay { hosts, diagnosis, history, times, .. } = replay;
        let host = hosts.first().map_or("host", String::as_str);
        let interval = |(time_us, buckets): (i64, Vec<(u64, u64)>)| Interval {
            time_s: u64::try_from(time_us / 1_000_000).unwrap_or(0),
            buckets,
        };
        let history: Vec<(String, Vec<Interval>)> = history
            .into_iter()
            .map(|(path, columns)| (path.to_owned(), columns.into_iter().map(interval).collect()))
            .collect();
        let (from, to) = times.unwrap_or_default();
        self.write(
            host,
            &format!("recorded {}", period(from, to)),
            None,
            &diagnosis,
            &history,
            tuning,
        )
    }

    fn write(
        &self,
        host_name: &str,
        when: &str,
        host: Option<&Host>,
        diagnosis: &Diagnosis,
        history: &[(String, Vec<Interval>)],
        (plan, trials): &Tuning,
    ) -> Result<(), Failure> {
        let (plan, trials) = (plan.as_ref(), trials.as_slice());
        let document = Document { host_name, when, host, diagnosis, history, plan, trials };
        output::file(&self.output, html::report(&document).as_bytes())
    }
}

/// The page of a daemon's last diagnosis.
pub(super) fn page(host: &Host, diagnosis: &Diagnosis) -> String {
    let name = host.kernel.hostname.as_deref().unwrap_or("host");
    let when = when(diagnosis);
    let host = Some(host);
    html::report(&Document {
        host_name: name,
        when: &when,
        host,
        diagnosis,
        history: &[],
        plan: None,
        trials: &[],
    })
}

/// `at 2026-11-25T09:13:00Z, measured for 10.0s`.
fn when(diagnosis: &Diagnosis) -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now());
    let measured = diagnosis.measurement.as_ref().map(|m| m.duration_s).filter(|s| *s > 0.0);
    let measured = measured.map_or_else(String::new, |s| format!(", measured for {s:.1} s"));
    format!("at {now}{measured}")
}
