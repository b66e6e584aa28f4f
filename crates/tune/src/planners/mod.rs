//! Planners. Input: facts, findings and a goal. Output: a plan. Nothing here accesses the host.
//!
//! ```text
//! host, findings, request, workloads ──> Situation ──> PLANNERS, each into the Draft ──> Plan
//! ```
//! They run in the order of [`PLANNERS`], and each sees the plans of the earlier ones: XPS follows the interrupts, and
//! threads go where no interrupt is.

mod arfs;
mod byte_queue_limit;
mod cgroup_state;
mod channels;
mod command_line;
mod containers;
mod cpu_allocator;
mod cpuset;
mod draft;
mod drop_in;
mod exclusive_cpus;
mod gro_flush_timeout;
mod halt_polling;
mod hugepages;
mod irqbalance;
mod isolation;
mod memory;
mod mode;
mod napi;
mod napi_defer_hard_irqs;
mod needless;
mod nic_irqs;
mod power;
mod predict;
mod priority;
mod priority_egress;
mod priority_xdp;
mod proposals;
mod reasons;
mod reuseport;
mod rings_and_coalescing;
mod rps;
mod rss;
mod schedule;
mod situation;
mod sysctls;
mod system;
mod target_node;
mod thread_affinity;
mod traffic;
mod tx_queue_len;
mod vm_threads;
mod workload;
mod xps;

pub use channels::ChannelCount;
pub use command_line::BootParameter;
pub use hugepages::Hugepages;
pub use mode::Mode;
pub use napi::Napi;
pub use schedule::{Schedule, ScheduleRule};
pub use situation::Request;
pub(crate) use situation::version;
pub use system::System;
pub use traffic::Traffic;
pub use workload::{Worker, Workload, workloads};

use crate::{TuneError, exporters};
use draft::Draft;
use nearpath_model::units::percent;
use nearpath_model::{Finding, Host, PLAN_SCHEMA, Plan, PlannedChange, Target};
use situation::Situation;

/// A planner; one per file.
#[derive(Debug, Clone, Copy)]
pub struct Planner {
    /// Its name.
    pub name: &'static str,
    /// One line on what it plans.
    pub plans: &'static str,
    run: fn(&Situation<'_>, &mut Draft),
}

/// All planners, in the order in which they run.
pub const PLANNERS: &[Planner] = &[
    channels::PLANNER,
    rings_and_coalescing::PLANNER,
    priority::PLANNER,
    schedule::PLANNER,
    nic_irqs::PLANNER,
    cpuset::PLANNER,
    thread_affinity::PLANNER,
    vm_threads::PLANNER,
    memory::PLANNER,
    drop_in::PLANNER,
    reuseport::PLANNER,
    rss::PLANNER,
    rps::PLANNER,
    xps::PLANNER,
    tx_queue_len::PLANNER,
    byte_queue_limit::PLANNER,
    halt_polling::PLANNER,
    gro_flush_timeout::PLANNER,
    napi_defer_hard_irqs::PLANNER,
    napi::PLANNER,
    sysctls::PLANNER,
    hugepages::PLANNER,
    isolation::PLANNER,
    command_line::PLANNER,
    power::PLANNER,
    irqbalance::PLANNER,
    proposals::PLANNER,
    reasons::PLANNER,
];

/// The request with the interfaces that packets of the named ones come through.
fn with_lower(host: &Host, request: &Request, draft: &mut Draft) -> Result<Request, TuneError> {
    let mut nics: Vec<String> = Vec::new();
    for name in &request.nics {
        let all = host.with_lower(name);
        if all.is_empty() {
            return Err(TuneError::Refused(format!("no interface {name:?}")));
        }
        nics.extend(all.into_iter().map(|nic| nic.name.clone()));
    }
    nics.sort_unstable();
    nics.dedup();
    for nic in &host.nics {
        let is_planned = request.nics.is_empty() || nics.contains(&nic.name);
        if let Some(vf) = host.data_path_of(nic).filter(|_| is_planned) {
            draft.note(format!(
                "{}: {} carries its packets: nothing is planned for its own queues",
                nic.name, vf.name
            ));
        }
    }
    Ok(Request { nics, ..request.clone() })
}

/// Plans for a host. `findings` are those of its diagnosis; `boot` and `netns` restrict where the plan may be
/// applied.
///
/// # Errors
/// The request names something that does not exist, or the plan would only move the problem elsewhere.
pub fn plan(
    host: &Host,
    findings: &[Finding],
    request: &Request,
    workloads: &[Workload],
    boot: Option<String>,
    netns: Option<u64>,
) -> Result<Plan, TuneError> {
    let mut draft = Draft::default();
    let request = &with_lower(host, request, &mut draft)?;
    let mut situation = Situation::new(host, findings, request, workloads)?;
    for name in situation.requested_down() {
        draft.note(format!("{name} is down and carries no packets: nothing is planned for it"));
    }
    mode::notes(&situation, &mut draft);
    exclusive_cpus::notes(&situation, &mut draft);
    for planner in PLANNERS {
        (planner.run)(&situation, &mut draft);
        // The future queues of these are unknown.
        situation.exclude(draft.queues_reset());
    }
    daemons(&situation, &mut draft);
    let (mut changes, mut notes) = draft.finish();
    let now = predict::crossings(&situation);
    let effects = predict::effects(&situation, &changes);
    let predicted = effects.last().copied().unwrap_or(now);
    if workloads.is_empty()
        && let Some(reason) = needless::reason(host, request, findings, &changes, &now, &predicted)
    {
        changes.clear();
        notes.insert(0, reason);
    }
    for (change, effect) in changes.iter_mut().zip(effects) {
        change.predicted = Some(effect);
    }
    if let (Some(before), Some(after)) = (now.other_node, predicted.other_node)
        && after > before + f64::EPSILON
    {
        let what = format!(
            "with the plan {} of packets would cross to another node, instead of {}",
            percent(after),
            percent(before)
        );
        if request.priorities.is_empty() {
            return Err(TuneError::Refused(format!(
                "{what}: it only moves the problem elsewhere; choose other CPUs or NICs"
            )));
        }
        // The CPU was requested.
        notes.push(format!("{what}, as requested with --priority"));
    }
    changes.iter_mut().for_each(|change| carry(host, change));
    let goal = request.goal;
    Ok(Plan {
        schema: PLAN_SCHEMA,
        goal,
        boot,
        made_ticks: None,
        netns,
        changes,
        now,
        predicted,
        notes,
    })
}

/// Adds what identifies an interrupt in another boot, and the formats that can make a change survive a reboot.
fn carry(host: &Host, change: &mut PlannedChange) {
    if let Target::File(file) = &mut change.target {
        file.interrupt = file.irq().and_then(|number| host.name_of_irq(number));
    }
    change.persist = exporters::means(change);
    if !change.target.takes_effect_immediately() {
        change.persist.insert(0, "file".to_owned());
    }
}

/// Notes on daemons that work against the plan.
fn daemons(situation: &Situation<'_>, draft: &mut Draft) {
    let daemons = &situation.host.daemons;
    if daemons.tuned == Some(true) && !draft.is_empty() {
        let profile = daemons.tuned_profile.as_deref().unwrap_or("unknown");
        draft.note(format!(
            "tuned is running (profile {profile}) and may override some of these settings"
        ));
    }
}

#[cfg(test)]
mod ethtool_tests;
#[cfg(test)]
mod mode_tests;
#[cfg(test)]
mod placement_tests;
#[cfg(test)]
mod schedule_tests;
#[cfg(test)]
mod tcp_tests;
#[cfg(test)]
mod tests;
