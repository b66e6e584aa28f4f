//! The pools of hugepages of one size: how many pages the kernel keeps on each node.
//!
//! One target for all nodes, because the kernel moves a page of a pool to the pool of another node when it migrates
//! it (`move_hugetlb_state` of mm/hugetlb.c): only all counts together can be restored.

use super::{Persistence, TargetKind};
use crate::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// More nodes than any kernel has (`MAX_NUMNODES`).
const MAX_NODES: usize = 1024;
/// More pages than any machine has: 2 PiB in pages of 2 MiB.
const MAX_PAGES: u64 = 1 << 30;

/// The pools of one page size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HugepagePools {
    /// The page size in KiB, as in the name of the directory: 2048.
    pub page_kib: u64,
}

impl HugepagePools {
    /// Those of a page size in KiB; `None` if it is no power of two.
    pub fn new(page_kib: u64) -> Option<Self> {
        page_kib.is_power_of_two().then_some(Self { page_kib })
    }

    /// Parses the text of a plan: `hugepages 2048kB`.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("hugepages ")?.strip_suffix("kB")?;
        let page_kib = digits.parse().ok().filter(|kib: &u64| kib.to_string() == digits)?;
        Self::new(page_kib)
    }

    /// The page size in the kernel's syntax for parameters: `2M`, `1G`, `64K`.
    pub fn size(self) -> String {
        match self.page_kib {
            kib if kib % (1 << 20) == 0 => format!("{}G", kib >> 20),
            kib if kib % (1 << 10) == 0 => format!("{}M", kib >> 10),
            kib => format!("{kib}K"),
        }
    }

    /// The directory of the pool of a node; without one, of the only pool of a kernel without NUMA
    /// (Documentation/admin-guide/mm/hugetlbpage.rst).
    pub fn folder(self, node: Option<NodeId>) -> String {
        let page_kib = self.page_kib;
        match node {
            Some(node) => {
                format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{page_kib}kB")
            }
            None => format!("/sys/kernel/mm/hugepages/hugepages-{page_kib}kB"),
        }
    }
}

impl fmt::Display for HugepagePools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hugepages {}kB", self.page_kib)
    }
}

impl TargetKind for HugepagePools {
    fn of_plan(text: &str, _: Option<u64>) -> Option<Self> {
        Self::parse(text)
    }

    fn kind(&self) -> &'static str {
        "hugepages"
    }

    fn persistence(&self) -> Persistence {
        Persistence::UntilReboot
    }
}

/// How many pages each pool has: `0:512,1:0` as in the kernel's parameter `hugepages=`; `512` for the only pool of a
/// kernel without NUMA. Surplus pages, which are in use and which the kernel frees afterwards, do not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolCounts {
    /// The only pool.
    Only(u64),
    /// By node.
    Nodes(BTreeMap<NodeId, u64>),
}

impl PoolCounts {
    /// The count of each pool, with its node.
    pub fn iter(&self) -> impl Iterator<Item = (Option<NodeId>, u64)> + '_ {
        let (only, nodes) = match self {
            Self::Only(count) => (Some((None, *count)), None),
            Self::Nodes(counts) => (None, Some(counts)),
        };
        let nodes = nodes.into_iter().flatten();
        only.into_iter().chain(nodes.map(|(node, count)| (Some(*node), *count)))
    }

    /// The count of a pool; `None` if there is no such pool.
    pub fn of(&self, node: Option<NodeId>) -> Option<u64> {
        self.iter().find_map(|(its, count)| (its == node).then_some(count))
    }

    /// Number of pages in all pools.
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, count)| count).sum()
    }

    /// Whether both name the same pools.
    pub fn same_pools(&self, other: &Self) -> bool {
        self.iter().map(|(node, _)| node).eq(other.iter().map(|(node, _)| node))
    }
}

impl fmt::Display for PoolCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (node, count)) in self.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match node {
                Some(node) => write!(f, "{comma}{node}:{count}")?,
                None => write!(f, "{count}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for PoolCounts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let must = || "must be counts by node, like 0:512,1:0".to_owned();
        let number = |text: &str| {
            let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            text.parse().ok().filter(|count: &u64| plain && *count <= MAX_PAGES).ok_or_else(must)
        };
        if !text.contains(':') {
            return number(text).map(Self::Only);
        }
        let mut nodes = BTreeMap::new();
        for pool in text.split(',') {
            let (node, count) = pool.split_once(':').ok_or_else(must)?;
            let node = u32::try_from(number(node)?).map_err(|_| must())?;
            let known = nodes.insert(NodeId(node), number(count)?);
            if known.is_some() || nodes.len() > MAX_NODES {
                return Err(must());
            }
        }
        Ok(Self::Nodes(nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pools_round_trip_and_nothing_else_is_one() {
        for (text, size) in
            [("hugepages 2048kB", "2M"), ("hugepages 1048576kB", "1G"), ("hugepages 64kB", "64K")]
        {
            let pools = HugepagePools::parse(text).unwrap();
            assert_eq!((pools.to_string().as_str(), pools.size().as_str()), (text, size));
        }
        for text in [
            "",
            "hugepages",
            "hugepages 3kB",
            "hugepages 02048kB",
            "hugepages 0kB",
            "hugepages ../kB",
        ] {
            assert_eq!(HugepagePools::parse(text), None, "{text}");
        }
        let pools = HugepagePools::new(2048).unwrap();
        assert_eq!(
            pools.folder(Some(NodeId(1))),
            "/sys/devices/system/node/node1/hugepages/hugepages-2048kB"
        );
        assert_eq!(pools.folder(None), "/sys/kernel/mm/hugepages/hugepages-2048kB");
    }

    #[test]
    fn counts_are_those_of_the_kernels_parameter() {
        let counts: PoolCounts = "0:512,1:0".parse().unwrap();
        assert_eq!((counts.to_string().as_str(), counts.total()), ("0:512,1:0", 512));
        assert_eq!(counts.of(Some(NodeId(0))), Some(512));
        assert_eq!((counts.of(None), counts.of(Some(NodeId(2)))), (None, None));
        assert!(counts.same_pools(&"1:1,0:1".parse().unwrap()));
        assert!(!counts.same_pools(&"0:512".parse().unwrap()));
        assert!(!counts.same_pools(&"512".parse().unwrap()));
        assert_eq!("12".parse(), Ok(PoolCounts::Only(12)));
        for text in
            ["", ":", "0:", ":1", "0:1,", "0:1,0:2", "x", "-1", "+1", "0:-1", "0:1 ", "9999999999"]
        {
            assert!(text.parse::<PoolCounts>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[0-9:, ]{0,20}") {
            if let Ok(counts) = text.parse::<PoolCounts>() {
                prop_assert_eq!(counts.to_string().parse(), Ok(counts));
            }
        }
    }
}
