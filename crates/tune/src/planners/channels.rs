//! The number of channels: one for each core near the NIC.
//!
//! Input: the current and maximum channels of a NIC, and the CPUs near it. Output: a change of `combined` if more
//! channels would let more cores receive: for the goal throughput, or if a check found one CPU overloaded while
//! others near the NIC have no queue; and any number requested. Where interrupts have CPUs of their own on request, there
//! are as many channels as such CPUs; else fewer are planned only on request: queues that share a CPU cost almost nothing.
//!
//! When the number of channels changes, the driver re-creates its queues: the new interrupts, indirection table, XPS
//! and RPS are not known beforehand. So nothing else is planned for such a NIC; a note says to plan again. Undo
//! restores the settings of the queues.
//!
//! Rules: Documentation/networking/scaling.rst (a receive queue for each CPU, or for each cache),
//! ethtool(8) `-L`.

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::{Situation, cpus};
use nearpath_model::{CpuId, Ethtool, Goal, Nic, NicSetting, Severity};
use std::collections::BTreeSet;

pub(super) const PLANNER: Planner =
    Planner { name: "channels", plans: "the number of channels, one per near core", run };

/// The number of channels requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelCount {
    /// This number.
    Number(u32),
    /// One per core near the NIC.
    Near,
    /// As many as there are.
    Keep,
}

/// The number of channels, the reason, and the check that proposed it.
type Wanted = (u32, String, Option<String>);

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    for nic in situation.hardware() {
        let channels = nic.channels.unwrap_or_default();
        let (Some(now), Some(most)) = (channels.combined, channels.combined_max) else {
            if situation.request.channels.is_some() {
                draft.note(format!("the driver of {} does not report combined channels", nic.name));
            }
            continue;
        };
        if let Some((wanted, why, finding)) = wanted(situation, draft, nic, now, most)
            && wanted != now
        {
            change(draft, nic, now, wanted, why, finding);
        }
    }
}

/// The channels that a NIC should have; `None` if these are well.
fn wanted(
    situation: &Situation<'_>,
    draft: &mut Draft,
    nic: &Nic,
    now: u32,
    most: u32,
) -> Option<Wanted> {
    let name = &nic.name;
    let cores = cores(situation, nic);
    match situation.request.channels {
        Some(ChannelCount::Number(number)) if number > most => {
            draft.note(format!("{name} supports at most {most} channels, not {number}"));
            return None;
        }
        Some(ChannelCount::Number(number)) => {
            let why = format!("requested; {name} has {now} of at most {most} channels");
            return Some((number, why, None));
        }
        Some(ChannelCount::Keep) => return None,
        _ => {}
    }
    if let Some(found) = of_irq_cpus(situation, nic, now, most) {
        return found;
    }
    let near = cores.min(most).max(1);
    let why = format!(
        "{cores} cores near {name} can receive, but it has {now} of at most {most} channels"
    );
    if situation.request.channels == Some(ChannelCount::Near) {
        return Some((near, why, None));
    }
    // One CPU is not enough for what its queues receive now.
    let proposed = situation.proposed(&NicSetting::new(name, Ethtool::Channels).into());
    let overloaded = proposed.filter(|(finding, _)| finding.severity > Severity::Info);
    let check = overloaded.map(|(finding, _)| finding.check.clone());
    let more = near > now;
    match check {
        Some(_) if more => Some((near, why, check)),
        _ if more && situation.request.goal == Goal::Throughput => Some((near, why, None)),
        _ => None,
    }
}

/// One channel for each CPU for interrupts, with the reason, if interrupts have CPUs of their own and the number follows:
/// more only if these CPUs are few because they were chosen, not what others leave.
fn of_irq_cpus(
    situation: &Situation<'_>,
    nic: &Nic,
    now: u32,
    most: u32,
) -> Option<Option<Wanted>> {
    let division = situation.division(nic.numa_node);
    if !situation.queues_follow() || !division.is_apart() || division.irq.is_empty() {
        return None;
    }
    let wanted = u32::try_from(division.irq.len()).unwrap_or(u32::MAX).min(most).max(1);
    let are_chosen = situation.request.irq_cpus.is_some() || division.why.is_some();
    let why = format!(
        "its interrupts go to {} only, and it has {now} of at most {most} channels",
        cpus(&division.irq.iter().copied().collect())
    );
    Some((wanted < now || are_chosen).then_some((wanted, why, None)))
}

/// The cores for the interrupts of a NIC, shared with other NICs that have the same cores.
fn cores(situation: &Situation<'_>, nic: &Nic) -> u32 {
    let pool = situation.interrupt_cpus(nic);
    let core = |cpu: &CpuId| {
        let facts = situation.host.topology.cpu(*cpu);
        facts.and_then(|facts| facts.siblings.first()).unwrap_or(*cpu)
    };
    let cores = pool.iter().map(core).collect::<BTreeSet<CpuId>>().len();
    let sharing = situation.hardware().filter(|nic| situation.interrupt_cpus(nic) == pool).count();
    u32::try_from(cores / sharing.max(1)).unwrap_or(u32::MAX)
}

fn change(
    draft: &mut Draft,
    nic: &Nic,
    now: u32,
    wanted: u32,
    why: String,
    finding: Option<String>,
) {
    let name = &nic.name;
    draft.add(DraftChange {
        id: format!("{name}/channels"),
        target: NicSetting::new(name, Ethtool::Channels).into(),
        before: format!("combined {now}").into(),
        after: format!("combined {wanted}").into(),
        why,
        finding,
    });
    draft.mark_queues_reset(nic.ifindex);
    draft.note(format!(
        "changing the channels of {name} re-creates its queues: nothing else is planned for it; apply \
         this, then plan again"
    ));
}
