//! `nearpath measure drops`: where and why packets are dropped.

use crate::failure::{Failure, say};
use crate::filters::Filters;
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::Time;
use crate::source::Namespace;
use anyhow::Context;
use clap::{Args, ValueEnum};
use nearpath_host::{Root, Wanted};
use nearpath_instruments::GROUPS_MAX;
use nearpath_instruments::drops::{Drops, Options};
use nearpath_model::drops::{DropMeasurement, DropPer, Shown};
use nearpath_views::{json, text};

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath measure drops --for 30s                   all drops in all namespaces, by reason
  nearpath measure drops --dev eth0 --proto udp --dport 9000
  nearpath measure drops --per flow --top 5          which flows lose packets
  nearpath measure drops --json --interval 1s        one JSON document per line, each second
  nearpath measure drops --json | jq '.drops[] | [.reason, .function, .device, .packets]'
  nearpath measure drops --json | jq '.counters[] | select(.agrees == false)'

The kernel reports the drop reason since Linux 5.17, and the function in all versions. The kernel's
own counters of the network namespace are shown for comparison. Requires root. Ctrl-C stops early
and prints the results so far. Nothing stays in the kernel afterwards. docs/json.md describes the
JSON fields, docs/measuring.md the method.";

/// Arguments of `measure drops`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct DropsArguments {
    /// Print one JSON document; with --interval one line per interval, then one for the total
    #[arg(long)]
    json: bool,
    /// Also print totals by this property
    #[arg(long, value_enum, value_name = "WHAT")]
    per: Option<What>,
    /// Number of rows to show, those with the most packets; the rest are summed in one
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(GROUPS_MAX)))]
    top: u32,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    time: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    Reason,
    Device,
    Location,
    Stage,
    Protocol,
    Flow,
}

impl DropsArguments {
    fn shown(&self) -> Shown {
        let per = self.per.map(|what| match what {
            What::Reason => DropPer::Reason,
            What::Device => DropPer::Device,
            What::Location => DropPer::Location,
            What::Stage => DropPer::Stage,
            What::Protocol => DropPer::Protocol,
            What::Flow => DropPer::Flow,
        });
        Shown { per, top: usize::try_from(self.top).unwrap_or(usize::MAX) }
    }

    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let netns = self.namespace.inode()?;
        let measured = self.namespace.read(|root| Ok(self.measure(root, netns, &interrupt)))?;
        let measurement = measured?;
        if interrupt.happened() {
            say("stopped early by a signal");
        }
        match (self.json, self.time.interval) {
            (true, Some(_)) => Ok(()),
            (true, None) => output::json(&measurement),
            _ => output::text(&text::drops(&measurement, self.shown().top)),
        }
    }

    fn measure(
        &self,
        root: &Root,
        netns: Option<u64>,
        interrupt: &Interrupt,
    ) -> Result<DropMeasurement, Failure> {
        let host = nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
        let filter = self.filters.resolve(&host, netns)?;
        let btf_file = self.time.btf.clone();
        let options = Options { filter, shown: self.shown(), btf_file, limit: None };
        let mut drops = Drops::new(root, options);
        if self.json && self.time.interval.is_some() {
            return self.time.print_lines(&mut drops, interrupt, |last, now| {
                output::json_line(&json::drops_interval(last, now))
            });
        }
        let each = |now: &DropMeasurement| format!("{} packets dropped", now.packets);
        Ok(self.time.measure(&mut drops, interrupt, each)?)
    }
}
