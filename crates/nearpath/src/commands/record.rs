//! `nearpath record`: the daemon without its server, to files.

use super::monitor::Observing;
use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::session::span;
use clap::Args;
use nearpath_model::units;
use nearpath_monitor::recording::Settings;
use nearpath_monitor::runner::{self, Outside};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
Observes what 'nearpath monitor' observes and keeps it in Parquet files: tables of counts by time,
for DuckDB, ClickHouse, pyarrow, Spark, and for nearpath itself. Whenever it is killed, what it
saw in the last interval at most is lost. Nothing is changed.

EXAMPLES
  nearpath record -o /var/lib/nearpath/recording       until Ctrl-C
  nearpath record -o rec --for 1h --interval 1s        an hour, in seconds
  nearpath record -o rec --keep-size 1GiB --keep 30d   at most so much
  duckdb -c \"select outcome, sum(packets) from 'rec/packets/*.parquet' group by 1\"

Requires root. docs/recordings.md lists the tables, with queries.";

/// Arguments of `record`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Record {
    /// The folder to record to, created if it does not exist
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Time after which to stop [default: at Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = span)]
    duration: Option<Duration>,
    #[command(flatten)]
    observing: Observing,
    #[command(flatten)]
    keeping: Keeping,
}

/// How much of a recording is kept.
#[derive(Debug, Args)]
pub struct Keeping {
    /// Time that a Parquet file covers, 1 hour at most
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = segment)]
    segment: Duration,
    /// Remove the oldest files when there are more bytes than this on the disk
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = units::parse_bytes)]
    keep_size: u64,
    /// Remove files that are older
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = span)]
    keep: Duration,
}

fn segment(text: &str) -> Result<Duration, String> {
    match span(text) {
        Ok(time) if time < Duration::from_millis(100) => Err("less than 100ms".to_owned()),
        Ok(time) if time > Duration::from_secs(3600) => Err("more than an hour".to_owned()),
        other => other,
    }
}

impl Keeping {
    /// For a folder.
    pub(super) fn settings(&self, folder: &Path) -> Settings {
        Settings {
            folder: folder.to_owned(),
            segment: self.segment,
            keep_bytes: self.keep_size,
            keep_age: self.keep,
        }
    }
}

impl Record {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let ends = self.duration.map(|duration| Instant::now() + duration);
        let wait = |time: Duration| {
            let Some(ends) = ends else { return interrupt.wait(time) };
            let left = ends.saturating_duration_since(Instant::now());
            interrupt.wait(time.min(left)) || Instant::now() >= ends
        };
        let outside = Outside { wait: &wait, say: &say };
        let mut config = self.observing.config();
        config.record = Some(self.keeping.settings(&self.output));
        runner::record(&config, outside).map_err(anyhow::Error::from)?;
        Ok(())
    }
}
