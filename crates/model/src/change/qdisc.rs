//! The queueing disciplines by which an interface sends.

use super::{InterfaceId, InterfaceOf, Persistence, TargetKind, is_interface_name};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The interface; its value is a [`crate::QdiscTree`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Qdiscs {
    /// Its name.
    pub nic: String,
    /// Inode of the network namespace that it is in.
    pub netns: Option<u64>,
    /// Which interface it is, set once it was changed.
    #[serde(flatten)]
    pub id: InterfaceId,
}

impl Qdiscs {
    /// Those of an interface in the current namespace.
    pub fn new(nic: impl Into<String>) -> Self {
        Self { nic: nic.into(), netns: None, id: InterfaceId::default() }
    }
}

impl fmt::Display for Qdiscs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "qdiscs {}", self.nic)
    }
}

impl TargetKind for Qdiscs {
    fn of_plan(text: &str, netns: Option<u64>) -> Option<Self> {
        let nic = text.strip_prefix("qdiscs ")?;
        is_interface_name(nic).then(|| Self { netns, ..Self::new(nic) })
    }

    fn kind(&self) -> &'static str {
        "qdisc"
    }

    fn persistence(&self) -> Persistence {
        Persistence::UntilReboot
    }

    fn disrupts(&self) -> Option<&'static str> {
        Some("packets that wait in a qdisc are dropped when it is replaced")
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
    fn targets_round_trip() {
        let target = Qdiscs::of_plan("qdiscs nic0", Some(5)).unwrap();
        assert_eq!((target.to_string().as_str(), target.netns), ("qdiscs nic0", Some(5)));
        for text in ["qdiscs", "qdiscs ", "qdiscs ../x", "qdiscs nic0 root", "qdisc nic0"] {
            assert_eq!(Qdiscs::of_plan(text, None), None, "{text}");
        }
    }
}
