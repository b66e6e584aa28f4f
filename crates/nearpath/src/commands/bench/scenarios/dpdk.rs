//! `bench scenarios --dpdk`: an application on DPDK with the lcores of a plan and without, in alternating blocks.

use super::Scenarios;
use super::application::Application;
use crate::interrupt::Interrupt;
use crate::session::Progress;
use anyhow::{Context, bail};
use nearpath_host::{NetnsRef, Root, Wanted, network_function};
use nearpath_instruments::Instrument;
use nearpath_instruments::workers::{Options, Workers};
use nearpath_model::{DpdkApplication, DpdkNic, Topology, Workers as Measurement};
use nearpath_trial::comparison::CYCLES_MIN;
use nearpath_trial::dpdk::{
    DPDK_SCENARIOS_SCHEMA, DpdkBlock, DpdkReading, DpdkScenariosReport, Observed, dpdk_results,
    read_application,
};
use nearpath_trial::process::Binding;
use nearpath_trial::scenarios::order;
use nearpath_tune::dpdk::{Request, plan};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long an application may take to initialise its ports.
const PATIENCE: Duration = Duration::from_secs(60);
/// EAL's options that place lcores.
const PLACING: [&str; 9] =
    ["-l", "-c", "-s", "-S", "--lcores", "--main-lcore", "--master-lcore", "--coremap", "--lcore"];

/// Instead of the address of a NIC.
const NO_NIC: &str = "no NIC";

/// Lcores of the two scenarios.
struct Lcores {
    without: String,
    with: String,
    notes: Vec<String>,
}

/// What runs in a block.
#[derive(Clone, Copy)]
struct Kind {
    is_planned: bool,
    is_overloaded: bool,
}

impl Kind {
    fn name(self) -> String {
        let with = if self.is_planned { "with" } else { "without" };
        format!("{with} the plan{}", if self.is_overloaded { ", overloaded" } else { "" })
    }
}

/// A command that runs the application: the program, and its words with `--` between those of EAL and its own.
fn check_command(words: &[String]) -> anyhow::Result<()> {
    let Some((_, words)) = words.split_first() else { bail!("CMD is missing") };
    let eal = words.split(|word| word == "--").next().unwrap_or_default();
    let is_placing = |word: &&String| {
        let name = word.split('=').next().unwrap_or_default();
        PLACING.contains(&name)
    };
    match eal.iter().find(is_placing) {
        Some(word) => bail!("{word}: --dpdk places the lcores itself"),
        None => Ok(()),
    }
}

impl Scenarios {
    pub(super) fn measure_dpdk(
        &self,
        interrupt: &Interrupt,
    ) -> anyhow::Result<DpdkScenariosReport> {
        let overloaded = self
            .overloaded
            .as_deref()
            .map(|text| text.split_ascii_whitespace().map(str::to_owned).collect::<Vec<String>>());
        check_command(&self.command)?;
        if let Some(words) = &overloaded {
            check_command(words).context("--overloaded")?;
        }
        let root = Root::live();
        let topology = nearpath_host::read(&root, &Wanted::default())
            .context("cannot read the host")?
            .topology;
        let mut lcores = self.lcores(&root, &topology)?;
        let loads: &[bool] = if overloaded.is_some() { &[false, true] } else { &[false] };
        let kinds = loads.iter().flat_map(|&is_overloaded| {
            [false, true].map(|is_planned| Kind { is_planned, is_overloaded })
        });
        let order = order(&kinds.collect::<Vec<Kind>>(), self.cycles);
        let measured = if self.bandwidth { self.block * 2 } else { self.block };
        let time = (measured + self.warm_up) * u32::try_from(order.len()).unwrap_or(u32::MAX);
        let (progress, began) = (Progress::new(time), Instant::now());
        let mut blocks = Vec::new();
        for (number, kind) in order.iter().enumerate() {
            if interrupt.happened() {
                bail!("stopped early by a signal");
            }
            let list = if kind.is_planned { &lcores.with } else { &lcores.without };
            let name = format!("block {} of {}: {}", number + 1, order.len(), kind.name());
            progress.show(began.elapsed(), &name);
            let words = overloaded.as_ref().filter(|_| kind.is_overloaded).unwrap_or(&self.command);
            let Some((program, words)) = words.split_first() else { bail!("CMD is missing") };
            let placed = ["--lcores", list, "--main-lcore", "0"].map(str::to_owned);
            let command = [&[program.clone()][..], &placed, words].concat();
            let block = self.block(&root, &topology, &command, *kind, interrupt);
            let (block, note) = block.with_context(|| name.clone())?;
            blocks.push(block);
            lcores.notes.extend(note.map(|note| format!("{name}: {note}")));
        }
        if self.cycles < CYCLES_MIN {
            lcores.notes.push(format!("fewer than {CYCLES_MIN} cycles: no comparison"));
        }
        Ok(DpdkScenariosReport {
            schema: DPDK_SCENARIOS_SCHEMA,
            application: self.command.join(" "),
            overloaded: overloaded.map(|words| words.join(" ")),
            target: SocketAddr::new(self.address, self.port).to_string(),
            lcores_without_plan: lcores.without,
            lcores_with_plan: lcores.with,
            cycles: self.cycles,
            block_s: self.block.as_secs_f64(),
            scenarios: dpdk_results(&blocks),
            notes: lcores.notes,
        })
    }

    /// Measures a block; also returns why its bandwidth is unknown.
    fn block(
        &self,
        root: &Root,
        topology: &Topology,
        command: &[String],
        kind: Kind,
        interrupt: &Interrupt,
    ) -> anyhow::Result<(DpdkBlock, Option<String>)> {
        let application = Application {
            command,
            target: SocketAddr::new(self.address, self.port),
            node: None,
            from: self.from.as_ref().map(|from| {
                let Ok(from) = from.parse::<NetnsRef>();
                from
            }),
            request: None,
            rate: self.rate,
            warm_up: self.warm_up,
            duration: self.block,
            patience: PATIENCE,
        };
        application.run(&Binding::default(), interrupt, |pid| {
            let read = || -> anyhow::Result<DpdkReading> {
                read_application(root, pid)
                    .with_context(|| format!("process {pid} has no lcores besides the main one"))
            };
            let mut tasks = Workers::new(root, topology, Options::default());
            // Without it, who ran on the workers' CPUs is unknown.
            let is_observing = tasks.start().is_ok();
            let before = read()?;
            let measured = application.probe(interrupt)?;
            let (bits_per_s, note) = match self.bandwidth.then(|| application.bandwidth(interrupt))
            {
                None => (None, None),
                Some(Ok(bits_per_s)) => (Some(bits_per_s), None),
                // An overloaded application may carry none.
                Some(Err(error)) if kind.is_overloaded => {
                    (None, Some(format!("no bandwidth: {error:#}")))
                }
                Some(Err(error)) => return Err(error),
            };
            let after = read()?;
            let observed = if is_observing { tasks.stop().ok().and_then(observed) } else { None };
            let Kind { is_planned, is_overloaded } = kind;
            let block = DpdkBlock {
                is_planned,
                is_overloaded,
                measured,
                bits_per_s,
                before,
                after,
                observed,
            };
            Ok((block, note))
        })
    }

    /// The plan's lcores, and as many on the lowest CPUs.
    fn lcores(&self, root: &Root, topology: &Topology) -> anyhow::Result<Lcores> {
        let addresses = self.nic.iter().flat_map(|list| list.split(','));
        let mut nics = addresses
            .map(|address| {
                let is_short = address.matches(':').count() == 1;
                let whole = format!("{}{address}", if is_short { "0000:" } else { "" });
                Ok(DpdkNic::from(&network_function(root, &whole.to_ascii_lowercase())?))
            })
            .collect::<anyhow::Result<Vec<DpdkNic>>>()?;
        let mut notes = Vec::new();
        if nics.is_empty() {
            notes.push("without --nic the plan has no node to place workers on".to_owned());
            let address = NO_NIC.to_owned();
            nics.push(DpdkNic { address, driver: None, node: None, vectors: Some(65) });
        }
        let request = Request {
            application: DpdkApplication::Testpmd,
            nics,
            workers: Some(self.workers),
            isolated_rx: false,
            kni: false,
        };
        let plan = plan(topology, &request)?;
        notes.extend(plan.notes.iter().filter(|note| !note.starts_with(NO_NIC)).cloned());
        let list = |cpus: &mut dyn Iterator<Item = u32>| {
            let pairs = (0u32..).zip(cpus).map(|(lcore, cpu)| format!("{lcore}@{cpu}"));
            pairs.collect::<Vec<_>>().join(",")
        };
        let with = list(&mut plan.workers.iter().map(|worker| worker.cpu.0));
        let count = plan.workers.len();
        let without = list(&mut topology.online.iter().take(count).map(|cpu| cpu.0));
        if with == without {
            notes.push(
                "the plan has the lowest CPUs as well: both scenarios are the same".to_owned(),
            );
        }
        Ok(Lcores { without, with, notes })
    }
}

/// What ran on the workers' CPUs, unless that was refused.
fn observed(measurement: Measurement) -> Option<Observed> {
    let is_refused = measurement.cpus.iter().all(|cpu| cpu.idle_ns.is_none());
    let seconds = measurement.duration_s.filter(|_| !is_refused)?;
    Some(Observed { seconds, cpus: measurement.cpus })
}
