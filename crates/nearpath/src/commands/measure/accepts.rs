//! `nearpath measure accepts`: where connections are received, and where they are accepted; or where
//! datagrams are received, and where they are read.

use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::Time;
use crate::source::Namespace;
use anyhow::Context;
use clap::Args;
use nearpath_host::{Root, Wanted};
use nearpath_instruments::accepts::{Accepts, Options};
use nearpath_model::accepts::AcceptMeasurement;
use nearpath_views::{json, text};
use std::time::Duration;

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath measure accepts --port 8181               who accepts, and how far from the receiving CPU
  nearpath measure accepts --comm nginx --each       a line for each accept
  nearpath measure accepts --udp --port 53           who reads datagrams, and how far from there
  nearpath measure accepts --json --interval 1s      a JSON document a line, each second
  nearpath measure accepts --json | jq '.listeners[] | {local, same_cpu, accepts}'

It takes root and a kernel from 5.10 on with BTF. ^C ends it early with what was gathered. What can
be done about connections that are accepted elsewhere: 'nearpath steer'. The fields of the JSON are
described in docs/json.md, the method in docs/measuring.md.";

/// How often accepts are told one by one.
const EACH: Duration = Duration::from_millis(100);
/// Bytes of a thread's name, without its end.
const COMM: usize = 15;

/// Arguments of `measure accepts`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct AcceptsArguments {
    /// Only accepts of this process
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// Only from listeners, or sockets, on this port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Only of threads of this name
    #[arg(long, value_name = "NAME", value_parser = comm)]
    comm: Option<String>,
    /// Datagrams that are read from sockets of UDP, instead of connections
    #[arg(long)]
    udp: bool,
    /// Print a line for each accept as well
    #[arg(long, conflicts_with = "json")]
    each: bool,
    /// Print one JSON document; with --interval one a line, each interval and then the whole
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    time: Time,
}

/// A name that a thread can have.
fn comm(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > COMM {
        return Err(format!("a thread's name has 1 to {COMM} bytes, as in /proc/PID/comm"));
    }
    Ok(text.to_owned())
}

impl AcceptsArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let netns = self.namespace.inode()?.map(u32::try_from).transpose();
        let netns = netns.context("the number of the network namespace")?;
        let root = Root::live();
        let host =
            nearpath_host::read(&root, &Wanted::default()).context("cannot read the host")?;
        let options = Options {
            pid: self.pid,
            port: self.port,
            comm: self.comm.clone(),
            netns,
            datagrams: self.udp,
            each: self.each,
            btf_file: self.time.btf.clone(),
        };
        let mut accepts = Accepts::new(&root, &host.topology, options);
        let lines = self.json && self.time.interval.is_some();
        let measurement = if lines {
            self.time.print_lines(&mut accepts, &interrupt, |last, now| {
                output::json_line(&json::accepts_interval(last, now))
            })?
        } else if self.each {
            let mut written = Ok(());
            let time = Time { interval: Some(EACH), ..self.time.clone() };
            let measurement = time.watch(&mut accepts, &interrupt, |now| {
                written = told(now);
                written.is_ok()
            })?;
            written?;
            told(&measurement)?;
            measurement
        } else {
            let what = if self.udp { "datagrams" } else { "accepts" };
            let each = |now: &AcceptMeasurement| {
                let count = now.listeners.iter().map(|l| l.places.accepts).sum::<u64>();
                format!("{count} {what}")
            };
            self.time.measure(&mut accepts, &interrupt, each)?
        };
        if interrupt.happened() {
            say("ended early by a signal");
        }
        match (self.json, lines) {
            (true, true) => Ok(()),
            (true, false) => output::json(&measurement),
            _ => output::text(&text::accepts(&measurement)),
        }
    }
}

/// Prints the accepts since the last time.
fn told(now: &AcceptMeasurement) -> Result<(), Failure> {
    let lines: String = now.told.iter().map(|one| format!("{one}\n")).collect();
    if lines.is_empty() { Ok(()) } else { output::text(&lines) }
}
