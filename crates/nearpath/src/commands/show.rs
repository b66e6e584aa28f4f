//! `nearpath show`: the facts of a host as text, as JSON, or as a picture.

use crate::failure::{Failure, say};
use crate::output;
use crate::source::Source;
use clap::{Args, ValueEnum};
use nearpath_host::Wanted;
use nearpath_model::Host;
use nearpath_views::{json, svg, text};
use std::path::PathBuf;

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath show cpus                      which CPUs share a core, a cache, a node
  nearpath show queues                    where each queue's interrupt goes, and its steering
  nearpath show nics --netns blue         the interfaces of another namespace
  nearpath show --root tree/              all facts of another machine, from its sys and proc
  nearpath show cpus --json | jq '.cpus[] | select(.node == 1).cpu'
  nearpath show --svg host.svg            packages, nodes, caches, cores, NICs as a picture

An unknown fact is '-' (null in JSON); the reasons stand at the end under 'unknown:'.
The fields of the JSON are described in docs/json.md.";

/// Arguments of `show`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Show {
    /// What to show
    #[arg(value_enum, default_value = "all")]
    subject: Subject,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Draw the host into an SVG file instead of printing text
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    source: Source,
}

/// Part of a host's facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Subject {
    /// Sockets, cores, SMT siblings, dies, LLCs and the node of each CPU
    Cpus,
    /// NUMA nodes: CPUs, memory, hugepages, distances
    Nodes,
    /// Network interfaces: driver, place, channels, rings, steering
    Nics,
    /// Queues: NAPI, interrupt, its affinity and node, RPS, RFS, XPS
    Queues,
    /// Interrupts by count, and the CPUs that took them
    Irqs,
    /// Packets processed, dropped and put off, by CPU
    Softnet,
    /// All of these
    All,
}

impl Show {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let host = self.source.host(&Wanted::default())?;
        if let Some(path) = &self.svg {
            output::file(path, svg::host(&host).as_bytes())?;
            say(&format!("wrote {}", path.display()));
        }
        match (self.json, &self.svg) {
            (true, _) => self.print_json(&host),
            (false, None) => output::text(&self.text(&host)),
            (false, Some(_)) => Ok(()),
        }
    }

    fn text(&self, host: &Host) -> String {
        match self.subject {
            Subject::Cpus => text::cpus(host),
            Subject::Nodes => text::nodes(host),
            Subject::Nics => text::nics(host),
            Subject::Queues => text::queues(host),
            Subject::Irqs => text::irqs(host),
            Subject::Softnet => text::softnet(host),
            Subject::All => text::all(host),
        }
    }

    fn print_json(&self, host: &Host) -> Result<(), Failure> {
        match self.subject {
            Subject::Cpus => output::json(&json::cpus(host)),
            Subject::Nodes => output::json(&json::nodes(host)),
            Subject::Nics => output::json(&json::nics(host)),
            Subject::Queues => output::json(&json::queues(host)),
            Subject::Irqs => output::json(&json::irqs(host)),
            Subject::Softnet => output::json(&json::softnet(host)),
            Subject::All => output::json(&json::all(host)),
        }
    }
}
