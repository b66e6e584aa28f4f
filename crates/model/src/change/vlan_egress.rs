//! Which VLAN priority a VLAN gives to what it sends.

use super::{InterfaceId, InterfaceOf, Persistence, TargetKind, is_interface_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The VLAN; its value is an [`EgressMap`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct VlanEgress {
    /// Its name.
    pub vlan: String,
    /// Inode of the network namespace that it is in.
    pub netns: Option<u64>,
    /// Which interface it is, set once it was changed.
    #[serde(flatten)]
    pub id: InterfaceId,
}

impl VlanEgress {
    /// That of a VLAN in the current namespace.
    pub fn new(vlan: impl Into<String>) -> Self {
        Self { vlan: vlan.into(), netns: None, id: InterfaceId::default() }
    }
}

impl fmt::Display for VlanEgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "egress-qos-map {}", self.vlan)
    }
}

impl TargetKind for VlanEgress {
    fn of_plan(text: &str, netns: Option<u64>) -> Option<Self> {
        let vlan = text.strip_prefix("egress-qos-map ")?;
        is_interface_name(vlan).then(|| Self { netns, ..Self::new(vlan) })
    }

    fn kind(&self) -> &'static str {
        "vlan_egress"
    }

    fn persistence(&self) -> Persistence {
        Persistence::UntilReboot
    }

    fn owner(&self) -> String {
        self.vlan.clone()
    }

    fn interface_of(&mut self) -> Option<InterfaceOf<'_>> {
        let (name, netns) = (&mut self.vlan, Some(&mut self.netns));
        Some(InterfaceOf { name, netns, id: &mut self.id })
    }

    fn set_netns(&mut self, netns: Option<u64>) {
        self.netns = netns;
    }

    fn is_same_place(&self, other: &Self) -> bool {
        (&self.vlan, self.netns) == (&other.vlan, other.netns)
    }
}

/// The VLAN priority (PCP, 1 to 7) by the priority of a packet (SO_PRIORITY); all others get 0. As text `3:3,5:6`, or `none`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EgressMap(pub BTreeMap<u32, u8>);

impl EgressMap {
    const NONE: &'static str = "none";
    /// Most entries of a value.
    const MOST: usize = 64;

    /// What `ip link set … type vlan egress-qos-map` must be given so that this becomes another map: an entry to 0 removes it.
    #[must_use]
    pub fn entries_to(&self, after: &Self) -> Vec<String> {
        let removed = self.0.keys().filter(|priority| !after.0.contains_key(*priority));
        let removed = removed.map(|priority| format!("{priority}:0"));
        let set = after.0.iter().filter(|(priority, pcp)| self.0.get(*priority) != Some(*pcp));
        removed.chain(set.map(|(priority, pcp)| format!("{priority}:{pcp}"))).collect()
    }
}

impl fmt::Display for EgressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(Self::NONE);
        }
        for (at, (priority, pcp)) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{priority}:{pcp}")?;
        }
        Ok(())
    }
}

impl FromStr for EgressMap {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if text == Self::NONE {
            return Ok(Self::default());
        }
        let mut map = BTreeMap::new();
        for entry in text.split(',') {
            let (priority, pcp) = entry.split_once(':').ok_or(())?;
            let pcp: u8 = pcp.parse().map_err(drop)?;
            if !(1..=7).contains(&pcp) || map.len() == Self::MOST {
                return Err(());
            }
            if map.insert(priority.parse().map_err(drop)?, pcp).is_some() {
                return Err(());
            }
        }
        let map = Self(map);
        // One text for each value.
        if map.to_string() == text { Ok(map) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_round_trip() {
        let target = VlanEgress::of_plan("egress-qos-map nic0.5", Some(5)).unwrap();
        assert_eq!(target.to_string(), "egress-qos-map nic0.5");
        assert_eq!((target.vlan.as_str(), target.netns), ("nic0.5", Some(5)));
        for text in ["egress-qos-map", "egress-qos-map ", "egress-qos-map ../x", "qdiscs nic0"] {
            assert_eq!(VlanEgress::of_plan(text, None), None, "{text}");
        }
    }

    #[test]
    fn maps_round_trip_and_differ_by_entries() {
        let map = |text: &str| text.parse::<EgressMap>().unwrap();
        for text in ["none", "0:1", "3:3,5:6", "4294967295:7"] {
            assert_eq!(map(text).to_string(), text);
        }
        for text in ["", "3", "3:0", "3:8", "3:3,", "3:3,3:4", "5:5,3:3", "03:3", "-1:1", "x:1"] {
            assert!(text.parse::<EgressMap>().is_err(), "{text}");
        }
        assert_eq!(map("3:3,4:4").entries_to(&map("3:3,4:5,6:6")), ["4:5", "6:6"]);
        assert_eq!(map("3:3,4:4").entries_to(&map("none")), ["3:0", "4:0"]);
        assert!(map("3:3").entries_to(&map("3:3")).is_empty());
    }
}
