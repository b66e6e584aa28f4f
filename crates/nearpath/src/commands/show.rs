//! `nearpath show`: a host's configuration as text, JSON or a picture.

use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::process_selection::ProcessSelection;
use crate::recorded::{self, Times};
use crate::session::{Time, duration};
use crate::source::Source;
use anyhow::Context;
use clap::{Arg, Args, Command, Id, ValueEnum};
use nearpath_host::{MemoryReader, Root, Wanted};
use nearpath_instruments::workers::{self, Workers};
use nearpath_model::Host;
use nearpath_monitor::recording::{self, ReadFacts, Recording};
use nearpath_views::text::RecordedPart;
use nearpath_views::{json, svg, text};
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath show cpus                      which CPUs share a core, a cache, a node
  nearpath show cpus --layout             cores by socket, for choosing worker cores
  nearpath show queues                    where each queue's interrupt goes, and its steering
  nearpath show memory --unit redis       on which nodes a unit's memory is, and where it ran
  nearpath show devices -v                every network function, also those that DPDK drives
  nearpath show workers                   threads of DPDK and Open vSwitch that poll
  nearpath show workers --interval 2s     also how busy they are, what NICs miss, who else ran
  nearpath show vms                       virtual machines: threads, taps, where they may run
  nearpath show nics --netns blue         the interfaces of another namespace
  nearpath show softnet --recording DIR --at 03:12    what 'nearpath record' has kept of it
  nearpath show --root tree/              another host, from a copy of its sys and proc
  nearpath show cpus --json | jq '.cpus[] | select(.node == 1).cpu'
  nearpath show --svg host.svg            packages, nodes, caches, cores, NICs as a picture

Unknown values are shown as '-' (null in JSON); the reasons follow at the end under 'unknown:'.
docs/json.md describes the JSON fields.";

/// Arguments of `show`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP, mut_arg("recording", excluded))]
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
    /// With 'memory': also kinds of memory, threads, devices, cgroups and counters; with 'devices':
    /// ids, interrupts and device files
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
    /// With 'workers': also rates and shares over this time, and the tasks that ran on the workers' CPUs
    #[arg(long, value_name = "TIME", value_parser = duration)]
    interval: Option<Duration>,
    #[command(flatten)]
    selection: ProcessSelection,
    #[command(flatten)]
    recorded: recorded::RecordedPart,
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
    /// Network functions of the PCI bus, also those on vfio or uio: driver, node, PF and VF, MSI-X
    Devices,
    /// Queues: NAPI, interrupt, its affinity and node, RPS, RFS, XPS
    Queues,
    /// Interrupts by count, and the CPUs that handled them
    Irqs,
    /// Packets processed and dropped, and polls that ran out of budget, by CPU
    Softnet,
    /// Memory of processes by node, compared with where they ran; not part of 'all'
    Memory,
    /// Workers of DPDK and Open vSwitch that poll: CPU, node, ports, queues; not part of 'all'
    Workers,
    /// Virtual machines of KVM: vCPU and vhost threads, taps, devices, memory; not part of 'all'
    Vms,
    /// With --recording: changes in nearpath's journal, and their state then
    Settings,
    /// All but memory, workers and virtual machines; with --recording, all that is recorded
    All,
}

/// Excludes what concerns the running host or a snapshot only.
fn excluded(recording: Arg) -> Arg {
    let all = Source::augment_args(ProcessSelection::augment_args(Command::new("others")));
    let ids: Vec<Id> = all.get_arguments().map(|arg| arg.get_id().clone()).collect();
    recording.conflicts_with_all(ids).conflicts_with_all(["svg", "interval", "layout", "verbose"])
}

impl Show {
    pub(super) fn run(&self) -> Result<(), Failure> {
        if let Some((recording, times)) = self.recorded.open()? {
            return self.recorded_facts(&recording, times);
        }
        if self.subject == Subject::Settings {
            let instead =
                "'show settings' needs --recording; 'nearpath tune status' shows those of now";
            return Err(Failure::Usage(instead.to_owned()));
        }
        if self.layout && self.subject != Subject::Cpus {
            return Err(Failure::Usage("--layout is an option of 'show cpus'".to_owned()));
        }
        if self.interval.is_some() && self.subject != Subject::Workers {
            return Err(Failure::Usage("--interval is an option of 'show workers'".to_owned()));
        }
        if self.subject == Subject::Memory {
            return self.memory();
        }
        if self.verbose && self.subject != Subject::Devices {
            let which = "-v is an option of 'show memory' and 'show devices'";
            return Err(Failure::Usage(which.to_owned()));
        }
        if self.selection.is_set() {
            let options = "--pid, --unit, --cgroup, --comm, --all and --thp";
            return Err(Failure::Usage(format!("{options} are options of 'show memory'")));
        }
        if self.subject == Subject::Workers {
            if self.svg.is_some() {
                return Err(Failure::Usage("--svg draws no workers".to_owned()));
            }
            let workers = self.workers()?;
            return if self.json {
                output::json(&workers)
            } else {
                output::text(&text::workers(&workers))
            };
        }
        if self.subject == Subject::Vms {
            if self.svg.is_some() {
                return Err(Failure::Usage("--svg draws no virtual machines".to_owned()));
            }
            let vms = self.source.read(|root| Ok(nearpath_host::vms::read(root)))?;
            return match self.json {
                true => output::json(&vms),
                false => output::text(&text::vms(&vms)),
            };
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

    fn recorded_facts(&self, recording: &Recording, times: Times) -> Result<(), Failure> {
        let parts = match self.subject {
            Subject::Softnet => &[RecordedPart::Softnet],
            Subject::Irqs => &[RecordedPart::Irqs],
            Subject::Nodes => &[RecordedPart::Numa],
            Subject::Memory => &[RecordedPart::Memory],
            Subject::Vms => &[RecordedPart::Vms],
            Subject::Workers => &[RecordedPart::Workers],
            Subject::Settings => &[RecordedPart::Settings],
            Subject::All => &RecordedPart::ALL[..],
            _ => {
                let has = "recordings have softnet, irqs, nodes, memory, vms, workers and settings";
                return Err(Failure::Usage(has.to_owned()));
            }
        };
        let Times { from_us, at_us, to_us } = times;
        let ReadFacts { hosts, facts, notes } = recording::facts(recording, from_us, at_us, to_us);
        recorded::report(&notes, &hosts);
        if hosts.is_empty() {
            return Err(recorded::nothing(from_us, to_us).into());
        }
        match self.json {
            true => output::json(&facts),
            false => output::text(&text::recorded(&facts, parts)),
        }
    }

    fn workers(&self) -> Result<nearpath_model::Workers, Failure> {
        let Some(duration) = self.interval else {
            return Ok(self.source.read(|root| Ok(nearpath_host::workers::read(root)))?);
        };
        if !self.source.is_live() {
            let which = "--interval measures this host: it does not apply to --root and --snapshot";
            return Err(Failure::Usage(which.to_owned()));
        }
        let interrupt = Interrupt::listen()?;
        let root = Root::live();
        let host =
            nearpath_host::read(&root, &Wanted::default()).context("cannot read the host")?;
        let mut workers = Workers::new(&root, &host.topology, workers::Options::default());
        let time = Time { duration, interval: Some(duration), btf: None };
        Ok(time.measure(&mut workers, &interrupt, |_| String::new())?)
    }

    fn memory(&self) -> Result<(), Failure> {
        if self.svg.is_some() {
            return Err(Failure::Usage("--svg does not draw memory".to_owned()));
        }
        let selection = self.selection.selection();
        let memory = self.source.read(|root| {
            let wanted = Wanted { sockets: true, ..Wanted::default() };
            let host = nearpath_host::read(root, &wanted).context("cannot read the host")?;
            let reader = MemoryReader::new(root, &host, &selection);
            Ok(reader.context("cannot select processes")?.still(root))
        })?;
        match self.json {
            true => output::json(&memory),
            false => output::text(&text::memory(&memory, self.verbose)),
        }
    }

    fn text(&self, host: &Host) -> String {
        match self.subject {
            Subject::Cpus if self.layout => text::layout(host),
            Subject::Cpus => text::cpus(host),
            Subject::Nodes => text::nodes(host),
            Subject::Nics => text::nics(host),
            Subject::Devices => text::devices(host, self.verbose),
            Subject::Queues => text::queues(host),
            Subject::Irqs => text::irqs(host),
            Subject::Softnet => text::softnet(host),
            Subject::Memory
            | Subject::Workers
            | Subject::Vms
            | Subject::Settings
            | Subject::All => text::all(host),
        }
    }

    fn print_json(&self, host: &Host) -> Result<(), Failure> {
        match self.subject {
            Subject::Cpus => output::json(&json::cpus(host)),
            Subject::Nodes => output::json(&json::nodes(host)),
            Subject::Nics => output::json(&json::nics(host)),
            Subject::Devices => output::json(&json::devices(host)),
            Subject::Queues => output::json(&json::queues(host)),
            Subject::Irqs => output::json(&json::irqs(host)),
            Subject::Softnet => output::json(&json::softnet(host)),
            Subject::Memory
            | Subject::Workers
            | Subject::Vms
            | Subject::Settings
            | Subject::All => output::json(&json::all(host)),
        }
    }
}
