//! REUSEPORT steering of the requested ports: a connection goes to the worker nearest to the receiving CPU.
//!
//! Input: the groups with their workers, and the affinity planned by `thread_affinity`. Output: a change of each group
//! whose workers are on separate CPUs; for others, a note with the reason.
//!
//! Rules: socket(7) SO_ATTACH_REUSEPORT_EBPF, Cloudflare's "Perfect locality", and those of `nearpath steer`
//! (`crate::steering`).

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use crate::steering::{self, Found, Method};
use nearpath_instruments::ReuseportProgram;
use nearpath_model::{CpuSet, SocketProtocol};
use std::collections::BTreeSet;

pub(super) const PLANNER: Planner = Planner {
    name: "reuseport",
    plans: "connections of a REUSEPORT group to the nearest worker (--port)",
    run,
};

/// The name of the program in `bpf/steer.bpf.c`, as truncated by the kernel.
const OURS: &str = "nearpath_steer";

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    match situation.request.system.groups() {
        Ok(groups) => {
            for found in groups {
                if let Err(reason) = plan(situation, draft, found) {
                    draft.note(format!("not steered to the nearest worker: {reason}"));
                }
            }
        }
        Err(reason) => draft.note(format!("REUSEPORT groups are unknown: {reason}")),
    }
}

fn plan(situation: &Situation<'_>, draft: &mut Draft, found: &Found) -> Result<(), String> {
    let ours = |program: &ReuseportProgram| matches!(program, ReuseportProgram::Ebpf { name, .. } if name == OURS);
    if found.sockets < 2 || found.program.as_ref().is_some_and(ours) {
        return Ok(());
    }
    let mut found = found.clone();
    for worker in found.group.sockets.iter_mut().flat_map(|socket| &mut socket.workers) {
        if let (Some(tid), Some(cpus)) = (worker.tid, &mut worker.cpus) {
            *cpus = draft.thread_cpus(tid, cpus).clone();
        }
    }
    let local = found.group.local;
    let places: BTreeSet<Vec<Option<&CpuSet>>> = found
        .group
        .sockets
        .iter()
        .map(|socket| socket.workers.iter().map(|worker| worker.cpus.as_ref()).collect())
        .collect();
    if places.len() == 1 {
        return Err(format!(
            "{local}: all workers may run on the same CPUs, so none is nearest; pin each to its own \
             CPU"
        ));
    }
    let change = steering::plan(&situation.host.topology, &found, Method::Nearest)
        .map_err(|error| error.to_string())?;
    let protocol = match found.group.protocol {
        SocketProtocol::Tcp => "tcp",
        SocketProtocol::Udp => "udp",
    };
    draft.add(DraftChange {
        id: format!("reuseport-{protocol}-{local}"),
        target: change.target,
        before: change.before,
        after: change.after,
        why: change.why,
        finding: situation.asked_to_steer(found.group.protocol, local.port()),
    });
    Ok(())
}
