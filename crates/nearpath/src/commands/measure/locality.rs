//! `nearpath measure locality`: the CPU that allocates a packet's sk_buff and the CPU that frees it.

use crate::failure::{Failure, say};
use crate::filters::Filters;
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::{Time, duration};
use crate::source::Namespace;
use clap::{Args, ValueEnum};
use nearpath_host::Wanted;
use nearpath_instruments::locality::{Options, PacketLocality};
use nearpath_instruments::{GROUPS_MAX, Grouping, Sort};
use nearpath_model::Per;
use nearpath_model::locality::Locality;
use nearpath_views::{json, svg, text};
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath measure locality --for 30s                      one line per second, then the total
  nearpath measure locality --proto tcp --port 443 --interval 5s
  nearpath measure locality --netns blue --json | jq '.rx.same_cpu / .rx.packets'
  nearpath measure locality --json --interval 1s           one JSON document per line, each second
  nearpath measure locality --per process --top 5          which processes' packets change CPU
  nearpath measure locality --svg locality.svg             also as a heat map

Prints one line per interval: the share of packets (sk_buffs) that were allocated and freed on the
same CPU, and the packet rate. The final tables show the distance between the two CPUs, and which
CPUs they are.

Requires root. Ctrl-C stops early and prints the results so far. Nothing stays in the kernel
afterwards. docs/json.md describes the JSON fields, docs/measuring.md the method.";

/// Arguments of `measure locality`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct LocalityArguments {
    /// Print one JSON document; with --interval one line per interval, then one for the total
    #[arg(long)]
    json: bool,
    /// Also write a heat map of allocating and freeing CPUs to this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Also show results per queue, flow, process or cgroup: the queue that received or sends a packet, the
    /// process that reads or sends it
    #[arg(long, value_enum, value_name = "WHAT")]
    per: Option<What>,
    /// Number of groups to show, those with the most packets; the rest are summed in one
    #[arg(long, value_name = "N", default_value_t = 10, requires = "per")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(GROUPS_MAX)))]
    top: u32,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    namespace: Namespace,
    /// Duration of the measurement: 500ms, 10s, 2m
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = duration)]
    #[arg(help_heading = "Measurement")]
    duration: Duration,
    /// Length of an interval [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "Measurement")]
    interval: Option<Duration>,
    /// Read the kernel's BTF from this file, for kernels without /sys/kernel/btf/vmlinux
    #[arg(long, value_name = "FILE", help_heading = "Measurement")]
    btf: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    Queue,
    Flow,
    Process,
    Cgroup,
}

impl LocalityArguments {
    fn groups(&self) -> Option<Grouping> {
        let per = match self.per? {
            What::Queue => Per::Queue,
            What::Flow => Per::Flow,
            What::Process => Per::Process,
            What::Cgroup => Per::Cgroup,
        };
        let top = usize::try_from(self.top).unwrap_or(usize::MAX);
        Some(Grouping { per, top, sort: Sort::Packets })
    }

    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let host = self.namespace.host(&Wanted::default())?;
        let filter = self.filters.resolve(&host, self.namespace.inode()?)?;
        let btf_file = self.btf.clone();
        let options = Options { filter, groups: self.groups(), btf_file, empty: false };
        let mut instrument = PacketLocality::new(&host.topology, options);
        let lines = self.json && self.interval.is_some();
        let time = Time { duration: self.duration, interval: self.interval, btf: None };
        let measurement = if lines {
            time.print_lines(&mut instrument, &interrupt, |last, now| {
                output::json_line(&json::locality_interval(last, now))
            })?
        } else if self.json {
            let mut readings = Readings::default();
            time.measure(&mut instrument, &interrupt, |now| readings.line(now))?
        } else {
            in_lines(&time, &mut instrument, &interrupt)?
        };
        if interrupt.happened() {
            say("stopped early by a signal");
        }
        if let Some(path) = &self.svg {
            output::file(path, svg::locality(&measurement).as_bytes())?;
        }
        match (self.json, lines) {
            (true, true) => Ok(()),
            (true, false) => output::json(&measurement),
            _ => output::text(&format!("\n{}", text::locality(&measurement))),
        }
    }
}

/// Prints each line as it arrives. The measurement ends when the reader closes the pipe.
fn in_lines(
    time: &Time,
    instrument: &mut PacketLocality,
    interrupt: &Interrupt,
) -> Result<Locality, Failure> {
    let mut readings = Readings::default();
    let mut print = |now: &Locality| output::text(&(readings.line(now) + "\n"));
    let mut written = Ok(());
    let measurement = time.watch(instrument, interrupt, |now| {
        written = print(now);
        written.is_ok()
    })?;
    written?;
    print(&measurement)?;
    Ok(measurement)
}

/// Successive readings.
#[derive(Default)]
struct Readings {
    last: Locality,
}

impl Readings {
    /// The difference to the previous reading, as one line.
    fn line(&mut self, now: &Locality) -> String {
        let last = std::mem::replace(&mut self.last, now.clone());
        let (rx, tx) = (now.rx.since(&last.rx), now.tx.since(&last.tx));
        text::locality_rates(&rx, &tx, now.duration_s - last.duration_s)
    }
}
