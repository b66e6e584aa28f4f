//! Keeps hugepages on the nodes of network functions that come later and that programs drive: virtual functions, and
//! those bound to vfio-pci or uio.
//!
//! Input: the functions of the PCI bus after a kernel event, and how many pages of which sizes each such node has to have.
//! Output: a change of the pools, in the journal like all changes. It is undone when the last such function of the node
//! is gone.

use crate::hugepages::counts;
use crate::planners::Hugepages;
use crate::{Executor, Journal, Live, TuneError};
use nearpath_host::{Root, read_devices};
use nearpath_model::{
    Change, Entry, HugepagePools, NodeId, Notice, Noticed, PciFunction, PoolCounts, Step, Target,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// How the reason of such a change begins, so that it is recognized in the journal, also by a later watch.
const NEW: &str = "hugepages for new device ";

/// Watches for functions that need hugepages.
#[derive(Debug)]
pub struct HugepagesWatch {
    folder: PathBuf,
    boot: String,
    /// Pages of each node with such a function.
    wanted: Vec<(HugepagePools, u64)>,
    /// Address and driver of the functions at the last look; `None` before the first.
    known: Option<BTreeSet<(String, Option<String>)>>,
}

impl HugepagesWatch {
    /// Watches with the journal in a directory. The functions of the first look are not new.
    ///
    /// # Errors
    /// A count is for certain nodes.
    pub fn new(folder: PathBuf, boot: String, wanted: &[Hugepages]) -> Result<Self, String> {
        let each = |one: &Hugepages| one.of_one_node().ok_or("expected SIZE:COUNT, e.g. 2M:512");
        let wanted = wanted.iter().map(each).collect::<Result<_, _>>()?;
        Ok(Self { folder, boot, wanted, known: None })
    }

    /// Looks once, and changes the pools of nodes with new functions, or without any.
    ///
    /// # Errors
    /// The journal cannot be read, or is locked.
    pub fn look(&mut self, root: &Root) -> Result<Vec<Notice>, TuneError> {
        let functions: Vec<PciFunction> =
            read_devices(root).into_iter().filter(is_of_programs).collect();
        let now: BTreeSet<_> =
            functions.iter().map(|its| (its.address.clone(), its.driver.clone())).collect();
        let Some(known) = &self.known else {
            self.known = Some(now);
            return Ok(Vec::new());
        };
        let is_new =
            |its: &&PciFunction| !known.contains(&(its.address.clone(), its.driver.clone()));
        let mut new: BTreeMap<NodeId, &PciFunction> = BTreeMap::new();
        for function in functions.iter().filter(is_new) {
            if let Some(node) = function.numa_node {
                new.entry(node).or_insert(function);
            }
        }
        let nodes: BTreeSet<NodeId> = functions.iter().filter_map(|its| its.numa_node).collect();
        let mut notices = self.release(&nodes)?;
        for (node, function) in new {
            for (pools, count) in self.wanted.clone() {
                notices.extend(self.keep(root, function, node, pools, count)?);
            }
        }
        self.known = Some(now);
        Ok(notices)
    }

    /// Gives a node its pages, unless it has them.
    fn keep(
        &self,
        root: &Root,
        function: &PciFunction,
        node: NodeId,
        pools: HugepagePools,
        count: u64,
    ) -> Result<Option<Notice>, TuneError> {
        let target = Target::Hugepages(pools);
        let name = target.to_string();
        let Some(PoolCounts::Nodes(mut counts)) = counts(root, pools)? else { return Ok(None) };
        let before = PoolCounts::Nodes(counts.clone()).to_string();
        match counts.get_mut(&node) {
            Some(has) if *has < count => *has = count,
            _ => return Ok(None),
        }
        let driver = function.driver.as_deref().unwrap_or("no driver");
        let after = PoolCounts::Nodes(counts).to_string();
        let change = Change {
            persistence: target.persistence(),
            before: before.as_str().into(),
            after: after.as_str().into(),
            why: format!("{NEW}{} ({driver}) on node {node}", function.address),
            snapshot: Vec::new(),
            target,
        };
        let mut executor = Executor::new(Journal::open(&self.folder, &self.boot)?, Live::new());
        let what = match executor.apply_steps(vec![Step { change, optional: false }]) {
            Ok(_) => Noticed::Applied { device: function.address.clone(), after },
            Err(error) => Noticed::Failed(error.to_string()),
        };
        let id = executor.entries().last().map_or(0, |entry| entry.id);
        Ok(Some(Notice { id, target: name, what }))
    }

    /// Undoes the changes of nodes without such a function.
    fn release(&self, nodes: &BTreeSet<NodeId>) -> Result<Vec<Notice>, TuneError> {
        let is_gone = |entry: &Entry| {
            node_of(entry).is_some_and(|node| entry.boot == self.boot && !nodes.contains(&node))
        };
        if !Journal::read(&self.folder)?.iter().any(is_gone) {
            return Ok(Vec::new());
        }
        let mut executor = Executor::new(Journal::open(&self.folder, &self.boot)?, Live::new());
        let mut notices = Vec::new();
        for entry in executor.entries().iter().rev().filter(|entry| is_gone(entry)) {
            let what = match executor.undo(entry) {
                Ok(()) => {
                    Noticed::Dropped("the last device on the node is gone: undone".to_owned())
                }
                Err(error) => Noticed::Failed(error.to_string()),
            };
            notices.push(Notice { id: entry.id, target: entry.change.target.to_string(), what });
        }
        Ok(notices)
    }
}

/// Whether programs drive it, or may.
fn is_of_programs(function: &PciFunction) -> bool {
    function.physical_function.is_some() || function.is_given_away()
}

/// The node that such a change is for; `None` of other changes.
fn node_of(entry: &Entry) -> Option<NodeId> {
    let why = entry.change.why.strip_prefix(NEW)?;
    why.rsplit_once(" on node ")?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn function(tree: &Path, address: &str, driver: &str) {
        let folder = tree.join("sys/bus/pci/devices").join(address);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("class"), "0x020000\n").unwrap();
        fs::write(folder.join("numa_node"), "1\n").unwrap();
        let _ = fs::remove_file(folder.join("driver"));
        std::os::unix::fs::symlink(format!("/sys/bus/pci/drivers/{driver}"), folder.join("driver"))
            .unwrap();
    }

    #[test]
    fn only_functions_that_come_later_and_that_programs_drive_count() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path();
        function(tree, "0000:5e:00.0", "igb");
        function(tree, "0000:5e:00.1", "vfio-pci");
        for (node, count) in [(0, 3), (1, 0)] {
            let pools = format!(
                "sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages"
            );
            fs::create_dir_all(tree.join(&pools).parent().unwrap()).unwrap();
            fs::write(tree.join(pools), format!("{count}\n")).unwrap();
        }
        let journal = tempfile::tempdir().unwrap();
        let folder = journal.path().to_owned();
        // Pages that no pool of this machine has: the change is refused where it would be made.
        let wanted = ["2M:1".parse().unwrap()];
        let mut watch = HugepagesWatch::new(folder.clone(), "boot".to_owned(), &wanted).unwrap();
        let root = Root::tree(tree).unwrap();
        assert_eq!(watch.look(&root).unwrap(), [], "the first look");
        function(tree, "0000:5e:00.0", "e1000e");
        assert_eq!(watch.look(&root).unwrap(), [], "the kernel's");
        // Node 0 has enough.
        fs::write(tree.join("sys/bus/pci/devices/0000:5e:00.0/numa_node"), "0\n").unwrap();
        function(tree, "0000:5e:00.2", "igb");
        assert_eq!(watch.look(&root).unwrap(), []);
        assert_eq!(Journal::read(&folder).unwrap(), []);
        assert!(
            HugepagesWatch::new(folder, "boot".to_owned(), &["2M:0:1".parse().unwrap()]).is_err()
        );
    }

    #[test]
    fn the_node_of_a_change_is_in_its_reason() {
        let target = Target::Hugepages(HugepagePools::new(2048).unwrap());
        let entry = |why: &str| Entry {
            id: 1,
            time_s: 0,
            boot: "boot".to_owned(),
            state: nearpath_model::State::Done,
            change: Change {
                persistence: target.persistence(),
                before: "0:0,1:0".into(),
                after: "0:0,1:8".into(),
                why: why.to_owned(),
                snapshot: Vec::new(),
                target: target.clone(),
            },
            replaces: None,
            pending: None,
        };
        let made = entry("hugepages for new device 0000:5e:10.0 (vfio-pci) on node 1");
        assert_eq!(node_of(&made), Some(NodeId(1)));
        assert_eq!(node_of(&entry("requested, the node of the NIC: 1")), None);
    }
}
