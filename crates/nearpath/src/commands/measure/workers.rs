//! `nearpath measure workers`: what threads that poll do, and which tasks take their CPUs.

use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::{Time, duration};
use anyhow::Context;
use clap::Args;
use nearpath_host::{Root, Wanted};
use nearpath_instruments::workers::{Options, Workers};
use nearpath_model::Workers as Measurement;
use nearpath_views::text;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath measure workers                           which worker is disturbed most, and by whom
  nearpath measure workers --for 60s
  nearpath measure workers --json |
    jq '.cpus[] | {cpu, tasks: [.tasks[] | select(.is_worker | not)]}'
  nearpath measure workers --json | jq '.processes[].ports[] | {name, i: .interval.imissed_per_s}'

A CPU that polls is always 100% busy in top: BUSY and EMPTY-POLLS say how much of it is work,
where the process reports it. Tasks on the workers' CPUs require root. Nothing stays in the kernel
afterwards. docs/workers.md says what each number means, docs/json.md describes the JSON fields.";

/// Arguments of `measure workers`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct WorkersArguments {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Duration of the measurement: 500ms, 10s, 2m
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = duration)]
    #[arg(help_heading = "Measurement")]
    duration: Duration,
    /// Read the kernel's BTF from this file, for kernels without /sys/kernel/btf/vmlinux
    #[arg(long, value_name = "FILE", help_heading = "Measurement")]
    btf: Option<PathBuf>,
}

impl WorkersArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let root = Root::live();
        let host =
            nearpath_host::read(&root, &Wanted::default()).context("cannot read the host")?;
        let options = Options { btf_file: self.btf.clone() };
        let mut workers = Workers::new(&root, &host.topology, options);
        let time = Time { duration: self.duration, interval: Some(self.duration), btf: None };
        let each = |_: &Measurement| String::new();
        let measurement = time.measure(&mut workers, &interrupt, each)?;
        if interrupt.happened() {
            say("stopped early by a signal");
        }
        match self.json {
            true => output::json(&measurement),
            false => output::text(&text::worker_activity(&measurement)),
        }
    }
}
