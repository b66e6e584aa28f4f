//! `nearpath bench scenarios`: compares an application unbound, bound, and on a host tuned for it, in
//! alternating blocks.

mod application;
mod dpdk;
mod host;

use super::{PORT, cpus};
use crate::failure::{Failure, say};
use crate::interrupt::Interrupt;
use crate::output;
use crate::session::{Progress, duration};
use anyhow::{Context, bail};
use application::Application;
pub(in crate::commands) use application::unescaped;
use clap::{Args, ValueEnum};
use host::{Near, Tuned};
use nearpath_host::{NetnsRef, Root};
use nearpath_instruments::ProcessEvents;
use nearpath_model::CpuSet;
use nearpath_trial::comparison::CYCLES_MIN;
use nearpath_trial::live::cpus_busy;
use nearpath_trial::process::Binding;
use nearpath_trial::scenarios::{
    Measured, SCENARIOS_SCHEMA, Scenario, ScenariosReport, order, results,
};
use nearpath_views::text;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

const AFTER_HELP: &str = "\
SCENARIOS
  none      no binding: the scheduler places the application
  cpu       bound to the CPUs of the NIC's node (or to --cpus)
  memory    also allocates its memory on that node (MPOL_BIND)
  full      also with the plan of 'nearpath tune plan --nic NIC' applied, undone after each block
  wrong     on the CPUs and with the memory of the node furthest from the NIC
  wrong-memory  on the near CPUs, with its memory on that node
  autonuma, no-autonuma  no binding, with kernel.numa_balancing 1 or 0, restored after each block

The application is restarted for each block. It is 'bench reflect', or CMD, which must listen on
--address and --port and answer --request over TCP. Probes are sent from this host, with --from from
another network namespace of it, which should be at the far end of the path under test. Blocks
alternate in mirrored order (A B C C B A), so that drift affects all scenarios alike. 'full' and
those of AutoNUMA require root. On a host with one node those that cannot differ are left out. On the first error and on Ctrl-C the application is stopped and the plan undone.

EXAMPLES
  nearpath bench scenarios                                            over loopback
  nearpath bench scenarios --address 10.0.0.2 --nic eth0 --from peer  from the namespace 'peer'
  nearpath bench scenarios --scenarios none,cpu --cpus 2 --cycles 8 --json
  nearpath bench scenarios --scenarios none,wrong,wrong-memory,memory,autonuma,no-autonuma ...
  nearpath bench scenarios --dpdk --address 10.0.0.2 --from peer --nic 31:00.0,32:00.0 -- \
      dpdk-testpmd -a 31:00.0 -a 32:00.0 -- --auto-start --stats-period 1000
  nearpath bench scenarios --port 6379 --request 'PING\\r\\n' -- redis-server --port 6379
  nearpath bench scenarios --port 8080 --request 'GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n' -- ./server";

/// Arguments of `bench scenarios`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Scenarios {
    /// Address that the application listens on [default: loopback]
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), hide_default_value = true)]
    address: IpAddr,
    /// Port that the application listens on
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Send the probes from this network namespace: a name in /run/netns, a path, or pid:NUMBER
    #[arg(long, value_name = "NAME|PATH")]
    from: Option<String>,
    /// Interface whose packets the application reads [default: the one with the address]; with --dpdk
    /// the PCI addresses of its NICs, with commas between them
    #[arg(long, value_name = "NAME")]
    nic: Option<String>,
    /// CPUs to bind to, instead of those of the interface's node
    #[arg(long, value_name = "CPULIST", value_parser = cpus)]
    cpus: Option<CpuSet>,
    /// Scenarios to compare
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME")]
    #[arg(default_value = "none,cpu,memory,full")]
    scenarios: Vec<Name>,
    /// Number of cycles; each runs every scenario twice
    #[arg(long, value_name = "N", default_value_t = CYCLES_MIN, value_parser = cycles)]
    cycles: usize,
    /// Duration of a block
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    block: Duration,
    /// Warm-up before each block
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = duration)]
    warm_up: Duration,
    /// Probes or requests per second
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// Request sent to CMD, with C escapes \r, \n, \t, \0 and \xNN; all answers must have the same length
    #[arg(long, value_name = "TEXT", requires = "command")]
    request: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// The application and its arguments [default: 'nearpath bench reflect']
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
    /// Compare an application on DPDK with the lcores of 'tune plan --dpdk testpmd' and without; probes go
    /// through it to 'bench reflect' at --address, which runs already
    #[arg(long, requires = "command", conflicts_with_all = ["scenarios", "request", "cpus"])]
    #[arg(help_heading = "DPDK")]
    dpdk: bool,
    /// Forwarding workers for each NIC
    #[arg(long, value_name = "N", requires = "dpdk", default_value_t = 1, help_heading = "DPDK")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// After the probes of each block, also measure the bandwidth of a TCP stream, for as long; 'bench reflect'
    /// must run with --load, and iperf3 be installed
    #[arg(long, requires = "dpdk", help_heading = "DPDK")]
    bandwidth: bool,
    /// Also compare with this command, which runs the application overloaded; its words are separated by
    /// blanks
    #[arg(long, value_name = "COMMAND", requires = "dpdk", help_heading = "DPDK")]
    overloaded: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Name {
    None,
    Cpu,
    Memory,
    Full,
    Wrong,
    WrongMemory,
    Autonuma,
    NoAutonuma,
}

impl Name {
    fn scenario(self) -> Scenario {
        match self {
            Self::None => Scenario::NoBinding,
            Self::Cpu => Scenario::CpuBinding,
            Self::Memory => Scenario::CpuAndMemoryBinding,
            Self::Full => Scenario::FullOptimisation,
            Self::Wrong => Scenario::WrongNode,
            Self::WrongMemory => Scenario::WrongMemory,
            Self::Autonuma => Scenario::AutoNuma,
            Self::NoAutonuma => Scenario::NoAutoNuma,
        }
    }
}

fn cycles(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(cycles @ 1..=1000) => Ok(cycles),
        _ => Err("expected 1 to 1000".to_owned()),
    }
}

impl Scenarios {
    pub(in crate::commands) fn run(&self) -> Result<(), Failure> {
        if !self.command.is_empty() && self.request.is_none() && !self.dpdk {
            return Err(Failure::Usage("CMD requires --request, or --dpdk".to_owned()));
        }
        let interrupt = Interrupt::listen()?;
        if self.dpdk {
            let report = self.measure_dpdk(&interrupt)?;
            let text = || text::dpdk_scenarios(&report);
            return if self.json { output::json(&report) } else { output::text(&text()) };
        }
        let report = self.measure(&interrupt)?;
        if self.json { output::json(&report) } else { output::text(&text::scenarios(&report)) }
    }

    fn measure(&self, interrupt: &Interrupt) -> anyhow::Result<ScenariosReport> {
        let root = Root::live();
        // Each scenario once, in the order of the table.
        let names: BTreeSet<Scenario> = self.scenarios.iter().map(|name| name.scenario()).collect();
        let mut near = Near::find(&root, self.address, self.nic.as_deref(), self.cpus.as_ref())?;
        let scenarios = near.that_can_differ(names);
        if scenarios.is_empty() {
            bail!("{}", near.notes.join("; "));
        }
        let mut tuned = BTreeMap::new();
        for scenario in &scenarios {
            let changes = match scenario {
                Scenario::FullOptimisation => {
                    let plan = Tuned::plan(&root, near.nic.as_deref())?;
                    near.notes.extend(plan.note());
                    plan
                }
                Scenario::AutoNuma => Tuned::autonuma(&root, true)?,
                Scenario::NoAutoNuma => Tuned::autonuma(&root, false)?,
                _ => continue,
            };
            tuned.insert(*scenario, changes);
        }
        if self.from.is_none() {
            near.notes.push(
                "probes are sent from the application's own namespace: the path through the interface \
                 is not measured; give --from"
                    .to_owned(),
            );
        }
        let application = Application {
            command: &self.command,
            target: SocketAddr::new(self.address, self.port),
            node: near.node,
            from: self.from.as_ref().map(|from| {
                let Ok(from) = from.parse::<NetnsRef>();
                from
            }),
            request: self.request.as_deref().map(application::unescaped).transpose()?,
            rate: self.rate,
            warm_up: self.warm_up,
            duration: self.block,
            patience: application::PATIENCE,
        };
        let blocks = self.blocks(&root, &scenarios, &near, &mut tuned, &application, interrupt)?;
        if let Err(reason) = ProcessEvents::cache_misses(std::process::id()) {
            near.notes.push(format!("cache misses are not available: {reason}"));
        }
        if self.cycles < CYCLES_MIN {
            near.notes.push(format!("fewer than {CYCLES_MIN} cycles: no comparison"));
        }
        Ok(ScenariosReport {
            schema: SCENARIOS_SCHEMA,
            application: application.name(),
            target: application.target.to_string(),
            nic: near.nic,
            node: near.node,
            cpus: near.cpus,
            changes: tuned.get(&Scenario::FullOptimisation).map(Tuned::ids).unwrap_or_default(),
            cycles: self.cycles,
            block_s: self.block.as_secs_f64(),
            scenarios: results(&scenarios, &blocks),
            notes: near.notes,
        })
    }

    fn blocks(
        &self,
        root: &Root,
        scenarios: &[Scenario],
        near: &Near,
        tuned: &mut BTreeMap<Scenario, Tuned>,
        application: &Application<'_>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Vec<(Scenario, Measured)>> {
        let order = order(scenarios, self.cycles);
        let time = (self.block + self.warm_up) * u32::try_from(order.len()).unwrap_or(u32::MAX);
        let (progress, began) = (Progress::new(time), Instant::now());
        let mut blocks = Vec::new();
        for (number, &scenario) in order.iter().enumerate() {
            if interrupt.happened() {
                bail!("stopped early by a signal");
            }
            let (number, all) = (number + 1, order.len());
            progress
                .show(began.elapsed(), &format!("block {number} of {all}: {}", scenario.name()));
            let mut changes = tuned.get_mut(&scenario);
            let of_scenario = |changes: Option<&mut Tuned>| -> anyhow::Result<Measured> {
                changes.map_or(Ok(()), Tuned::apply)?;
                let before = nearpath_host::read_cpu_time(root);
                let mut measured = application.measure(&near.binding(scenario), interrupt)?;
                measured.cpus_busy = cpus_busy(&before, &nearpath_host::read_cpu_time(root));
                Ok(measured)
            };
            let measured = of_scenario(changes.as_deref_mut());
            // Undo first, in any case.
            let undone = changes.map_or(Ok(()), Tuned::undo);
            match (measured, undone) {
                (Ok(measured), Ok(())) => blocks.push((scenario, measured)),
                (Ok(_), Err(error)) => return Err(error),
                (Err(error), undone) => {
                    if let Err(undone) = undone {
                        say(&format!("{undone:#}; see 'nearpath tune status'"));
                    }
                    let name = scenario.name();
                    return Err(error.context(format!("block {number} of {all}, {name}")));
                }
            }
        }
        if interrupt.happened() {
            bail!("stopped early by a signal");
        }
        Ok(blocks)
    }
}

impl Near {
    /// The scenarios without those that take a second node where there is none, which are noted.
    fn that_can_differ(&mut self, scenarios: BTreeSet<Scenario>) -> Vec<Scenario> {
        let cannot = |scenario: &Scenario| scenario.takes_nodes() && self.far.is_none();
        let (left_out, kept): (Vec<Scenario>, Vec<Scenario>) =
            scenarios.into_iter().partition(cannot);
        if !left_out.is_empty() {
            let names: Vec<&str> = left_out.iter().map(|scenario| scenario.name()).collect();
            self.notes.push(format!(
                "there is no second node with memory and CPUs to use: left out, as they cannot differ: {}",
                names.join("; ")
            ));
        }
        kept
    }

    /// The binding of the application in a scenario.
    fn binding(&self, scenario: Scenario) -> Binding {
        match scenario {
            Scenario::NoBinding | Scenario::AutoNuma | Scenario::NoAutoNuma => Binding::default(),
            Scenario::WrongNode => Binding {
                cpus: self.far.as_ref().map(|(_, cpus)| cpus.clone()),
                memory: self.far.as_ref().map(|(node, _)| *node),
            },
            Scenario::WrongMemory => Binding {
                cpus: self.cpus.clone(),
                memory: self.far.as_ref().map(|(node, _)| *node),
            },
            Scenario::CpuBinding => Binding { cpus: self.cpus.clone(), memory: None },
            Scenario::CpuAndMemoryBinding | Scenario::FullOptimisation => {
                Binding { cpus: self.cpus.clone(), memory: self.memory }
            }
        }
    }
}

/// Path of this program, to start it again.
fn own_path() -> anyhow::Result<String> {
    let path = std::env::current_exe().context("cannot find nearpath's own path")?;
    path.into_os_string().into_string().ok().context("nearpath's own path is not valid UTF-8")
}
