//! `nearpath diagnose`: findings from facts and measurements, ranked by cost.

use crate::evidence::{self, Measured};
use crate::failure::{Failure, say};
use crate::filters::Filters;
use crate::interrupt::Interrupt;
use crate::output;
use crate::recorded::{RecordedPart, period};
use crate::session::Timing;
use crate::source::{Source, all_facts, has_nodes, memory_of_readers};
use crate::tcp_connections::TcpConnections;
use crate::together::Together;
use crate::verbose::Verbose;
use anyhow::Context;
use clap::{Arg, Args, Command, FromArgMatches, Id, ValueEnum};
use nearpath_diagnose::diagnose;
use nearpath_host::{MemoryReader, MemorySelection, Root, Wanted, current_netns, entered_netns};
use nearpath_instruments::Filter;
use nearpath_instruments::accepts::{self, Accepts};
use nearpath_instruments::answers::{self, Answers};
use nearpath_instruments::drops::{self, Drops};
use nearpath_instruments::locality::{self, PacketLocality};
use nearpath_instruments::memory::{self, Memory};
use nearpath_instruments::stages::{Options, Stages, zoom};
use nearpath_instruments::vm::{LATE_INTO_VM, VmPackets};
use nearpath_instruments::workers::{self, Workers};
use nearpath_model::drops::Shown;
use nearpath_model::shell::word;
use nearpath_model::{Detail, Diagnosis, Host, Protocol, Severity};
use nearpath_monitor::recording::Replay;
use std::path::PathBuf;
use std::time::Duration;

/// Share of the time for the first, coarse measurement, and its maximum.
const FIRST_LOOK: u32 = 4;
/// Flows of dropped packets that checks may name.
const FLOWS: usize = 16;
/// The part of the overhead limit that a flood of drops may have.
const DROPS_PART: f64 = 0.1;
/// The part that observing answers may have.
const ANSWERS_PART: f64 = 0.1;
const LONGEST_FIRST_LOOK: Duration = Duration::from_secs(5);

const AFTER_HELP: &str = "\
Reads the host's configuration, measures its packets, and reports what is wrong: the most expensive
finding first, each with its evidence and the changes that would fix it. Nothing is changed.

The first quarter of the time uses few hooks; the rest looks closer where time is lost. --detail and
--stages select what to observe instead. --max-overhead applies to packet latency only, not to the
other measurements.

EXAMPLES
  nearpath diagnose                                   this machine, all packets, ten seconds
  nearpath diagnose -v                                with the evidence; -vv with all tables
  nearpath diagnose --for 1m --dev eth0 --proto tcp
  nearpath diagnose --netns blue --port 6379
  nearpath diagnose --measure stages                  packet latency only
  nearpath diagnose --snapshot host.tar.zst           another host, from its configuration only
  nearpath diagnose --snapshot host.tar.zst --evidence locality.json
  nearpath diagnose --recording DIR --at 03:12        what was wrong then
  nearpath diagnose --json | jq '.findings[] | .title'

Measuring requires root and a kernel with BTF. Without them the findings are based on configuration
and counters, and 'not checked' lists what could not be measured. docs/json.md describes the JSON
fields.";

/// Arguments of `diagnose`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP, mut_arg("recording", Looking::excluded))]
pub struct Diagnose {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Exit with status 2 if any finding is critical, 1 if the worst is a warning, 0 if there is neither, 3 on an
    /// error, 4 on wrong usage
    #[arg(long)]
    exit_code: bool,
    #[command(flatten)]
    verbose: Verbose,
    #[command(flatten)]
    recorded: RecordedPart,
    #[command(flatten, next_help_heading = None::<&'static str>)]
    looking: Looking,
}

/// What is diagnosed, and how it is measured.
#[derive(Debug, Args)]
pub struct Looking {
    /// What to measure: packet latency, packet CPUs, CPUs of accepted connections, TCP connections, memory, polling
    /// workers, packets into virtual machines. Each adds overhead
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    #[arg(default_values = ["stages", "locality", "accepts", "tcp", "memory", "workers", "vm"])]
    measure: Vec<What>,
    /// Do not measure; read the --json output of 'measure stages', 'locality', 'accepts', 'tcp', 'memory', 'workers'
    /// or 'vm --slow', or of 'bench latency --txtime', from these files
    #[arg(long, value_name = "FILE", value_delimiter = ',', conflicts_with = "measure")]
    evidence: Vec<PathBuf>,
    #[command(flatten)]
    filters: Filters,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    timing: Timing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    Stages,
    Locality,
    Accepts,
    Tcp,
    Memory,
    Workers,
    Vm,
}

impl Diagnose {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match self.report() {
            Err(failure) if self.exit_code && !matches!(failure, Failure::Found(_)) => {
                Err(Failure::NotDiagnosed(Box::new(failure)))
            }
            outcome => outcome,
        }
    }

    fn report(&self) -> Result<(), Failure> {
        let recorded = self.recorded.replay()?;
        let live = self.looking.is_live() && recorded.is_none();
        // Dropped only after the findings are printed: detaching takes the kernel a while.
        let root = Root::live();
        let mut instrument = None;
        let diagnosis = match recorded {
            Some(Replay { diagnosis, times, .. }) => {
                let (from, to) = times.unwrap_or_default();
                say(&format!("recorded {}", period(from, to)));
                diagnosis
            }
            None => self.looking.diagnosis(&root, &mut instrument)?,
        };
        let printed = if self.json {
            output::json(&diagnosis)
        } else {
            // A plan for another host cannot be tried here.
            let netns = self.looking.netns_words();
            let filters = self.looking.filters.words();
            let next = live.then(|| format!("nearpath fix{filters}{netns}"));
            output::text(&self.verbose.diagnosis(&diagnosis, next.as_deref()))
        };
        let found = match diagnosis.findings.iter().map(|finding| finding.severity).max() {
            Some(Severity::Critical) if self.exit_code => Some(2),
            Some(Severity::Warning) if self.exit_code => Some(1),
            _ => None,
        };
        match (printed, found) {
            // Whoever reads only the first lines (`| head -1`) gets the status all the same.
            (Ok(()) | Err(Failure::BrokenPipe), Some(status)) => Err(Failure::Found(status)),
            (printed, _) => printed,
        }
    }
}

impl Looking {
    /// An argument that excludes all of these: what is not measured has none of their effects.
    pub(super) fn excluded(by: Arg) -> Arg {
        let all = Self::augment_args(Command::new("looking"));
        let ids: Vec<Id> = all.get_arguments().map(|arg| arg.get_id().clone()).collect();
        by.conflicts_with_all(ids)
    }

    /// The network namespace that is diagnosed, if whoever pastes the commands is in another one.
    fn netns(&self) -> Option<String> {
        let given = self.source.netns().map(str::to_owned);
        given.or_else(|| self.source.is_live().then(entered_netns).flatten())
    }

    /// The same as words of a command, after a space.
    pub(super) fn netns_words(&self) -> String {
        self.netns().map_or_else(String::new, |netns| format!(" --netns {}", word(&netns)))
    }

    /// What is measured for a plan where nothing else is said.
    pub(super) fn briefly(netns: Option<&str>) -> anyhow::Result<Self> {
        let netns = netns.iter().flat_map(|netns| ["--netns", netns]);
        let words = ["looking", "--for", "5s"].into_iter().chain(netns);
        let command = Self::augment_args(Command::new("looking"));
        Ok(Self::from_arg_matches(&command.try_get_matches_from(words)?)?)
    }

    /// A diagnosis of the running host, for those who live in its namespace.
    pub(super) fn live_here(&self) -> Result<Diagnosis, Failure> {
        let (root, mut instrument) = (Root::live(), None);
        self.live(&root, &mut instrument)
    }

    /// Whether the running host is measured.
    pub(super) fn is_live(&self) -> bool {
        self.source.is_live() && self.evidence.is_empty()
    }

    /// The diagnosis; the instruments are detached when they are dropped.
    pub(super) fn diagnosis<'a>(
        &self,
        root: &'a Root,
        instrument: &mut Option<Together<'a>>,
    ) -> Result<Diagnosis, Failure> {
        let diagnosis =
            if self.is_live() { self.live(root, instrument)? } else { self.facts_and_files()? };
        Ok(match self.netns() {
            Some(netns) => diagnosis.in_netns(&netns),
            None => diagnosis,
        })
    }

    /// Runs in the namespace that is diagnosed.
    pub(super) fn in_namespace<T: Send>(
        &self,
        run: impl FnOnce(&Root) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        self.source.namespace().read(run)
    }

    /// The filter of its packets.
    pub(super) fn filter(&self, host: &Host) -> anyhow::Result<Filter> {
        self.filters.resolve(host, self.source.netns_inode()?)
    }

    /// The host, read again.
    pub(super) fn host(&self) -> anyhow::Result<Host> {
        self.source.host(&Wanted::default())
    }

    fn facts_and_files(&self) -> Result<Diagnosis, Failure> {
        if self.filters.is_set() {
            let message = "packet filters do not apply to --root, --snapshot and --evidence: they \
                           hold no packets";
            return Err(Failure::Usage(message.to_owned()));
        }
        let mut measured = evidence::read(&self.evidence)?;
        let (host, memory, workers) = self.source.read(all_facts)?;
        measured.workers = measured.workers.or(Some(Ok(workers)));
        if measured.memory.is_none() && has_nodes(&host) {
            measured.memory = memory.map(Ok);
        }
        let diagnosis = diagnose(&host, None, measured.evidence());
        Ok(if self.evidence.is_empty() {
            diagnosis.not_measured("packets can be measured on a running host only")
        } else {
            diagnosis
        })
    }

    pub(super) fn live<'a>(
        &self,
        root: &'a Root,
        instrument: &mut Option<Together<'a>>,
    ) -> Result<Diagnosis, Failure> {
        let interrupt = Interrupt::listen()?;
        let sockets = Wanted { sockets: true, ..Wanted::default() };
        let before = self.source.host(&sockets)?;
        let netns = self.source.netns_inode()?;
        let filter = self.filters.resolve(&before, netns)?;
        let together = instrument.insert(self.together(root, &before, filter.clone())?);
        let measured = self.measure(together, &filter, &interrupt)?;
        if interrupt.happened() {
            say("stopped early by a signal");
        }
        let memory_of = memory_of_readers(&before);
        let after = self.source.host(&Wanted { memory_of, ..sockets })?;
        let diagnosis = diagnose(&after, Some(&before), measured.evidence());
        Ok(measured.note(diagnosis))
    }

    /// Measures for the whole time. Without options that select what to observe, coarsely at first, then closer
    /// where time is lost. Instruments other than stages run for the whole time.
    fn measure(
        &self,
        together: &mut Together<'_>,
        filter: &Filter,
        interrupt: &Interrupt,
    ) -> Result<Measured, Failure> {
        let time = &self.timing.time;
        let each = |now: &Measured| {
            let stages = now.stages.as_ref().and_then(|stages| stages.as_ref().ok());
            stages.map_or_else(String::new, |m| format!("{} packets", m.packets.started))
        };
        if !self.looks_twice() {
            return Ok(time.measure_part(
                together,
                interrupt,
                Duration::ZERO..time.duration,
                each,
            )?);
        }
        together.look_first();
        let part = (time.duration / FIRST_LOOK).min(LONGEST_FIRST_LOOK);
        let first = time.measure_part(together, interrupt, Duration::ZERO..part, each)?;
        if interrupt.happened() {
            return Ok(first);
        }
        let options = match first.evidence().stages.and_then(zoom::zoom) {
            Some(stages) => self.timing.closer(filter.clone(), stages),
            // Too few packets to decide: observe all stages of those that follow.
            None => self.timing.options(filter.clone(), Detail::Full),
        };
        together.look_closer(options);
        let closer = time.measure_part(together, interrupt, part..time.duration, each)?;
        Ok(closer.after(first))
    }

    /// Whether a coarse measurement decides what is observed.
    fn looks_twice(&self) -> bool {
        !self.timing.says_what() && self.measure.contains(&What::Stages)
    }

    /// How stages are observed at first. Where RPS is set, the coarse measurement includes the stages before RPS
    /// chooses a CPU: there may be no packets left after it.
    fn at_first(&self, host: &Host, filter: &Filter) -> Options {
        if !self.looks_twice() {
            return self.timing.options(filter.clone(), Detail::Full);
        }
        self.timing.coarse(host, filter.clone())
    }

    /// The instruments. Even if none can run, the time passes, so that counters give rates.
    fn together<'a>(
        &self,
        root: &'a Root,
        host: &Host,
        filter: Filter,
    ) -> Result<Together<'a>, Failure> {
        let netns = self.source.netns_inode()?;
        let (topology, btf_file) = (&host.topology, self.timing.time.btf.clone());
        let wants = |what| self.measure.contains(&what);
        let stages =
            wants(What::Stages).then(|| Stages::new(topology, self.at_first(host, &filter)));
        let drops = wants(What::Stages).then(|| {
            let (filter, btf_file) = (filter.clone(), btf_file.clone());
            let shown = Shown { per: None, top: FLOWS };
            let limit = self.timing.limit().map(|limit| DROPS_PART * limit);
            Drops::new(root, drops::Options { filter, shown, btf_file, limit })
        });
        let locality = wants(What::Locality).then(|| {
            let (filter, btf_file) = (filter.clone(), btf_file.clone());
            let options = locality::Options { filter, btf_file, ..Default::default() };
            PacketLocality::new(topology, options)
        });
        let answers = wants(What::Stages).then(|| {
            let servers = answers::servers(host).into_iter();
            let is_of = |port: Option<u16>, server: &answers::Server| {
                port.is_none_or(|port| port == server.port)
            };
            let wanted = |server: &answers::Server| {
                is_of(filter.port, server)
                    && is_of(filter.dport, server)
                    && filter.protocol.is_none_or(|protocol| protocol == server.protocol)
            };
            let limit = self.timing.limit();
            Answers::new(answers::Options {
                servers: servers.filter(wanted).collect(),
                netns: netns.or_else(|| current_netns(root).inode).and_then(|n| n.try_into().ok()),
                budget: limit.map(|share| self.timing.time.duration.mul_f64(ANSWERS_PART * share)),
                btf_file: btf_file.clone(),
            })
        });
        let tcp =
            (wants(What::Tcp) && filter.protocol.is_none_or(|p| p == Protocol::Tcp)).then(|| {
                TcpConnections::new(
                    self.source.namespace().clone(),
                    netns,
                    &filter,
                    btf_file.clone(),
                )
            });
        let netns = netns.map(u32::try_from).transpose();
        let netns = netns.context("network namespace inode")?;
        let accepts = wants(What::Accepts).then(|| {
            let port = filter.port.or(filter.dport);
            let options = accepts::Options { port, netns, btf_file, ..Default::default() };
            Accepts::new(root, topology, options)
        });
        let reader = (wants(What::Memory) && has_nodes(host))
            .then(|| MemoryReader::new(root, host, &MemorySelection::default()));
        // Without any process there is nothing to read.
        let memory = reader.and_then(Result::ok).map(|reader| {
            let btf_file = self.timing.time.btf.clone();
            Memory::new(root, reader, memory::Options { each_interval: false, btf_file })
        });
        let workers = wants(What::Workers).then(|| {
            let btf_file = self.timing.time.btf.clone();
            Workers::new(root, topology, workers::Options { btf_file })
        });
        let vm = (wants(What::Vm) && !host.vms.is_empty()).then(|| {
            let btf_file = self.timing.time.btf.clone();
            VmPackets::new(root, host, btf_file).from_nics().explaining(Some(LATE_INTO_VM))
        });
        let together = Together::new(stages, locality, accepts, tcp, memory, workers, vm);
        Ok(together.with(drops, answers))
    }
}
