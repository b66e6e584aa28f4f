//! `nearpath measure irqs`: interrupts, softirqs and polls by queue and by CPU.

use crate::failure::{Failure, say};
use crate::filters::interface;
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::{Time, duration};
use crate::source::Namespace;
use anyhow::Context;
use clap::{Args, ValueEnum};
use nearpath_host::{Root, Wanted};
use nearpath_instruments::irqs::{Irqs, Options};
use nearpath_model::irqs::{IrqMeasurement, PriorityField};
use nearpath_views::{json, text};
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath measure irqs --for 10s                    which CPU handles which queue's interrupts
  nearpath measure irqs --nic eth0 --interval 1s     one line per second, then the tables
  nearpath measure irqs --json --interval 1s         one JSON document per line, each second
  nearpath measure irqs --json | jq '.queues[] | {nic, queue, irq, per_cpu}'
  nearpath measure irqs --nic eth0 --by-priority   which CPU receives which VLAN priority
  nearpath measure irqs --json | jq '.nics[] | select(.rx_imbalance > 2)'

Interrupt times and NAPI polls require root; without it only the kernel's own counters are reported.
Ctrl-C stops early and prints the results so far. Nothing stays in the kernel afterwards.
docs/json.md describes the JSON fields, docs/measuring.md the method.";

/// Arguments of `measure irqs`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct IrqsArguments {
    /// Only the queues of this interface; per-CPU figures still cover everything
    #[arg(long, value_name = "NAME")]
    nic: Option<String>,
    /// Also count received packets by VLAN priority (or DSCP), queue and CPU
    #[arg(long, value_name = "FIELD", value_enum, num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "pcp")]
    by_priority: Option<By>,
    /// Print one JSON document; with --interval one line per interval, then one for the total
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
    /// Duration of the measurement: 500ms, 10s, 2m
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = duration)]
    #[arg(help_heading = "Measurement")]
    duration: Duration,
    /// Print one line per interval, and the totals at the end
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Measurement")]
    interval: Option<Duration>,
    /// Read the kernel's BTF from this file, for kernels without /sys/kernel/btf/vmlinux
    #[arg(long, value_name = "FILE", help_heading = "Measurement")]
    btf: Option<PathBuf>,
}

/// The priority of a packet.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum By {
    /// That of its VLAN tag
    Pcp,
    /// That of its IP header
    Dscp,
}

impl IrqsArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let measurement = self.namespace.read(|root| Ok(self.measure(root, &interrupt)))??;
        if interrupt.happened() {
            say("stopped early by a signal");
        }
        match (self.json, self.interval) {
            (true, Some(_)) => Ok(()),
            (true, None) => output::json(&measurement),
            _ => output::text(&text::interrupts(&measurement, output::width())),
        }
    }

    fn measure(&self, root: &Root, interrupt: &Interrupt) -> Result<IrqMeasurement, Failure> {
        let host = nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
        if let Some(name) = &self.nic {
            interface(&host, name)?;
        }
        let lines = self.json && self.interval.is_some();
        let priorities = self.by_priority.map(|by| match by {
            By::Pcp => PriorityField::Pcp,
            By::Dscp => PriorityField::Dscp,
        });
        let (nic, btf_file) = (self.nic.clone(), self.btf.clone());
        let options = Options { nic, packets_each: lines, priorities, btf_file };
        let mut irqs = Irqs::new(root, &host.topology, &host.nics, options);
        let time = Time { duration: self.duration, interval: self.interval, btf: None };
        match self.interval {
            Some(_) if lines => time.print_lines(&mut irqs, interrupt, |last, now| {
                output::json_line(&json::irqs_interval(last, now))
            }),
            Some(_) => in_lines(&time, &mut irqs, interrupt),
            None => {
                let each = |m: &IrqMeasurement| {
                    let count = m.cpus.iter().map(|cpu| cpu.interrupts).sum::<u64>();
                    format!("{count} interrupts")
                };
                Ok(time.measure(&mut irqs, interrupt, each)?)
            }
        }
    }
}

/// Prints a line after each interval. The measurement ends when the reader closes the pipe.
fn in_lines(
    time: &Time,
    irqs: &mut Irqs<'_>,
    interrupt: &Interrupt,
) -> Result<IrqMeasurement, Failure> {
    output::text(&text::interrupts_heading())?;
    let mut before = IrqMeasurement::default();
    let mut written = Ok(());
    let measurement = time.watch(irqs, interrupt, |now| {
        written = output::text(&text::interrupts_line(&before, now));
        before = now.clone();
        written.is_ok()
    })?;
    written?;
    output::text(&(text::interrupts_line(&before, &measurement) + "\n"))?;
    Ok(measurement)
}
