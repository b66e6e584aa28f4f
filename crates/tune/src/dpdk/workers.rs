//! The workers of a plan: how many, on which CPUs, with which queues.

use super::cores::{Core, Cores, Taker};
use super::{DpdkError, Request};
use nearpath_model::{
    CpuId, CpuSet, DpdkApplication, DpdkNic, DpdkWorker, DpvsRole, NodeId, Topology,
};
use std::collections::BTreeMap;

/// Queues of a port in DPVS.
const DPVS_QUEUES: u32 = 16;
/// Workers, if the user does not say how many.
const DEFAULT_WORKERS: u32 = 8;
/// Lcores of EAL without the master.
const LCORES: u32 = nearpath_model::eal::MAX_LCORES - 1;

/// The workers, and what could not be as requested.
#[derive(Debug)]
pub(super) struct Assignment {
    pub workers: Vec<DpdkWorker>,
    /// Queues of each NIC.
    pub queues: u32,
    pub notes: Vec<String>,
    /// CPUs of the first core.
    pub first_core: CpuSet,
}

/// Assigns workers. DPVS's serve all NICs, those of other applications one.
pub(super) fn assign(
    topology: &Topology,
    nics: &[DpdkNic],
    request: &Request,
) -> Result<Assignment, DpdkError> {
    let mut notes = Vec::new();
    let is_dpvs = request.application == DpdkApplication::Dpvs;
    let (limit, has_kni) = queue_limit(nics, request, &mut notes);
    let request = &Request { kni: has_kni, ..request.clone() };
    let mut most = request.workers.unwrap_or(DEFAULT_WORKERS).clamp(1, limit);
    if !is_dpvs {
        most = most.min(LCORES / u32::try_from(nics.len()).unwrap_or(u32::MAX).max(1)).max(1);
    }
    let mut cores = Cores::new(topology);
    let first_core = cores.first();
    for (remote, first) in [(false, false), (true, false), (true, true)] {
        (cores.is_remote_allowed, cores.is_first_allowed) = (remote, first);
        for count in counts(most, is_dpvs) {
            let Some(workers) = layout(cores.clone(), nics, request, count) else { continue };
            if let Some(wanted) = request.workers.filter(|wanted| *wanted > count) {
                notes.push(fewer(wanted, count, limit, most, is_dpvs));
            }
            if first {
                notes
                    .push("the master is on the host's first core, as no other is free".to_owned());
            }
            let queues = count + u32::from(has_kni);
            return Ok(Assignment { workers, queues, notes, first_core });
        }
    }
    Err(DpdkError::TooFewCores { online: topology.online.len() })
}

/// The numbers of workers to try, most first.
fn counts(most: u32, is_power_of_two: bool) -> Vec<u32> {
    (1..=most).rev().filter(|count| !is_power_of_two || count.is_power_of_two()).collect()
}

fn fewer(wanted: u32, count: u32, limit: u32, most: u32, is_dpvs: bool) -> String {
    let reason = if most < wanted && limit == most {
        "of the NIC's queues"
    } else if is_dpvs && count == 1 << most.ilog2() {
        "DPVS wastes ports of FullNAT addresses unless their number is a power of two"
    } else {
        "no more cores are free near the NIC"
    };
    format!("{count} worker{} instead of {wanted}: {reason}", if count == 1 { "" } else { "s" })
}

/// Workers for which each NIC has a queue, and whether there is one for KNI as well.
fn queue_limit(nics: &[DpdkNic], request: &Request, notes: &mut Vec<String>) -> (u32, bool) {
    let mut limit = if request.application == DpdkApplication::Dpvs { DPVS_QUEUES } else { LCORES };
    for nic in nics {
        match nic.vectors {
            // One vector is for link and other events; a function without MSI-X has one queue.
            Some(vectors) => limit = limit.min(vectors.saturating_sub(1).max(1)),
            None => notes.push(format!(
                "{}: the number of queues is unknown; check max_rx_queues before use",
                nic.address
            )),
        }
    }
    if request.kni && limit < 2 {
        notes.push("no KNI worker: it needs a queue of its own, and a NIC has one only".to_owned());
        return (limit, false);
    }
    (limit - u32::from(request.kni), request.kni)
}

/// A layout with `count` workers a NIC (or for all of them), if there are enough cores.
fn layout(
    mut cores: Cores<'_>,
    nics: &[DpdkNic],
    request: &Request,
    count: u32,
) -> Option<Vec<DpdkWorker>> {
    let node = nics.first().and_then(|nic| nic.node);
    // The master first: next to the core that is left to the system.
    let core = cores.take(node, Taker::Master)?;
    let mut workers = vec![worker(0, &core, DpvsRole::Master, node)];
    let all: Vec<u32> = (0..u32::try_from(nics.len()).ok()?).collect();
    let is_dpvs = request.application == DpdkApplication::Dpvs;
    let mut spare: Vec<Option<(CpuId, Core)>> = Vec::new();
    for queue in 0..count {
        // testpmd gives its streams to lcores by queue, then port.
        let groups: Vec<Vec<u32>> =
            if is_dpvs { vec![all.clone()] } else { all.iter().map(|nic| vec![*nic]).collect() };
        for group in groups {
            let near = group.first().and_then(|nic| nics.get(*nic as usize)?.node);
            let near = if is_dpvs { node } else { near };
            let core = cores.take(near, Taker::Worker)?;
            let mut new = worker(next(&workers), &core, DpvsRole::Forwarding, near);
            new.queues = group.iter().map(|nic| (*nic, vec![queue])).collect();
            spare.push(core.cpus.get(1).map(|cpu| (*cpu, core.clone())));
            workers.push(new);
        }
    }
    if is_dpvs && request.kni {
        let core = cores.take(node, Taker::Worker)?;
        let mut kni = worker(next(&workers), &core, DpvsRole::Kni, node);
        kni.queues = all.iter().map(|nic| (*nic, vec![count])).collect();
        workers.push(kni);
    }
    if is_dpvs && request.isolated_rx {
        for (index, sibling) in spare.into_iter().enumerate() {
            let (cpu, core, is_sibling) = match sibling {
                Some((cpu, core)) => (cpu, core, true),
                None => {
                    let core = cores.take(node, Taker::Worker)?;
                    (*core.cpus.first()?, core, false)
                }
            };
            let lcore = next(&workers);
            let forwarding = workers.get_mut(index + 1)?;
            forwarding.partner = Some(lcore);
            let queues: BTreeMap<u32, Vec<u32>> = forwarding.queues.clone();
            let partner = forwarding.lcore;
            let mut new = worker(lcore, &core, DpvsRole::IsolatedRx, node);
            new.cpu = cpu;
            new.siblings = core.cpus.iter().copied().filter(|other| *other != cpu).collect();
            new.why = if is_sibling {
                format!("SMT sibling of lcore {partner}, for which it receives")
            } else {
                format!("receives for lcore {partner}; {}", place(&core, node))
            };
            new.queues = queues;
            new.partner = Some(partner);
            workers.push(new);
        }
    }
    Some(workers)
}

fn next(workers: &[DpdkWorker]) -> u32 {
    u32::try_from(workers.len()).unwrap_or(u32::MAX)
}

fn worker(lcore: u32, core: &Core, role: DpvsRole, near: Option<NodeId>) -> DpdkWorker {
    let cpu = core.cpus.first().copied().unwrap_or(CpuId(0));
    let siblings: CpuSet = core.cpus.iter().copied().filter(|other| *other != cpu).collect();
    let why = match role {
        DpvsRole::Master => format!("next to the system's cores; {}", place(core, near)),
        DpvsRole::Kni => format!("a core of its own; {}", place(core, near)),
        _ => format!("one worker a core; {}", place(core, near)),
    };
    let (node, queues) = (core.node, BTreeMap::new());
    DpdkWorker { lcore, cpu, node, siblings, role, queues, partner: None, why }
}

fn place(core: &Core, near: Option<NodeId>) -> String {
    match (near, core.node) {
        (Some(near), Some(node)) if near == node => format!("on node {node} of the NIC"),
        (Some(near), Some(node)) => {
            format!("on node {node}, as node {near} of the NIC has no free core")
        }
        (Some(near), None) => format!("its node is unknown, the NIC is on node {near}"),
        (None, _) => "the NIC's node is unknown".to_owned(),
    }
}
