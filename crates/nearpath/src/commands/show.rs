//! `nearpath show`: a host's configuration as text, JSON or a picture.

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
  nearpath show cpus --layout             cores by socket, for choosing worker cores
  nearpath show queues                    where each queue's interrupt goes, and its steering
  nearpath show nics --netns blue         the interfaces of another namespace
  nearpath show --root tree/              another host, from a copy of its sys and proc
  nearpath show cpus --json | jq '.cpus[] | select(.node == 1).cpu'
  nearpath show --svg host.svg            packages, nodes, caches, cores, NICs as a picture

Unknown values are shown as '-' (null in JSON); the reasons follow at the end under 'unknown:'.
docs/json.md describes the JSON fields.";

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
    /// With 'cpus': print cores by socket, like DPDK's cpu_layout.py
    #[arg(long, conflicts_with = "json")]
    layout: bool,
    /// Draw the host to this SVG file instead of printing text
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    source: Source,
}

/// Part of a host's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Subject {
    /// Core, package, die, LLC, SMT siblings and node of each CPU
    Cpus,
    /// NUMA nodes: CPUs, memory, hugepages, distances
    Nodes,
    /// Network interfaces: driver, location, channels, rings, steering
    Nics,
    /// Queues: NAPI, interrupt, its affinity and node, RPS, RFS, XPS
    Queues,
    /// Interrupts by count, and the CPUs that handled them
    Irqs,
    /// Packets processed and dropped, and polls that ran out of budget, by CPU
    Softnet,
    /// All of the above
    All,
}

impl Show {
    pub(super) fn run(&self) -> Result<(), Failure> {
        if self.layout && self.subject != Subject::Cpus {
            return Err(Failure::Usage("--layout is an option of 'show cpus'".to_owned()));
        }
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
            Subject::Cpus if self.layout => text::layout(host),
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
