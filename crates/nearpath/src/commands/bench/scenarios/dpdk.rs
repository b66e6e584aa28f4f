//! `bench scenarios --dpdk`: an application on DPDK with the lcores of a plan and without, in alternating blocks.

use super::Scenarios;
use super::application::Application;
use crate::interrupt::Interrupt;
use crate::session::Progress;
use anyhow::{Context, bail};
use nearpath_host::{NetnsRef, Root, Wanted, network_function};
use nearpath_model::{DpdkApplication, DpdkNic};
use nearpath_trial::comparison::CYCLES_MIN;
use nearpath_trial::dpdk::{
    DPDK_SCENARIOS_SCHEMA, DpdkBlock, DpdkReading, DpdkScenariosReport, dpdk_results,
    read_application,
};
use nearpath_trial::process::Binding;
use nearpath_trial::scenarios::{Scenario, order};
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

impl Scenarios {
    pub(super) fn measure_dpdk(
        &self,
        interrupt: &Interrupt,
    ) -> anyhow::Result<DpdkScenariosReport> {
        let Some((program, words)) = self.command.split_first() else { bail!("CMD is missing") };
        let eal = words.split(|word| word == "--").next().unwrap_or_default();
        let is_placing = |word: &&String| {
            let name = word.split('=').next().unwrap_or_default();
            PLACING.contains(&name)
        };
        if let Some(word) = eal.iter().find(is_placing) {
            bail!("{word}: --dpdk places the lcores itself");
        }
        let root = Root::live();
        let mut lcores = self.lcores(&root)?;
        let order = order(&[Scenario::NoBinding, Scenario::FullOptimisation], self.cycles);
        let time = (self.block + self.warm_up) * u32::try_from(order.len()).unwrap_or(u32::MAX);
        let (progress, began) = (Progress::new(time), Instant::now());
        let mut blocks = Vec::new();
        for (number, scenario) in order.iter().enumerate() {
            if interrupt.happened() {
                bail!("stopped early by a signal");
            }
            let is_planned = *scenario == Scenario::FullOptimisation;
            let (list, name) =
                if is_planned { (&lcores.with, "with") } else { (&lcores.without, "without") };
            let (number, all) = (number + 1, order.len());
            let name = format!("block {number} of {all}: {name} the plan");
            progress.show(began.elapsed(), &name);
            let placed = ["--lcores", list, "--main-lcore", "0"].map(str::to_owned);
            let command = [&[program.clone()][..], &placed, words].concat();
            blocks.push(self.block(&root, &command, is_planned, interrupt).context(name)?);
        }
        if self.cycles < CYCLES_MIN {
            lcores.notes.push(format!("fewer than {CYCLES_MIN} cycles: no comparison"));
        }
        Ok(DpdkScenariosReport {
            schema: DPDK_SCENARIOS_SCHEMA,
            application: self.command.join(" "),
            target: SocketAddr::new(self.address, self.port).to_string(),
            lcores_without_plan: lcores.without,
            lcores_with_plan: lcores.with,
            cycles: self.cycles,
            block_s: self.block.as_secs_f64(),
            scenarios: dpdk_results(&blocks),
            notes: lcores.notes,
        })
    }

    fn block(
        &self,
        root: &Root,
        command: &[String],
        is_planned: bool,
        interrupt: &Interrupt,
    ) -> anyhow::Result<DpdkBlock> {
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
                    .with_context(|| format!("process {pid} has no lcores beside the main one"))
            };
            let before = read()?;
            let measured = application.probe(interrupt)?;
            Ok(DpdkBlock { is_planned, measured, before, after: read()? })
        })
    }

    /// The plan's lcores, and as many on the lowest CPUs.
    fn lcores(&self, root: &Root) -> anyhow::Result<Lcores> {
        let host = nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
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
        let plan = plan(&host.topology, &request)?;
        notes.extend(plan.notes.iter().filter(|note| !note.starts_with(NO_NIC)).cloned());
        let list = |cpus: &mut dyn Iterator<Item = u32>| {
            let pairs = (0u32..).zip(cpus).map(|(lcore, cpu)| format!("{lcore}@{cpu}"));
            pairs.collect::<Vec<_>>().join(",")
        };
        let with = list(&mut plan.workers.iter().map(|worker| worker.cpu.0));
        let count = plan.workers.len();
        let without = list(&mut host.topology.online.iter().take(count).map(|cpu| cpu.0));
        if with == without {
            notes.push(
                "the plan has the lowest CPUs as well: both scenarios are the same".to_owned(),
            );
        }
        Ok(Lcores { without, with, notes })
    }
}
