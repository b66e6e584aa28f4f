//! `nearpath measure stages`: latency between adjacent stages of each packet's path.

use crate::failure::{Failure, say};
use crate::filters::{Filters, one_in};
use crate::grouping::Groups;
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::Timing;
use crate::source::Namespace;
use anyhow::Context;
use clap::Args;
use nearpath_host::{Root, Wanted};
use nearpath_instruments::Filter;
use nearpath_instruments::stages::{Options, Stages};
use nearpath_instruments::stages_into_guests::StagesIntoGuests;
use nearpath_instruments::vm::VmPackets;
use nearpath_model::Detail;
use nearpath_views::{json, svg, text};
use std::num::NonZeroU32;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath measure stages --for 30s                        all packets in all namespaces
  nearpath measure stages --dev eth0 --proto tcp --dport 443
  nearpath measure stages --host 10.0.0.0/8 --direction rx --sample 1/16
  nearpath measure stages --netns blue --json > blue.json
  nearpath measure stages --json --interval 1s             one JSON document per line, each second
  nearpath measure stages --detail full                    all stages, at five times the cost
  nearpath measure stages --detail path --without sock_send    without the system call hook
  nearpath measure stages --for 10m --duty 1/32            long measurement on a busy host
  nearpath measure stages --slow 1ms --outliers 20         why was each packet slow?
  nearpath measure stages --above 500us,5ms                how many packets took longer end to end?
  nearpath measure stages --per process --top 5            latency of the busiest processes
  nearpath measure stages --per flow --sort p99            the flows with the worst tail
  nearpath measure stages --svg spans.svg                  percentiles along the path as a chart
  nearpath measure stages --list-stages                    what can be observed here, and how

Requires root. Ctrl-C stops early and prints the results so far. Nothing stays in the kernel
afterwards. Percentiles with too few samples are shown as '-' (null in JSON). docs/json.md describes
the JSON fields, docs/measuring.md the method.";

/// Arguments of `measure stages`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct StagesArguments {
    /// List the stages and how each is observed on this kernel, without measuring
    #[arg(long)]
    list_stages: bool,
    /// Print one JSON document; with --interval one line per interval, then one for the total
    #[arg(long)]
    json: bool,
    /// Do not follow packets from the taps of virtual machines into their guests
    #[arg(long, help_heading = "Measurement")]
    no_guests: bool,
    /// Draw latencies along the path into an SVG file, besides
    #[arg(long, value_name = "FILE", conflicts_with = "list_stages")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    groups: Groups,
    #[command(flatten)]
    timing: Timing,
    /// Observe 1/N of each interval (at least 10ms) and detach from the tracepoints for the rest; reduces
    /// the overhead about N times
    #[arg(long, value_name = "1/N", value_parser = one_in, help_heading = "Measurement")]
    duty: Option<NonZeroU32>,
}

impl StagesArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        if self.list_stages { self.list() } else { self.measure() }
    }

    fn measure(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let host = self.namespace.host(&Wanted::default())?;
        let filter = self.filters.resolve(&host, self.namespace.inode()?)?;
        let root = Root::live();
        let into_guests = !self.no_guests && has_vhost(&root);
        let options = Options {
            groups: self.groups.wanted(),
            duty: self.duty,
            into_guests,
            ..self.timing.coarse(&host, filter)
        };
        let lines = self.json && self.timing.time.interval.is_some();
        let btf_file = self.timing.time.btf.clone();
        let guests = into_guests.then(|| VmPackets::new(&root, &host, btf_file));
        let stages = Stages::new(&host.topology, options);
        let mut stages = StagesIntoGuests::new(stages, guests);
        let measurement = if lines {
            self.timing.time.print_lines(&mut stages, &interrupt, |last, now| {
                output::json_line(&json::stages_interval(last, now))
            })?
        } else {
            self.timing.measure(&mut stages, &interrupt)?
        };
        if interrupt.happened() {
            say("stopped early by a signal");
        }
        if let Some(path) = &self.svg {
            output::file(path, svg::spans(&measurement).as_bytes())?;
            say(&format!("wrote {}", path.display()));
        }
        match (self.json, lines) {
            (true, true) => Ok(()),
            (true, false) => output::json(&measurement),
            _ => output::text(&text::measurement(&measurement, output::width())),
        }
    }

    fn list(&self) -> Result<(), Failure> {
        let host = self.namespace.host(&Wanted::default())?;
        let options = self.timing.options(Filter::default(), Detail::Full);
        let stages = Stages::new(&host.topology, options);
        let listing = stages.list().context("cannot list the stages")?;
        let btf_file = self.timing.time.btf.as_deref();
        let into_guests = VmPackets::list(btf_file).context("cannot list the stages")?;
        if self.json {
            output::json(&json::stages(&listing, &into_guests))
        } else {
            output::text(&text::stages(&listing, &into_guests))
        }
    }
}

/// Whether a virtual machine receives packets by vhost.
fn has_vhost(root: &Root) -> bool {
    nearpath_host::vms::read(root).vms.iter().any(|vm| !vm.vhost_workers.is_empty())
}
