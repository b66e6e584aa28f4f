//! Plans workers of an application on DPDK: testpmd, Open vSwitch, or DPVS (DPVS's guide to worker tuning).
//!
//! Input: a host's topology, PCI functions, a request. Output: a [`DpdkPlan`]: workers by lcore id, and the options,
//! commands and files that start the application so, each with its reason. Pure; nothing is changed. What is written
//! for DPVS passes [`crate::dpvs::check`].

mod commands;
mod cores;
mod dpvs_conf;
mod memory;
mod ovs_pmds;
mod workers;

pub use ovs_pmds::{check_ovs, of_running, plan_ovs};

use crate::dpvs::MAX_NODES;
use nearpath_model::eal::{Lcores, write_lcores};
use nearpath_model::{
    DPDK_PLAN_SCHEMA, DpdkApplication, DpdkNic, DpdkPlan, DpvsRole, NodeId, Topology,
};
use std::collections::BTreeSet;
use workers::Assignment;

/// NICs: ports of DPVS (`NETIF_MAX_RTE_PORTS`), and more than any host has.
const MAX_NICS: usize = 64;

/// What to plan.
#[derive(Debug, Clone)]
pub struct Request {
    /// The application.
    pub application: DpdkApplication,
    /// The NICs, in any order.
    pub nics: Vec<DpdkNic>,
    /// Forwarding workers: of DPVS in all, of other applications for each NIC; by default up to 8.
    pub workers: Option<u32>,
    /// With DPVS: a receiver for each worker.
    pub isolated_rx: bool,
    /// With DPVS: a worker for the kernel network interfaces.
    pub kni: bool,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DpdkError {
    /// A master and a worker need a core each.
    #[error("too few cores: a master and a worker need one each, and {online} CPUs are online")]
    TooFewCores {
        /// CPUs online.
        online: usize,
    },
    /// No NIC, or one twice.
    #[error("NICs must be given once each: {0}")]
    Nics(String),
    /// ovs-vswitchd is not running, or its control socket does not answer.
    #[error("ovs-vswitchd does not report its PMD threads")]
    NoThreads,
    /// Nothing for PMD threads to poll.
    #[error("Open vSwitch has no port that PMD threads poll; plan for new ones with --nic")]
    NoPorts,
    /// An option of DPVS.
    #[error("{0} is an option of dpvs")]
    OnlyDpvs(&'static str),
}

/// Makes a plan.
///
/// # Errors
/// There are too few cores, a NIC is named twice or none, or an option does not belong to the application.
pub fn plan(topology: &Topology, request: &Request) -> Result<DpdkPlan, DpdkError> {
    let application = request.application;
    let is_dpvs = application == DpdkApplication::Dpvs;
    for (is_given, option) in [(request.isolated_rx, "--isolated-rx"), (request.kni, "--kni")] {
        if is_given && !is_dpvs {
            return Err(DpdkError::OnlyDpvs(option));
        }
    }
    let mut nics = request.nics.clone();
    nics.sort_by_key(|nic| address_key(&nic.address));
    let repeated = nics.windows(2).find_map(|pair| match pair {
        [a, b] if a.address == b.address => Some(a.address.clone()),
        _ => None,
    });
    match repeated {
        Some(address) => return Err(DpdkError::Nics(address)),
        None if nics.len() > MAX_NICS => {
            return Err(DpdkError::Nics(format!("more than {MAX_NICS}")));
        }
        None if nics.is_empty() => return Err(DpdkError::Nics("there is none".to_owned())),
        None => (),
    }
    let Assignment { workers, queues, mut notes, first_core } =
        workers::assign(topology, &nics, request)?;
    notes.extend(general_notes(topology, &nics, request));
    let near: BTreeSet<NodeId> = nics
        .iter()
        .filter_map(|nic| nic.node)
        .chain(workers.iter().filter_map(|w| w.node))
        .collect();
    let (ports, lcores) = (nics.len() as u64, workers.len() as u64);
    let hugepages = memory::hugepages(application, topology, &near, ports, lcores);
    let ids: Lcores = workers.iter().map(|w| (w.lcore, [w.cpu].into_iter().collect())).collect();
    let is_ovs = application == DpdkApplication::Ovs;
    let eal =
        if is_ovs { Vec::new() } else { commands::eal(&write_lcores(&ids), &nics, &hugepages) };
    let arguments = match application {
        DpdkApplication::Testpmd => commands::testpmd(&workers, queues),
        DpdkApplication::Ovs | DpdkApplication::Dpvs => Vec::new(),
    };
    let mut steps = commands::prepare(&nics, &hugepages);
    if is_ovs {
        steps.extend(commands::ovs(&nics, &workers, queues, &hugepages));
    }
    if workers.iter().any(|worker| worker.role == DpvsRole::Kni) {
        steps.extend(commands::kni_flows(&nics));
    }
    Ok(DpdkPlan {
        schema: DPDK_PLAN_SCHEMA,
        application,
        queues,
        configuration: is_dpvs.then(|| dpvs_conf::write(&nics, queues, &workers)),
        kernel_command_line: commands::kernel_command_line(
            &workers,
            &first_core,
            topology,
            &hugepages,
        ),
        unit: commands::unit(application, &eal, &arguments, &workers),
        commands: steps,
        changes: None,
        nics,
        workers,
        eal,
        arguments,
        hugepages,
        notes,
    })
}

fn general_notes(topology: &Topology, nics: &[DpdkNic], request: &Request) -> Vec<String> {
    let mut notes = Vec::new();
    let nodes: BTreeSet<NodeId> = nics.iter().filter_map(|nic| nic.node).collect();
    for nic in nics.iter().filter(|nic| nic.node.is_none()) {
        notes.push(format!(
            "{}: its node is unknown; virtual machines often do not report it",
            nic.address
        ));
    }
    if request.application == DpdkApplication::Dpvs {
        if nodes.len() > 1 {
            notes.push(
                "the NICs are on several nodes, and each worker of DPVS serves all: run one DPVS per node, or move \
                 the NICs"
                    .to_owned(),
            );
        }
        let last = topology.nodes.iter().map(|node| node.node.0).max().unwrap_or(0);
        if last >= MAX_NODES {
            notes.push(format!(
                "the host has nodes up to {last}: DPVS refuses more than {MAX_NODES} nodes unless built with a larger \
                 DPVS_MAX_SOCKET"
            ));
        }
    }
    if request.kni {
        notes.push(
            "KNI is gone since DPDK 23.11: there DPVS uses virtio-user, whose vhost threads need CPUs beside the \
             workers' (the first core's)"
                .to_owned(),
        );
    }
    notes
}

/// Domain, bus, device and function as numbers: a domain may have more than four digits.
fn address_key(address: &str) -> (u64, String) {
    let domain = address.split(':').next().and_then(|d| u64::from_str_radix(d, 16).ok());
    (domain.unwrap_or(u64::MAX), address.to_owned())
}
