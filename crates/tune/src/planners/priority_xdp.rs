//! Moves classes of received packets to a CPU each by an XDP program, on a NIC that cannot steer them to a queue.
//!
//! Input: the NIC, the program that it has, and the requested classes. Output: for VLAN priorities, the feature
//! `rx-vlan-hw-parse` off, as the program does not see a tag that the NIC has removed; then the program. The planner of
//! interrupts moves those of the NIC's queues away from these CPUs.
//!
//! Rules: Documentation/bpf/map_cpumap.rst, and `XDP_REDIRECT` in Documentation/bpf/redirect.rst.

use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use nearpath_model::{
    ClassCpus, CpuId, Ethtool, Nic, NicSetting, Target, TrafficClass, XdpPriorities,
};

/// The kernel's name of the feature `rxvlan` of `ethtool -K`.
const STRIPS: &str = "rx-vlan-hw-parse";

/// Plans for a NIC. `reason` is why its queues do not do.
pub(super) fn plan(
    situation: &Situation<'_>,
    draft: &mut Draft,
    nic: &Nic,
    asked: &[(TrafficClass, CpuId)],
    reason: &str,
) {
    if let Err(obstacle) = change(situation, draft, nic, asked, reason) {
        draft.note(format!(
            "no CPU for priorities on {}: {reason}; and no XDP program: {obstacle}",
            nic.name
        ));
    }
}

fn change(
    situation: &Situation<'_>,
    draft: &mut Draft,
    nic: &Nic,
    asked: &[(TrafficClass, CpuId)],
    reason: &str,
) -> Result<(), String> {
    let now = situation.request.system.xdp(&nic.name).unwrap_or(Ok(ClassCpus::NONE))?;
    let before: ClassCpus = now.parse().map_err(|()| format!("it has {now}"))?;
    let mut after = before.clone();
    after.0.extend(asked.iter().copied());
    let text = after.to_string();
    // Too many addresses.
    text.parse::<ClassCpus>().map_err(|()| {
        format!("it has room for {} addresses, and there are more", ClassCpus::ADDRESSES)
    })?;
    let reads_tags = after.0.keys().any(|class| matches!(class, TrafficClass::Pcp(_)));
    let strips = nic.offloads.as_ref().and_then(|all| all.get(STRIPS)) == Some(&true);
    if reads_tags && strips {
        if nic.fixed_offloads.as_ref().is_some_and(|all| all.contains(STRIPS)) {
            return Err(format!("its driver cannot turn {STRIPS} off, which hides VLAN tags"));
        }
        draft.add(DraftChange {
            id: format!("{}/{STRIPS}", nic.name),
            target: NicSetting::new(&nic.name, Ethtool::Feature(STRIPS.to_owned())).into(),
            before: "on".into(),
            after: "off".into(),
            why: format!("an XDP program does not see VLAN tags that {} has removed", nic.name),
            finding: None,
        });
    }
    if after == before {
        return Ok(());
    }
    let moved: Vec<String> =
        asked.iter().map(|(class, cpu)| format!("{class} to CPU {cpu}")).collect();
    draft.add(DraftChange {
        id: format!("{}/xdp", nic.name),
        target: Target::from(XdpPriorities::new(&nic.name)),
        before: now.into(),
        after: text.into(),
        why: format!(
            "moves received packets of {}, before the stack; {} cannot steer them to a queue: {reason}",
            moved.join(", "),
            nic.name
        ),
        finding: None,
    });
    Ok(())
}
