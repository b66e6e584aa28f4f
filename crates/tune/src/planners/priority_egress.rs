//! The way back of a VLAN priority: what is answered with the same priority leaves with the same tag.
//!
//! Input: the requested VLAN priorities, and the VLANs on the NIC with their `egress-qos-map`. Output: an entry for each
//! priority that a VLAN does not map: packets with SO_PRIORITY 5 get PCP 5. Other entries stay; one that maps a requested
//! priority to another PCP is named, and left alone.
//!
//! XPS needs nothing of its own: its planner gives the CPU of a priority the queue whose interrupt is there.
//!
//! Rules: `vlan_dev_set_egress_priority` of net/8021q/vlan_dev.c, socket(7) (SO_PRIORITY).

use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use nearpath_model::{EgressMap, Nic, NicKind, Target, TrafficClass, VlanEgress};

/// Plans for the VLANs on a NIC.
pub(super) fn plan(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic) {
    let of_class = |(class, _): &(TrafficClass, _)| match class {
        // Packets without an entry have 0.
        TrafficClass::Pcp(pcp) if *pcp > 0 => Some(*pcp),
        _ => None,
    };
    let priorities: Vec<u8> = situation.request.priorities.iter().filter_map(of_class).collect();
    let is_on =
        |vlan: &&Nic| vlan.kind == NicKind::Vlan && vlan.link.as_deref() == Some(nic.name.as_str());
    for vlan in situation.host.nics.iter().filter(is_on) {
        let Some(now) = &vlan.vlan_egress else { continue };
        let (before, mut after) = (EgressMap(now.clone()), EgressMap(now.clone()));
        for &pcp in &priorities {
            let mapped = after.0.entry(pcp.into()).or_insert(pcp);
            if *mapped != pcp {
                draft.note(format!(
                    "{} sends packets of priority {pcp} with the VLAN priority {mapped}: kept",
                    vlan.name
                ));
            }
        }
        if before == after {
            continue;
        }
        let missing = before.entries_to(&after);
        draft.add(DraftChange {
            id: format!("{}/egress-qos-map", vlan.name),
            target: Target::from(VlanEgress::new(&vlan.name)),
            before: before.to_string().into(),
            after: after.to_string().into(),
            why: format!(
                "answers with SO_PRIORITY leave {} with the VLAN priority that they came with: {}",
                vlan.name,
                missing.join(", ")
            ),
            finding: None,
        });
    }
}
