//! `nearpath measure locality`: on which CPU packets are allocated and on which they are let go of.

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
  nearpath measure locality --for 30s                      a line each second, then the whole
  nearpath measure locality --proto tcp --port 443 --interval 5s
  nearpath measure locality --netns blue --json | jq '.rx.same_cpu / .rx.packets'
  nearpath measure locality --json --interval 1s           a JSON document a line, each second
  nearpath measure locality --per process --top 5          whose packets leave their CPU
  nearpath measure locality --svg locality.svg             and as a heat map

A line for each interval: the share of packets (sk_buffs) that were allocated and let go of on the
same CPU, and how many there were. At the end how far apart the two CPUs are, and which they are.

It takes root. ^C ends it early with what was gathered. Nothing stays in the kernel afterwards.
The fields of the JSON are described in docs/json.md, the method in docs/measuring.md.";

/// Arguments of `measure locality`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct LocalityArguments {
    /// Print one JSON document; with --interval one a line, each interval and then the whole
    #[arg(long)]
    json: bool,
    /// Also draw the CPUs that packets come from and go to, as a heat map
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Also show the packets of each queue, flow, process or cgroup by themselves: the queue that a
    /// packet came by or is sent by, who takes or sends it
    #[arg(long, value_enum, value_name = "WHAT")]
    per: Option<What>,
    /// How many groups to show, those with most packets; all others are one
    #[arg(long, value_name = "N", default_value_t = 10, requires = "per")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(GROUPS_MAX)))]
    top: u32,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    namespace: Namespace,
    /// How long to measure: 500ms, 10s, 2m
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = duration)]
    #[arg(help_heading = "How to measure")]
    duration: Duration,
    /// How long each line's interval is; a second where it is not given
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = "How to measure")]
    interval: Option<Duration>,
    /// The kernel's BTF from a file, for a kernel that has none of its own
    #[arg(long, value_name = "FILE", help_heading = "How to measure")]
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
            say("ended early by a signal");
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

/// Prints each line as it comes; nobody reads them any more: the measurement ends.
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

/// One reading after the other.
#[derive(Default)]
struct Readings {
    last: Locality,
}

impl Readings {
    /// What came since the one before, in a line.
    fn line(&mut self, now: &Locality) -> String {
        let last = std::mem::replace(&mut self.last, now.clone());
        let (rx, tx) = (now.rx.since(&last.rx), now.tx.since(&last.tx));
        text::locality_rates(&rx, &tx, now.duration_s - last.duration_s)
    }
}
