//! The number of channels: one for each core near the NIC.
//!
//! In go the channels that a NIC has and may have, and the CPUs near it. Out comes a change of
//! `combined` where more channels would let more cores receive: for the goal of throughput, or where a
//! check found one CPU overloaded while others near the NIC have no queue; and whatever was asked for.
//! Fewer are planned only when asked for: queues that share a CPU cost next to nothing.
//!
//! With another number of channels a driver makes its queues anew: their interrupts, indirection table,
//! XPS and RPS are others then, and not known before. So nothing else is planned for such a NIC; the
//! plan says that another one is to be made after it. Undoing it brings back what the queues had.
//!
//! Rules: Documentation/networking/scaling.rst (a receive queue for each CPU, or for each cache),
//! ethtool(8) `-L`.

use super::Planner;
use super::draft::{Draft, Wish};
use super::situation::Situation;
use nearpath_model::{CpuId, Ethtool, Goal, Nic, NicSetting, Severity};
use std::collections::BTreeSet;

pub(super) const PLANNER: Planner =
    Planner { name: "channels", plans: "the number of channels, one for each near core", run };

/// How many channels are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelCount {
    /// So many.
    Number(u32),
    /// One for each core near the NIC.
    Near,
}

/// Checks that find one CPU to be too few.
const OVERLOADED: [&str; 2] = ["net_rx_concentration", "rps_off"];

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    for nic in situation.hardware() {
        let channels = nic.channels.unwrap_or_default();
        let (Some(now), Some(most)) = (channels.combined, channels.combined_max) else {
            if situation.request.channels.is_some() {
                draft.note(format!("the driver of {} tells no combined channels", nic.name));
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

/// How many channels, why, and the check that asked for it.
fn wanted(
    situation: &Situation<'_>,
    draft: &mut Draft,
    nic: &Nic,
    now: u32,
    most: u32,
) -> Option<(u32, String, Option<String>)> {
    let name = &nic.name;
    let cores = cores(situation, nic);
    match situation.request.channels {
        Some(ChannelCount::Number(number)) if number > most => {
            draft.note(format!("{name} has at most {most} channels, not {number}"));
            return None;
        }
        Some(ChannelCount::Number(number)) => {
            let why = format!("asked for; {name} has {now} of at most {most} now");
            return Some((number, why, None));
        }
        _ => {}
    }
    let near = cores.min(most).max(1);
    let why = format!(
        "{cores} cores near {name} may receive, and it has {now} of at most {most} channels"
    );
    if situation.request.channels == Some(ChannelCount::Near) {
        return Some((near, why, None));
    }
    let overloaded = situation.findings.iter().find(|finding| {
        OVERLOADED.contains(&finding.check.as_str()) && finding.severity > Severity::Info
    });
    let check = overloaded.map(|finding| finding.check.clone());
    let more = near > now;
    match check {
        Some(_) if more => Some((near, why, check)),
        _ if more && situation.request.goal == Goal::Throughput => Some((near, why, None)),
        _ => None,
    }
}

/// The cores that the interrupts of a NIC may go to, shared out with the other NICs that have the same.
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
    draft.add(Wish {
        id: format!("{name}/channels"),
        target: NicSetting::new(name, Ethtool::Channels).into(),
        before: format!("combined {now}").into(),
        after: format!("combined {wanted}").into(),
        why,
        finding,
    });
    draft.renew(nic.ifindex);
    draft.note(format!(
        "with other channels {name} has other queues, whose interrupts are not known before: nothing \
         else is planned for it; apply this, then plan again"
    ));
}
