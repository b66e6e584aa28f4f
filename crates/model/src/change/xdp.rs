//! The XDP program of an interface that moves received packets of some classes to a CPU each.

use super::{InterfaceId, InterfaceOf, Persistence, TargetKind, is_interface_name};
use crate::CpuId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct XdpPriorities {
    /// Its name.
    pub nic: String,
    /// Inode of the network namespace that it is in.
    pub netns: Option<u64>,
    /// Which interface it is, set once it was changed.
    #[serde(flatten)]
    pub id: InterfaceId,
}

/// A class of received packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrafficClass {
    /// The priority of the outermost VLAN tag, 0 to 7.
    Pcp(u8),
    /// The DSCP of the IP header, 0 to 63.
    Dscp(u8),
    /// The source address.
    From(IpAddr),
}

/// The CPU of each class; empty without a program. A packet of several classes belongs to the first of them, in the order
/// of [`TrafficClass`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassCpus(pub BTreeMap<TrafficClass, CpuId>);

impl ClassCpus {
    /// The text without a program.
    pub const NONE: &'static str = "none";
    /// Maximum number of addresses: the size of the program's table.
    pub const ADDRESSES: usize = 64;
}

impl TrafficClass {
    /// Whether it is one of those that exist; IPv4 addresses have one form.
    #[must_use]
    pub fn is_valid(self) -> bool {
        match self {
            Self::Pcp(pcp) => pcp < 8,
            Self::Dscp(dscp) => dscp < 64,
            Self::From(IpAddr::V4(address)) => address != Ipv4Addr::UNSPECIFIED,
            Self::From(IpAddr::V6(address)) => {
                address != Ipv6Addr::UNSPECIFIED && address.to_ipv4_mapped().is_none()
            }
        }
    }
}

impl fmt::Display for TrafficClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pcp(pcp) => write!(f, "pcp {pcp}"),
            Self::Dscp(dscp) => write!(f, "dscp {dscp}"),
            Self::From(address) => write!(f, "from {address}"),
        }
    }
}

impl FromStr for TrafficClass {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (kind, value) = text.split_once(' ').ok_or(())?;
        let class = match kind {
            "pcp" => Self::Pcp(value.parse().map_err(drop)?),
            "dscp" => Self::Dscp(value.parse().map_err(drop)?),
            "from" => Self::From(value.parse().map_err(drop)?),
            _ => return Err(()),
        };
        // One text per class: `pcp 03` is rejected.
        if class.is_valid() && class.to_string() == text { Ok(class) } else { Err(()) }
    }
}

impl fmt::Display for ClassCpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(Self::NONE);
        }
        for (at, (class, cpu)) in self.0.iter().enumerate() {
            write!(f, "{}{class} cpu {cpu}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl FromStr for ClassCpus {
    type Err = ();

    /// Parses `none`, or `pcp 3 cpu 2, dscp 46 cpu 1, from 10.9.0.254 cpu 3`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let mut all = Self::default();
        if text == Self::NONE {
            return Ok(all);
        }
        for part in text.split(", ") {
            let (class, cpu) = part.split_once(" cpu ").ok_or(())?;
            let (class, number) = (class.parse()?, cpu.parse().map_err(drop)?);
            if CpuId(number).to_string() != cpu || all.0.insert(class, CpuId(number)).is_some() {
                return Err(());
            }
        }
        let addresses = all.0.keys().filter(|class| matches!(class, TrafficClass::From(_)));
        if addresses.count() > Self::ADDRESSES { Err(()) } else { Ok(all) }
    }
}

impl fmt::Display for XdpPriorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xdp {} priorities", self.nic)
    }
}

impl XdpPriorities {
    /// That of an interface in the current namespace.
    pub fn new(nic: impl Into<String>) -> Self {
        Self { nic: nic.into(), netns: None, id: InterfaceId::default() }
    }
}

impl TargetKind for XdpPriorities {
    fn of_plan(text: &str, netns: Option<u64>) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let ["xdp", nic, "priorities"] = words[..] else { return None };
        is_interface_name(nic).then(|| Self { netns, ..Self::new(nic) })
    }

    fn kind(&self) -> &'static str {
        "xdp"
    }

    fn persistence(&self) -> Persistence {
        Persistence::UntilReboot
    }

    fn disrupts(&self) -> Option<&'static str> {
        Some("many drivers restart their queues for an XDP program")
    }

    fn owner(&self) -> String {
        self.nic.clone()
    }

    fn interface_of(&mut self) -> Option<InterfaceOf<'_>> {
        let (name, netns) = (&mut self.nic, Some(&mut self.netns));
        Some(InterfaceOf { name, netns, id: &mut self.id })
    }

    fn set_netns(&mut self, netns: Option<u64>) {
        self.netns = netns;
    }

    fn is_same_place(&self, other: &Self) -> bool {
        (&self.nic, self.netns) == (&other.nic, other.netns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_one_text() {
        for text in [
            "none",
            "pcp 3 cpu 2",
            "pcp 0 cpu 0, pcp 7 cpu 1023, dscp 46 cpu 1, from 10.9.0.254 cpu 3, from fd00::1 cpu 4",
        ] {
            assert_eq!(text.parse::<ClassCpus>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "pcp 8 cpu 0",
            "pcp 03 cpu 0",
            "pcp 3 cpu 01",
            "pcp 3 cpu -1",
            "pcp 3 cpu 1,pcp 4 cpu 1",
            "pcp 3 cpu 1, pcp 3 cpu 2",
            "pcp 3 cpu 1, ",
            "dscp 64 cpu 1",
            "from :: cpu 1",
            "from ::ffff:10.0.0.1 cpu 1",
            "from 10.0.0.0/8 cpu 1",
            "none, pcp 3 cpu 1",
            "mark 3 cpu 1",
        ] {
            assert!(text.parse::<ClassCpus>().is_err(), "{text}");
        }
        let many: Vec<String> = (1..=65).map(|i| format!("from 10.0.0.{i} cpu 1")).collect();
        assert!(many.join(", ").parse::<ClassCpus>().is_err());
        assert!(many[1..].join(", ").parse::<ClassCpus>().is_ok());
    }

    #[test]
    fn targets_round_trip() {
        let target = XdpPriorities::of_plan("xdp nic0 priorities", Some(5)).unwrap();
        assert_eq!((target.to_string().as_str(), target.netns), ("xdp nic0 priorities", Some(5)));
        for text in
            ["xdp", "xdp nic0", "xdp ../x priorities", "xdp nic0 priorities ", "xdp  priorities"]
        {
            assert_eq!(XdpPriorities::of_plan(text, None), None, "{text}");
        }
    }
}
