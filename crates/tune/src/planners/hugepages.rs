//! Hugepages on request or proposed by a warning: at run time the pools of the nodes, with the goal isolation the
//! kernel command line.
//!
//! Input: the requested sizes and counts, the findings, and the pools of each node. Output: one change for each size,
//! with the counts of all nodes; a note instead of a proposed one that the free memory does not suffice for. A count
//! without a node is for the node of the NIC, which DPDK's buffers should be on.
//!
//! Rules: the chapter on NUMA for SR-IOV paths (hugepages per node), Documentation/admin-guide/mm/hugetlbpage.rst.

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::{Situation, version};
use super::target_node;
use nearpath_model::{
    Finding, Goal, HugepagePools, NodeId, PoolCounts, ProposedChange, Severity, Target,
};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

pub(super) const PLANNER: Planner = Planner {
    name: "hugepages",
    plans: "hugepages on the nodes that need them, on request (--hugepages) or as a warning proposes",
    run,
};

/// The first kernel with counts by node on its command line (commit b5389086ad7b).
const BY_NODE: (u32, u32) = (5, 16);

/// Requested hugepages of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hugepages {
    pools: HugepagePools,
    counts: Counts,
}

/// How many, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Counts {
    /// This many on the node of the NIC; at boot as the kernel distributes them.
    OfNic(u64),
    /// By node.
    Nodes(BTreeMap<NodeId, u64>),
}

impl FromStr for Hugepages {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let must =
            || "expected SIZE:COUNT or SIZE:NODE:COUNT,..., e.g. 1G:8 or 2M:0:512,1:512".to_owned();
        let (size, counts) = text.split_once(':').ok_or_else(must)?;
        let unit = match size.bytes().last() {
            Some(b'K') => 1,
            Some(b'M') => 1 << 10,
            Some(b'G') => 1 << 20,
            _ => return Err(must()),
        };
        let digits = size.get(..size.len() - 1).unwrap_or_default();
        let number: u32 = digits.parse().map_err(|_| must())?;
        let plain = digits.bytes().all(|b| b.is_ascii_digit());
        let pools = HugepagePools::new(u64::from(number) * unit).filter(|_| plain);
        let counts = match counts.parse().map_err(|_| must())? {
            PoolCounts::Only(count) => Counts::OfNic(count),
            PoolCounts::Nodes(counts) => Counts::Nodes(counts),
        };
        Ok(Self { pools: pools.ok_or_else(must)?, counts })
    }
}

impl Hugepages {
    /// The kernel's parameters for it, the size first; the first one also sets the default size.
    pub(super) fn parameters(&self, first: bool) -> Vec<String> {
        let size = self.pools.size();
        let counts = match &self.counts {
            Counts::OfNic(count) => count.to_string(),
            Counts::Nodes(counts) => PoolCounts::Nodes(counts.clone()).to_string(),
        };
        let default = first.then(|| format!("default_hugepagesz={size}"));
        let own = [format!("hugepagesz={size}"), format!("hugepages={counts}")];
        default.into_iter().chain(own).collect()
    }

    /// The pages of one node that is not named; `None` if nodes are.
    pub(crate) fn of_one_node(&self) -> Option<(HugepagePools, u64)> {
        match self.counts {
            Counts::OfNic(count) => Some((self.pools, count)),
            Counts::Nodes(_) => None,
        }
    }

    /// Why this kernel cannot reserve it at boot.
    pub(super) fn not_at_boot(&self, release: Option<&str>) -> Option<String> {
        let is_old = release.and_then(version).is_some_and(|version| version < BY_NODE);
        (is_old && matches!(self.counts, Counts::Nodes(_))).then(|| {
            format!(
                "hugepages by node are not on the kernel command line before Linux 5.16: plan --hugepages {self} \
                 without --goal isolation, and export it with --as systemd as an early service"
            )
        })
    }
}

impl fmt::Display for Hugepages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.pools.size())?;
        match &self.counts {
            Counts::OfNic(count) => count.fmt(f),
            Counts::Nodes(counts) => PoolCounts::Nodes(counts.clone()).fmt(f),
        }
    }
}

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    if situation.request.goal == Goal::Isolation {
        return;
    }
    for hugepages in &situation.request.hugepages {
        if let Err(reason) = plan(situation, draft, hugepages) {
            draft.note(format!("no hugepages for --hugepages {hugepages}: {reason}"));
        }
    }
    for finding in situation.findings {
        for change in finding.changes.iter().filter(|change| !change.alternative) {
            if let Some(Target::Hugepages(pools)) = change.target.setting() {
                propose(situation, draft, finding, change, *pools);
            }
        }
    }
}

/// Plans what a finding proposes, unless it is requested otherwise.
fn propose(
    situation: &Situation<'_>,
    draft: &mut Draft,
    finding: &Finding,
    change: &ProposedChange,
    pools: HugepagePools,
) {
    let target = Target::Hugepages(pools);
    if draft.planned(&target).is_some() {
        return;
    }
    let size = pools.size();
    let (Ok(now), Some(after)) = (now(situation, pools), counts_of(change)) else { return };
    let what = format!("hugepages of {size}: {now} to {after}");
    if finding.severity == Severity::Info {
        let title = &finding.title;
        return draft.note(format!("{what} is not planned without need: {title}"));
    }
    if let Some((node, short)) = short(situation, pools, &now, &after).first() {
        return draft.note(format!(
            "{what} is not planned: node {node} has {short} MiB too little free memory for it"
        ));
    }
    draft.add(DraftChange {
        id: format!("hugepages-{size}"),
        target,
        before: now.to_string().into(),
        after: after.to_string().into(),
        why: change.why.clone(),
        finding: Some(finding.check.clone()),
    });
}

fn counts_of(change: &ProposedChange) -> Option<PoolCounts> {
    change.after.text()?.parse().ok()
}

fn plan(situation: &Situation<'_>, draft: &mut Draft, wanted: &Hugepages) -> Result<(), String> {
    let (pools, size) = (wanted.pools, wanted.pools.size());
    let now = now(situation, pools)?;
    let absent = |node: NodeId| format!("node {node} has no hugepages of {size}");
    let mut where_to = String::new();
    let after = match (&now, &wanted.counts) {
        (PoolCounts::Only(_), Counts::OfNic(count)) => PoolCounts::Only(*count),
        (PoolCounts::Only(_), Counts::Nodes(_)) => {
            return Err("this kernel has no nodes: give SIZE:COUNT".to_owned());
        }
        (PoolCounts::Nodes(now), Counts::OfNic(count)) => {
            let node = match target_node::node(situation) {
                Ok(Some(node)) => node,
                // The only one.
                Ok(None) => *now.keys().next().ok_or("it has no node")?,
                Err(reason) => return Err(format!("{reason}, or give SIZE:NODE:COUNT")),
            };
            where_to = format!(", the node of the NIC: {node}");
            let mut after = now.clone();
            *after.get_mut(&node).ok_or_else(|| absent(node))? = *count;
            PoolCounts::Nodes(after)
        }
        (PoolCounts::Nodes(now), Counts::Nodes(counts)) => {
            let mut after = now.clone();
            for (node, count) in counts {
                *after.get_mut(node).ok_or_else(|| absent(*node))? = *count;
            }
            PoolCounts::Nodes(after)
        }
    };
    if now == after {
        return Err("it has them already".to_owned());
    }
    for (node, short) in short(situation, pools, &now, &after) {
        draft.note(format!(
            "node {node} has {short} MiB too little free memory for hugepages {after} of {size}: if the kernel \
             cannot allocate all of them, none is kept"
        ));
    }
    draft.add(DraftChange {
        id: format!("hugepages-{size}"),
        target: Target::Hugepages(pools),
        before: now.to_string().into(),
        after: after.to_string().into(),
        why: format!(
            "requested{where_to}: it has {now} pages of {size}, allocated while memory is free"
        ),
        finding: None,
    });
    Ok(())
}

/// The pools of a size now, without surplus pages.
fn now(situation: &Situation<'_>, pools: HugepagePools) -> Result<PoolCounts, String> {
    let bytes = pools.page_kib.checked_mul(1024).ok_or("no such size")?;
    let nodes = &situation.host.topology.nodes;
    let counts: BTreeMap<NodeId, u64> = nodes
        .iter()
        .filter_map(|node| Some((node.node, node.hugepages.get(&bytes)?)))
        .map(|(node, pages)| (node, pages.total.saturating_sub(pages.surplus)))
        .collect();
    if !counts.is_empty() {
        return Ok(PoolCounts::Nodes(counts));
    }
    situation.request.system.pool(pools).ok_or_else(|| {
        let known = nodes.iter().flat_map(|node| node.hugepages.keys());
        let mut sizes: Vec<String> =
            known.filter_map(|bytes| Some(HugepagePools::new(bytes / 1024)?.size())).collect();
        sizes.sort();
        sizes.dedup();
        match sizes.is_empty() {
            true => "the pools of the host are unknown".to_owned(),
            false => format!("the kernel has pages of {} only", sizes.join(" and ")),
        }
    })
}

/// The nodes with too little free memory, and how much they lack in MiB.
fn short(
    situation: &Situation<'_>,
    pools: HugepagePools,
    now: &PoolCounts,
    after: &PoolCounts,
) -> Vec<(NodeId, u64)> {
    let lacks = |(node, after): (Option<NodeId>, u64)| {
        let node = node?;
        let more = after.saturating_sub(now.of(Some(node))?).saturating_mul(pools.page_kib);
        let free = situation.host.topology.node(node)?.free_bytes? / 1024;
        (more > free).then(|| (node, (more - free).div_ceil(1024)))
    };
    after.iter().filter_map(lacks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hugepages_are_a_size_and_counts() {
        let parsed = |text: &str| text.parse::<Hugepages>().unwrap();
        assert_eq!(
            parsed("1G:8").parameters(true).join(" "),
            "default_hugepagesz=1G hugepagesz=1G hugepages=8"
        );
        let nodes = parsed("2M:0:512,1:0");
        assert_eq!(nodes.parameters(false).join(" "), "hugepagesz=2M hugepages=0:512,1:0");
        assert_eq!(nodes.to_string(), "2M:0:512,1:0");
        assert_eq!(parsed("2048K:5").to_string(), "2M:5");
        for text in ["", "8", "1G", "1G:-1", "3M:1", "1g:1", "G:1", "1G:1 x", "+2M:1", "2M:0:1,0:2"]
        {
            assert!(text.parse::<Hugepages>().is_err(), "{text}");
        }
        assert!(nodes.not_at_boot(Some("5.10.0-8-amd64")).unwrap().contains("--as systemd"));
        assert_eq!(nodes.not_at_boot(Some("5.16.0")), None);
        assert_eq!(parsed("1G:8").not_at_boot(Some("5.10.0")), None);
    }
}
