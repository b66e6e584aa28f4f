//! `nearpath monitor`: the daemon.

use super::record::Keeping;
use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::{Overhead, overhead, span};
use crate::version;
use anyhow::Context;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use nearpath_monitor::export::{EXPORTERS, Exporter, Scraped};
use nearpath_monitor::runner::{self, Config, Outside, Source};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
Observes all the time and serves what it has seen as Prometheus metrics: latencies of packets as
native histograms, causes of late ones, locality, drops, interrupts, memory, TCP, drift of applied
changes, and findings. Everything together keeps within --max-overhead. Nothing is changed.

EXAMPLES
  nearpath monitor                                 http://127.0.0.1:9477/metrics
  nearpath monitor --once                          observe for one interval, print the metrics
  nearpath monitor --without-source budgets,tcp    all but these
  nearpath monitor --source facts,steering         only these: no program in the kernel
  nearpath monitor --record /var/lib/nearpath/r    and keep it in Parquet files
  nearpath monitor export prometheus-rules         alerts; see 'nearpath monitor export --help'
  curl -s localhost:9477/findings | jq '.findings[] | .title'

Requires root; without it only 'facts', 'workers' and findings from configuration are available.
docs/metrics.md lists the metrics, docs/monitor.md describes the daemon, docs/recordings.md what
it records.";

/// Arguments of `monitor`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub struct Monitor {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    arguments: Arguments,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Write rules, configurations and units for the programs around it
    Export(Export),
}

const AFTER_EXPORT_HELP: &str = "\
EXAMPLES
  nearpath monitor export prometheus-rules -o /etc/prometheus/nearpath.yml
  nearpath monitor export prometheus-rules --text-scrapes   for scrapers without native histograms
  nearpath monitor export scrape-config
  nearpath monitor export systemd -o /etc/systemd/system/nearpath-monitor.service";

/// Arguments of `monitor export`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_EXPORT_HELP)]
struct Export {
    /// What to write
    #[arg(value_name = "WHAT", value_parser = exporters())]
    what: &'static Exporter,
    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// For a scraper that gets text, with classic histograms
    #[arg(long)]
    text_scrapes: bool,
}

/// The names of what can be written, each with a description.
fn exporters() -> impl TypedValueParser<Value = &'static Exporter> {
    let value = |exporter: &Exporter| PossibleValue::new(exporter.name).help(exporter.writes);
    PossibleValuesParser::new(EXPORTERS.iter().map(value)).try_map(|name| {
        let found = EXPORTERS.iter().find(|exporter| exporter.name == name);
        found.ok_or_else(|| anyhow::anyhow!("unknown"))
    })
}

impl Export {
    fn run(&self) -> Result<(), Failure> {
        let scraped = if self.text_scrapes { Scraped::Text } else { Scraped::Native };
        let text = (self.what.text)(scraped);
        match &self.output {
            Some(path) => output::file(path, text.as_bytes()),
            None => output::text(&text),
        }
    }
}

#[derive(Debug, Args)]
struct Arguments {
    /// Where to listen; other addresses than loopback need TLS (--web-config) or --insecure
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9477")]
    listen: SocketAddr,
    /// Serve everybody who can reach the address, unencrypted
    #[arg(long)]
    insecure: bool,
    /// TLS and passwords: a web-config.yml as of other Prometheus exporters
    #[arg(long, value_name = "FILE")]
    web_config: Option<PathBuf>,
    /// Observe for one interval, print the metrics and exit
    #[arg(long, conflicts_with_all = ["listen", "insecure", "web_config"])]
    once: bool,
    #[command(flatten)]
    observing: Observing,
    #[command(flatten)]
    keeping: Keeping,
    /// Record to this folder as well; see 'nearpath record --help'
    #[arg(long, value_name = "DIR", conflicts_with = "once")]
    record: Option<PathBuf>,
}

/// What is observed, and at what cost.
#[derive(Debug, Args)]
pub struct Observing {
    /// Time between collections
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = interval)]
    interval: Duration,
    /// Time between diagnoses and readings of memory
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = interval)]
    findings_interval: Duration,
    /// Limit of everything together, as a share of one CPU such as '1%', or 'none'
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = overhead)]
    max_overhead: Overhead,
    #[command(flatten)]
    sources: Sources,
}

/// Which sources are observed.
#[derive(Debug, Args)]
pub struct Sources {
    /// Observe only these
    #[arg(long, value_name = "SOURCE", value_delimiter = ',', value_parser = sources())]
    source: Vec<String>,
    /// Observe all but these
    #[arg(long, value_name = "SOURCE", value_delimiter = ',', value_parser = sources())]
    #[arg(conflicts_with = "source", hide_possible_values = true)]
    without_source: Vec<String>,
    /// Read the kernel's BTF from this file, for kernels without /sys/kernel/btf/vmlinux
    #[arg(long, value_name = "FILE")]
    btf: Option<PathBuf>,
}

fn sources() -> PossibleValuesParser {
    PossibleValuesParser::new(Source::ALL.map(Source::name))
}

pub(super) fn interval(text: &str) -> Result<Duration, String> {
    match span(text) {
        Ok(time) if time < Duration::from_millis(100) => Err("less than 100ms".to_owned()),
        Ok(time) if time > Duration::from_secs(3600) => Err("more than an hour".to_owned()),
        other => other,
    }
}

impl Monitor {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.what {
            Some(What::Export(export)) => export.run(),
            None => self.arguments.run(),
        }
    }
}

impl Observing {
    /// The daemon's configuration: nothing is recorded, and it listens on loopback.
    pub(super) fn config(&self) -> Config {
        self.sources.config(self.interval, self.findings_interval, self.max_overhead)
    }
}

impl Sources {
    /// The configuration of a daemon that observes them, and only that.
    pub(super) fn config(&self, interval: Duration, findings: Duration, limit: Overhead) -> Config {
        let named = |names: &[String], source: Source| names.iter().any(|n| n == source.name());
        let is_on = |source: &Source| {
            let only = self.source.is_empty() || named(&self.source, *source);
            only && !named(&self.without_source, *source)
        };
        Config {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            insecure: false,
            web_config: None,
            interval,
            findings: findings.max(interval),
            limit: limit.0,
            sources: Source::ALL.into_iter().filter(is_on).collect(),
            record: None,
            report: None,
            btf_file: self.btf.clone(),
            version: version::NUMBER.to_owned(),
        }
    }
}

impl Arguments {
    fn config(&self) -> Config {
        Config {
            listen: self.listen,
            insecure: self.insecure,
            web_config: self.web_config.clone(),
            report: Some(super::report::page),
            record: self.record.as_ref().map(|folder| self.keeping.settings(folder)),
            ..self.observing.config()
        }
    }

    fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let outside = Outside { wait: &|time| interrupt.wait(time), say: &say };
        if self.once {
            let metrics = runner::once(&self.config(), outside).map_err(anyhow::Error::from)?;
            let metrics = std::str::from_utf8(&metrics).context("metrics")?;
            return output::text(metrics);
        }
        runner::run(&self.config(), outside).map_err(anyhow::Error::from)?;
        Ok(())
    }
}
