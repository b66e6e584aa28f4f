//! `nearpath tune plan --dpdk`: workers of an application on DPDK, with the options and files that start it so.

use crate::failure::{Failure, say};
use crate::output;
use crate::source::Source;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use nearpath_host::workers::read_switch;
use nearpath_host::{Root, Wanted, current_netns, network_function, read_devices};
use nearpath_model::{
    Crossings, DpdkApplication, DpdkNic, DpdkPlan, Goal, PLAN_SCHEMA, Plan, PlannedChange,
};
use nearpath_tune::dpdk::{Request, of_running, plan, plan_ovs};
use nearpath_tune::steering;
use nearpath_views::text;
use std::path::PathBuf;

/// Options of a plan for an application on DPDK.
#[derive(Debug, Args)]
#[command(next_help_heading = "DPDK")]
pub struct DpdkOptions {
    /// Plan the workers of this application on DPDK, for the NICs of --nic; with ovs and without
    /// --nic, the PMD threads of the running Open vSwitch, as changes
    #[arg(long, value_enum, value_name = "APPLICATION")]
    #[arg(conflicts_with_all = ["goal", "pid", "port", "unit", "mode", "irq_cpus", "app_cpus", "exclude_cpus", "channels", "priority", "cpuset", "stop_irqbalance", "napi", "performance", "wakeup_latency", "reasons", "hugepages", "findings"])]
    dpdk: Option<Application>,
    /// Forwarding workers: of dpvs in all, of others for each NIC [default: up to 8]
    #[arg(long, value_name = "N", requires = "dpdk", value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: Option<u32>,
    /// With dpvs: a receiver for each worker, on its SMT sibling or a core of the same node
    #[arg(long, requires = "dpdk")]
    isolated_rx: bool,
    /// With dpvs: a worker for the kernel network interfaces
    #[arg(long, requires = "dpdk")]
    kni: bool,
    /// With dpvs: write netif_defs and worker_defs to this file
    #[arg(short, long, value_name = "FILE", requires = "dpdk")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Application {
    Testpmd,
    Ovs,
    Dpvs,
}

impl DpdkOptions {
    /// Whether such a plan is requested.
    pub(super) fn is_given(&self) -> bool {
        self.dpdk.is_some()
    }

    /// Prints the plan for these NICs.
    pub(super) fn run(&self, nics: &[String], json: bool, source: &Source) -> Result<(), Failure> {
        let application = match self.dpdk {
            Some(Application::Ovs) => DpdkApplication::Ovs,
            Some(Application::Dpvs) => DpdkApplication::Dpvs,
            Some(Application::Testpmd) | None => DpdkApplication::Testpmd,
        };
        if self.output.is_some() && application != DpdkApplication::Dpvs {
            return Err(Failure::Usage("--output is an option of --dpdk dpvs".to_owned()));
        }
        if nics.is_empty() {
            return self.running(application, json, source);
        }
        let nics: Vec<&str> = nics.iter().flat_map(|list| list.split(',')).collect();
        let live = source.is_live();
        let plan = source.read(|root| self.plan(root, application, &nics, live))?;
        if let (Some(path), Some(configuration)) = (&self.output, &plan.configuration) {
            output::file(path, configuration.as_bytes())?;
            say(&format!("wrote {}", path.display()));
        }
        if json {
            return output::json(&plan);
        }
        output::text(&text::dpdk_plan(&plan, self.output.is_some()))
    }

    fn plan(
        &self,
        root: &Root,
        application: DpdkApplication,
        nics: &[&str],
        live: bool,
    ) -> anyhow::Result<DpdkPlan> {
        let host = nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
        let nics = nics.iter().map(|address| function(root, address)).collect::<Result<_, _>>()?;
        let (workers, isolated_rx, kni) = (self.workers, self.isolated_rx, self.kni);
        let request = Request { application, nics, workers, isolated_rx, kni };
        let mut plan = plan(&host.topology, &request)?;
        if application == DpdkApplication::Ovs
            && let Ok(switch) = read_switch(root)
        {
            let changes = of_running(&mut plan, &switch);
            plan.changes = Some(as_plan(root, changes, Vec::new(), live)?);
        }
        Ok(plan)
    }

    /// Prints a plan for the running Open vSwitch.
    fn running(
        &self,
        application: DpdkApplication,
        json: bool,
        source: &Source,
    ) -> Result<(), Failure> {
        if application != DpdkApplication::Ovs {
            let usage = "--dpdk testpmd and --dpdk dpvs require --nic with PCI addresses";
            return Err(Failure::Usage(usage.to_owned()));
        }
        let live = source.is_live();
        let plan = source.read(|root| self.plan_running(root, live))?;
        if json { output::json(&plan) } else { output::text(&text::plan(&plan)) }
    }

    fn plan_running(&self, root: &Root, live: bool) -> anyhow::Result<Plan> {
        let host = nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
        let switch = read_switch(root).context("cannot read Open vSwitch; is it running?")?;
        let (changes, notes) = plan_ovs(&switch, &host.topology, self.workers)?;
        as_plan(root, changes, notes, live)
    }
}

/// Changes of Open vSwitch as a plan, which applies in this boot if it is for this host.
fn as_plan(
    root: &Root,
    changes: Vec<PlannedChange>,
    notes: Vec<String>,
    live: bool,
) -> anyhow::Result<Plan> {
    Ok(Plan {
        schema: PLAN_SCHEMA,
        goal: Goal::Latency,
        boot: if live { Some(steering::boot(root)?) } else { None },
        made_ticks: None,
        netns: current_netns(root).inode,
        changes,
        now: Crossings::default(),
        predicted: Crossings::default(),
        notes,
    })
}

/// The function at an address; a domain of 0000 may be left out.
fn function(root: &Root, address: &str) -> anyhow::Result<DpdkNic> {
    let whole = if address.matches(':').count() == 1 {
        format!("0000:{address}")
    } else {
        address.to_owned()
    };
    match network_function(root, &whole.to_ascii_lowercase()) {
        Ok(function) => Ok(DpdkNic::from(&function)),
        Err(error) => {
            let known: Vec<String> =
                read_devices(root).into_iter().take(16).map(|nic| nic.address).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            bail!("{error}; network functions: {known}")
        }
    }
}
