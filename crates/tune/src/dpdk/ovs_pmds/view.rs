//! What the check and the planner know of an Open vSwitch.

use nearpath_host::workers::Switch;
use nearpath_host::workers::ovs::OvsPmd;
use nearpath_model::{CpuId, MAX_CPUS, NodeId, OvsKey};
use std::collections::{BTreeMap, BTreeSet};

/// CPUs of a mask; a longer one than of any host is not read.
const MAX_DIGITS: usize = 1024;

/// An affinity: CPUs by queue.
pub(super) type Affinity = BTreeMap<u32, u32>;

/// A port that PMD threads poll.
#[derive(Debug, Clone)]
pub(super) struct Port {
    pub name: String,
    pub node: Option<NodeId>,
    /// Its queues with the CPU that polls each.
    pub queues: BTreeMap<u32, CpuId>,
    /// The text of its affinity.
    pub affinity: Option<String>,
}

impl Port {
    /// Its affinity as Open vSwitch reads it; `None` if it has none, or one that is not valid.
    pub fn pinned(&self) -> Option<Affinity> {
        parse_affinity(self.affinity.as_deref()?)
    }

    /// Those of its queues that another node polls.
    pub fn remote<'a>(
        &'a self,
        nodes: &'a BTreeMap<CpuId, NodeId>,
    ) -> impl Iterator<Item = (u32, CpuId, NodeId)> + 'a {
        let queues = self.queues.iter().map(|(queue, cpu)| (*queue, *cpu));
        queues.filter_map(move |(queue, cpu)| {
            let node = *nodes.get(&cpu)?;
            (node != self.node?).then_some((queue, cpu, node))
        })
    }
}

/// The ports, by name.
pub(super) fn ports(switch: &Switch) -> Vec<Port> {
    let mut queues: BTreeMap<&str, BTreeMap<u32, CpuId>> = BTreeMap::new();
    for pmd in switch.pmds.iter().flatten() {
        for (name, ids) in &pmd.queues {
            let of_port = queues.entry(name).or_default();
            of_port.extend(ids.iter().map(|id| (*id, CpuId(pmd.core))));
        }
    }
    let is_polled = |kind: &str| {
        kind.starts_with("dpdk") || matches!(kind, "afxdp" | "afxdp-nonpmd" | "dummy-pmd")
    };
    let interfaces = switch.database.interfaces.iter();
    let polled =
        interfaces.filter(|(name, its)| queues.contains_key(name.as_str()) || is_polled(&its.kind));
    polled
        .map(|(name, its)| Port {
            name: name.clone(),
            node: switch.nodes.get(name).copied(),
            queues: queues.get(name.as_str()).cloned().unwrap_or_default(),
            affinity: its.other_config.get(OvsKey::PmdRxqAffinity.name()).cloned(),
        })
        .collect()
}

/// The nodes of PMD threads, as Open vSwitch has them. No kernel has higher CPUs.
pub(super) fn pmd_nodes(pmds: &[OvsPmd]) -> BTreeMap<CpuId, NodeId> {
    let known = pmds.iter().filter(|pmd| pmd.core < MAX_CPUS);
    known.filter_map(|pmd| Some((CpuId(pmd.core), pmd.node?))).collect()
}

/// CPUs of a mask, which may have more than any host; `None` if it is none.
pub(super) fn mask_cpus(mask: &str) -> Option<BTreeSet<CpuId>> {
    let digits = mask.strip_prefix("0x").or_else(|| mask.strip_prefix("0X")).unwrap_or(mask);
    if digits.is_empty() || digits.len() > MAX_DIGITS {
        return None;
    }
    let mut cpus = BTreeSet::new();
    for (at, digit) in (0u32..).zip(digits.chars().rev()) {
        let bits = digit.to_digit(16)?;
        cpus.extend((0..4).filter(|bit| bits >> bit & 1 == 1).map(|bit| CpuId(at * 4 + bit)));
    }
    Some(cpus)
}

/// The mask of CPUs, in as few digits as it needs.
pub(super) fn mask_of(cpus: &BTreeSet<CpuId>) -> String {
    let last = cpus.last().map_or(0, |cpu| cpu.0);
    let digit = |at: u32| {
        let bits = (0..4).filter(|bit| cpus.contains(&CpuId(at * 4 + bit)));
        char::from_digit(bits.map(|bit| 1 << bit).sum(), 16).unwrap_or('0')
    };
    (0..=last / 4).rev().map(digit).collect()
}

/// An affinity; `None` if Open vSwitch refuses it.
pub(super) fn parse_affinity(text: &str) -> Option<Affinity> {
    let pairs = text.split([',', ' ']).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (queue, cpu) = pair.split_once(':')?;
            Some((queue.trim().parse().ok()?, cpu.trim().parse().ok()?))
        })
        .collect()
}

/// The text of an affinity.
pub(super) fn write_affinity(affinity: &Affinity) -> String {
    let pair = |(queue, cpu): (&u32, &u32)| format!("{queue}:{cpu}");
    affinity.iter().map(pair).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_affinities_round_trip() {
        for mask in ["1", "2", "30", "80000000000000000000000000000001", "fff"] {
            assert_eq!(mask_of(&mask_cpus(mask).unwrap()), mask);
        }
        assert_eq!(mask_cpus("0x0030"), mask_cpus("30"));
        assert_eq!(mask_cpus("0"), Some(BTreeSet::new()));
        assert!(
            [String::new(), "0x".into(), "g".into(), "f".repeat(2000)]
                .iter()
                .all(|m| mask_cpus(m).is_none())
        );
        assert_eq!(
            parse_affinity("0:4,1:5").map(|a| write_affinity(&a)),
            Some("0:4,1:5".to_owned())
        );
        assert!(["0", "0:", ":1", "a:b"].iter().all(|text| parse_affinity(text).is_none()));
    }
}
