//! `nearpath measure accepts`: the CPU that receives a connection and the CPU that accepts it; or the CPU that
//! receives a datagram and the CPU that reads it.

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
  nearpath measure accepts --port 8181               which threads accept, and how far away
  nearpath measure accepts --comm nginx --each       one line per accept
  nearpath measure accepts --udp --port 53           which threads read datagrams, and how far away
  nearpath measure accepts --json --interval 1s      one JSON document per line, each second
  nearpath measure accepts --json | jq '.listeners[] | {local, same_cpu, accepts}'

Requires root and Linux 5.10 or later with BTF. Ctrl-C stops early and prints the results so far. To
fix connections that are accepted on a distant CPU, see 'nearpath steer'. docs/json.md describes the
JSON fields, docs/measuring.md the method.";

/// How often individual accepts are printed.
const EACH: Duration = Duration::from_millis(100);
/// Maximum length of a thread name, without the terminating null byte.
const COMM: usize = 15;

/// Arguments of `measure accepts`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct AcceptsArguments {
    /// Only accepts by this process
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Option<u32>,
    /// Only listeners (with --udp sockets) on this port
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Only threads with this name
    #[arg(long, value_name = "NAME", value_parser = comm)]
    comm: Option<String>,
    /// Measure datagrams read from UDP sockets instead of connections
    #[arg(long)]
    udp: bool,
    /// Also print one line per accept
    #[arg(long, conflicts_with = "json")]
    each: bool,
    /// Print one JSON document; with --interval one line per interval, then one for the total
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    time: Time,
}

/// Parses a thread name.
fn comm(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > COMM {
        return Err(format!("a thread name has 1 to {COMM} bytes, as in /proc/PID/comm"));
    }
    Ok(text.to_owned())
}

impl AcceptsArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let netns = self.namespace.inode()?.map(u32::try_from).transpose();
        let netns = netns.context("network namespace inode")?;
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
                written = print_accepts(now);
                written.is_ok()
            })?;
            written?;
            print_accepts(&measurement)?;
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
            say("stopped early by a signal");
        }
        match (self.json, lines) {
            (true, true) => Ok(()),
            (true, false) => output::json(&measurement),
            _ => output::text(&text::accepts(&measurement)),
        }
    }
}

/// Prints the accepts since the last call.
fn print_accepts(now: &AcceptMeasurement) -> Result<(), Failure> {
    let lines: String = now.events.iter().map(|event| format!("{event}\n")).collect();
    if lines.is_empty() { Ok(()) } else { output::text(&lines) }
}
