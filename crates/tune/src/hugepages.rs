//! The pools of hugepages, by node: `nr_hugepages` below `/sys/devices/system/node`, or below `/sys/kernel/mm` on a
//! kernel without NUMA (Documentation/admin-guide/mm/hugetlbpage.rst).
//!
//! The kernel accepts any count and allocates what it finds: 2,048 may become 452, without an error. So each count is
//! read back, and fewer pages than requested are a refusal. A count is that of persistent pages, `nr_hugepages` without
//! `surplus_hugepages`: when a pool shrinks below the pages in use, these become surplus, and the kernel frees them with
//! their process (`set_max_huge_pages` of mm/hugetlb.c).

use crate::TuneError;
use crate::files::Files;
use crate::setting::Setting;
use nearpath_host::Root;
use nearpath_model::{HugepagePools, NodeId, PoolCounts};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};

const NODES: &str = "/sys/devices/system/node";

/// The pools of one size on this host.
#[derive(Debug)]
pub(crate) struct PoolsSetting<'a> {
    pub root: &'a Root,
    pub files: &'a Files,
    pub pools: HugepagePools,
}

/// The nodes with hugepages of any size; empty for a kernel without NUMA.
fn nodes(root: &Root) -> Vec<NodeId> {
    let Ok(entries) = root.list(NODES) else { return Vec::new() };
    let node = |name: &str| name.strip_prefix("node")?.parse().ok().map(NodeId);
    let nodes = entries.iter().filter_map(|entry| node(&entry.name));
    // A node without memory has none.
    let mut nodes: Vec<NodeId> =
        nodes.filter(|node| root.list(&format!("{NODES}/node{node}/hugepages")).is_ok()).collect();
    nodes.sort_unstable();
    nodes
}

/// The pools of a size as a root shows them; `None` if the kernel has no such pages.
///
/// # Errors
/// A count cannot be read.
pub(crate) fn counts(root: &Root, pools: HugepagePools) -> Result<Option<PoolCounts>, TuneError> {
    let number = |folder: &str, file: &str| -> Result<Option<u64>, TuneError> {
        let path = format!("{folder}/{file}");
        match root.text(&path) {
            Ok(text) => text.trim().parse().map(Some).map_err(|_| {
                TuneError::kernel(format!("reading {path}"), "the kernel shows no number")
            }),
            Err(error) if error.absent => Ok(None),
            Err(error) => Err(error.into()),
        }
    };
    let persistent = |node: Option<NodeId>| {
        let folder = pools.folder(node);
        let Some(all) = number(&folder, "nr_hugepages")? else { return Ok(None) };
        let surplus = number(&folder, "surplus_hugepages")?.unwrap_or_default();
        Ok::<_, TuneError>(Some(all.saturating_sub(surplus)))
    };
    let nodes = nodes(root);
    if nodes.is_empty() {
        return Ok(persistent(None)?.map(PoolCounts::Only));
    }
    let mut counts = BTreeMap::new();
    for node in nodes {
        let Some(count) = persistent(Some(node))? else { continue };
        counts.insert(node, count);
    }
    Ok(Some(counts).filter(|counts| !counts.is_empty()).map(PoolCounts::Nodes))
}

impl PoolsSetting<'_> {
    fn now(&self) -> Result<PoolCounts, TuneError> {
        let gone = || TuneError::kernel(self.name(), "the kernel has no hugepages of this size");
        counts(self.root, self.pools)?.ok_or_else(gone)
    }

    /// Sets the count of a pool, and reads it back.
    fn set(&self, node: Option<NodeId>, count: u64) -> Result<(), TuneError> {
        let path = format!("{}/nr_hugepages", self.pools.folder(node));
        let step = || format!("writing {count} to {path}");
        let refused = |error: io::Error| {
            let more = match Errno::from_io_error(&error) {
                Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => "; requires root",
                // Pages of 1 GiB on a kernel that cannot allocate them at run time.
                Some(Errno::INVAL) => "; this kernel allocates pages of this size only at boot",
                _ => "",
            };
            TuneError::kernel(step(), format!("{error}{more}"))
        };
        let opened = self.files.open(&path, OFlags::WRONLY | OFlags::TRUNC);
        let mut file = File::from(opened.map_err(|errno| refused(errno.into()))?);
        let text = count.to_string();
        match file.write(text.as_bytes()) {
            Ok(length) if length == text.len() => {}
            Ok(_) => return Err(refused(io::Error::other("only part of it was accepted"))),
            Err(error) => return Err(refused(error)),
        }
        let now = self.now()?.of(node);
        let size = self.pools.size();
        let place = node.map_or_else(String::new, |node| format!(" on node {node}"));
        match now {
            Some(now) if now == count => Ok(()),
            Some(now) if now < count => Err(TuneError::kernel(
                step(),
                format!(
                    "the kernel accepted it, but has only {now} pages of {size}{place}: too little free memory \
                     there, or none in one piece; reserve them at boot (hugepages=), or request fewer"
                ),
            )),
            now => {
                let now = now.map_or_else(|| "none".to_owned(), |now| now.to_string());
                Err(TuneError::kernel(step(), format!("the kernel accepted it, but has {now}")))
            }
        }
    }

    fn parse(&self, value: &str) -> Result<PoolCounts, TuneError> {
        value
            .parse()
            .map_err(|must| TuneError::Refused(format!("{}: {value:?} {must}", self.name())))
    }
}

impl Setting for PoolsSetting<'_> {
    fn name(&self) -> String {
        self.pools.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        self.parse(value).map(drop)
    }

    fn may_be_written(&self, now: &str, value: &str) -> Result<(), TuneError> {
        let (now, value) = (self.parse(now)?, self.parse(value)?);
        if now.same_pools(&value) {
            return Ok(());
        }
        Err(TuneError::Refused(format!(
            "{}: {value} must have a count for each pool of this host, like {now}",
            self.name()
        )))
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        Ok(counts(self.root, self.pools)?.map(|counts| counts.to_string()))
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        let (now, wanted) = (self.now()?, self.parse(value)?);
        let change = |(node, count): (Option<NodeId>, u64)| {
            let before = now.of(node)?;
            (before != count).then_some((node, before, count))
        };
        let mut changes: Vec<_> = wanted.iter().filter_map(change).collect();
        // Those that shrink first: their memory may be what another pool needs.
        changes.sort_by_key(|(_, before, count)| before < count);
        changes.into_iter().try_for_each(|(node, _, count)| self.set(node, count))
    }

    fn same(&self, now: &str, value: &str) -> bool {
        match (now.parse::<PoolCounts>(), value.parse()) {
            (Ok(now), Ok(value)) => now == value,
            _ => false,
        }
    }

    fn is_in_part(&self, now: &str, before: &str, after: &str, interrupted: bool) -> bool {
        let parsed = [now, before, after].map(|text| text.parse::<PoolCounts>().ok());
        let [Some(now), Some(before), Some(after)] = parsed else { return false };
        if !now.same_pools(&before) || !now.same_pools(&after) {
            return false;
        }
        // The kernel has moved pages of the pools.
        if now.total() == after.total() {
            return true;
        }
        // nearpath ended between two pools, or while the kernel allocated pages, one after another. It frees them
        // without being interrupted.
        let is_part = |(node, now): (Option<NodeId>, u64)| {
            let Some((before, after)) = before.of(node).zip(after.of(node)) else { return false };
            let allocating = interrupted || before > after;
            now == before
                || now == after
                || (allocating && (before.min(after)..=before.max(after)).contains(&now))
        };
        now.iter().all(is_part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn pool(tree: &Path, folder: &str, all: u64, surplus: u64) {
        let folder = tree.join(folder.trim_start_matches('/'));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("nr_hugepages"), format!("{all}\n")).unwrap();
        std::fs::write(folder.join("surplus_hugepages"), format!("{surplus}\n")).unwrap();
    }

    #[test]
    fn counts_are_of_persistent_pages_by_node() {
        let pools = HugepagePools::new(2048).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/1")).unwrap();
        let root = Root::tree(dir.path()).unwrap();
        assert_eq!(counts(&root, pools).unwrap(), None);
        pool(dir.path(), &pools.folder(None), 7, 0);
        assert_eq!(counts(&root, pools).unwrap(), Some(PoolCounts::Only(7)));
        pool(dir.path(), &pools.folder(Some(NodeId(0))), 512, 2);
        pool(dir.path(), &pools.folder(Some(NodeId(10))), 5, 0);
        // A node without memory.
        std::fs::create_dir_all(dir.path().join("sys/devices/system/node/node2")).unwrap();
        let now = counts(&root, pools).unwrap().unwrap();
        assert_eq!(now.to_string(), "0:510,10:5");
        let gib = HugepagePools::new(1 << 20).unwrap();
        assert_eq!(counts(&root, gib).unwrap(), None);
    }

    #[test]
    fn what_the_kernel_made_of_a_change_is_ours() {
        let (root, files) = (Root::live(), Files::live());
        let pools = HugepagePools::new(2048).unwrap();
        let its = PoolsSetting { root: &root, files: &files, pools };
        let ours =
            |now: &str, interrupted: bool| its.is_in_part(now, "0:1,1:0", "0:1,1:32", interrupted);
        // A migration has moved the pool.
        assert!(ours("0:33,1:0", false) && ours("0:20,1:13", false));
        // Half of it was allocated when nearpath was killed.
        assert!(ours("0:1,1:16", true) && !ours("0:1,1:16", false));
        // The undo was killed between two pools, or while it allocated.
        assert!(its.is_in_part("0:1,1:8", "0:1,1:8", "0:0,1:0", false));
        assert!(its.is_in_part("0:0,1:3", "0:1,1:8", "0:0,1:0", false));
        // An administrator's.
        assert!(!ours("0:1,1:64", true) && !ours("0:8,1:32", false) && !ours("33", false));
        assert!(its.may_be_written("0:1,1:0", "1:32").is_err());
        assert!(its.may_be_written("0:1,1:0", "0:1,1:32").is_ok());
        assert!(its.check("0:1,1:x").is_err() && its.check("0:1").is_ok());
    }
}
