//! `nearpath measure memory`: where the memory of processes is, where they run, and what moves it.

use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::process_selection::ProcessSelection;
use crate::session::Time;
use crate::source::Namespace;
use anyhow::Context;
use clap::Args;
use nearpath_host::{MemoryReader, Root, Wanted};
use nearpath_instruments::memory::{Memory, Options};
use nearpath_model::memory::MemoryMeasurement;
use nearpath_views::{json, text};

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath measure memory                            processes with more than 16 MiB, for 10s
  nearpath measure memory --unit redis --for 60s     of a systemd unit
  nearpath measure memory --pid 812 -v               kinds of memory, threads, devices, counters
  nearpath measure memory --all --json | jq '.processes[] | [.comm, .pid, .remote_share]'
  nearpath measure memory --json --interval 1s       one JSON document per line, each second

Remote is memory on nodes on which the threads of the process ran for less than 5% of their time.
Reading makes the kernel walk the page tables of each process; the output says how long that took.
'nearpath show memory' is the still picture. Requires root. docs/memory.md says what each number
means, docs/json.md describes the JSON fields.";

/// Arguments of `measure memory`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct MemoryArguments {
    /// Print one JSON document; with --interval one line per interval, then one for the total
    #[arg(long)]
    json: bool,
    /// Show kinds of memory, threads, devices, cgroups and counters, and what the numbers mean
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    #[command(flatten)]
    selection: ProcessSelection,
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    time: Time,
}

impl MemoryArguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::listen()?;
        let measured = self.namespace.read(|root| Ok(self.measure(root, &interrupt)))?;
        let measurement = measured?;
        if interrupt.happened() {
            say("stopped early by a signal");
        }
        match (self.json, self.time.interval) {
            (true, Some(_)) => Ok(()),
            (true, None) => output::json(&measurement),
            _ => output::text(&text::memory(&measurement, self.verbose)),
        }
    }

    fn measure(&self, root: &Root, interrupt: &Interrupt) -> Result<MemoryMeasurement, Failure> {
        let wanted = Wanted { sockets: true, ..Wanted::default() };
        let host = nearpath_host::read(root, &wanted).context("cannot read the host")?;
        let reader = MemoryReader::new(root, &host, &self.selection.selection())
            .context("cannot select processes")?;
        let each_interval = self.json && self.time.interval.is_some();
        let options = Options { each_interval, btf_file: self.time.btf.clone() };
        let mut memory = Memory::new(root, reader, options);
        if each_interval {
            return self.time.print_lines(&mut memory, interrupt, |last, now| {
                output::json_line(&json::memory_interval(last, now))
            });
        }
        let each = |now: &MemoryMeasurement| {
            let moved: u64 = now.moves.iter().map(|moves| moves.pages.moved).sum();
            format!("{moved} pages moved")
        };
        Ok(self.time.measure(&mut memory, interrupt, each)?)
    }
}
