//! Whether the memory of a cgroup's processes may be moved to other nodes: the kernel does that when their
//! `cpuset.mems` changes (`cpuset_migrate_mm` of kernel/cgroup/cpuset.c). Pages that a device may write to must stay.
//!
//! Input: the directory of a cgroup. Output: an error that names a process whose memory must stay, or for which that
//! is unknown. It is asked at the time of the write: a plan may be older, or edited.

use crate::TuneError;
use nearpath_host::{EntryKind, Root, memory_must_stay};
use nearpath_model::CpuSet;
use std::collections::BTreeSet;

/// Maximum number of descendant cgroups inspected.
const MAX_BELOW: usize = 4096;

/// Whether a change of nodes moves pages: not if all old nodes, as a list, remain allowed; an empty list is no limit.
pub(crate) fn moves(now: &str, value: &str) -> bool {
    match (CpuSet::from_list(now), CpuSet::from_list(value)) {
        (Ok(_), Ok(after)) if after.is_empty() => false,
        (Ok(now), Ok(after)) => now.is_empty() || !now.is_subset(&after),
        _ => true,
    }
}

/// Checks that no device may write to the memory of the processes of a cgroup; `what` is the setting in messages.
///
/// # Errors
/// One may, or that is unknown.
pub(crate) fn check_move(root: &Root, folder: &str, what: &str) -> Result<(), TuneError> {
    let refused = |why: String| Err(TuneError::Refused(format!("{what}: not changed: {why}")));
    let pids = match processes(root, folder) {
        Ok(pids) => pids,
        Err(reason) => return refused(format!("its processes are unknown: {reason}")),
    };
    for pid in pids {
        match memory_must_stay(root, pid) {
            Ok(None) => {}
            Ok(Some(reason)) => {
                return refused(format!("the memory of process {pid} would move, but {reason}"));
            }
            // It has exited.
            Err(_) if root.list(&format!("/proc/{pid}")).is_err_and(|error| error.absent) => {}
            Err(error) => {
                return refused(format!(
                    "the memory of process {pid} would move, and whether a device may write to it is \
                     unknown: {error}"
                ));
            }
        }
    }
    Ok(())
}

/// The processes in a cgroup and its descendants.
///
/// # Errors
/// They cannot be listed.
pub(crate) fn processes(root: &Root, folder: &str) -> Result<BTreeSet<u32>, String> {
    let mut all = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        seen += 1;
        if seen > MAX_BELOW {
            return Err(format!("it has more than {MAX_BELOW} descendant cgroups"));
        }
        let file = format!("{folder}/cgroup.procs");
        match root.text(&file) {
            Ok(text) => all.extend(text.lines().filter_map(|pid| pid.parse::<u32>().ok())),
            // Threaded cgroups list only threads; one may have exited.
            Err(error) if error.absent => {}
            Err(error) => return Err(error.to_string()),
        }
        let Ok(entries) = root.list(&folder) else { continue };
        let below = entries.into_iter().filter(|entry| entry.kind == EntryKind::Dir);
        folders.extend(below.map(|entry| format!("{folder}/{}", entry.name)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    #[test]
    fn wider_nodes_move_nothing() {
        for (now, value, expected) in [
            ("0-1", "1", true),
            ("0", "1", true),
            ("", "1", true),
            ("1", "0-1", false),
            ("1", "", false),
            ("0-1", "0,1", false),
            ("x", "1", true),
        ] {
            assert_eq!(moves(now, value), expected, "{now:?} {value:?}");
        }
    }

    /// A process in a tree, with this file open.
    fn process(tree: &Path, pid: u32, open: &str) {
        let folder = tree.join(format!("proc/{pid}"));
        fs::create_dir_all(folder.join("fd")).unwrap();
        fs::write(folder.join("numa_maps"), "7f00 default anon=1 N0=1 kernelpagesize_kB=4\n")
            .unwrap();
        symlink(open, folder.join("fd/3")).unwrap();
    }

    #[test]
    fn memory_that_a_device_may_write_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path();
        let below = tree.join("cgroup/app/workers");
        fs::create_dir_all(&below).unwrap();
        fs::write(tree.join("cgroup/app/cgroup.procs"), "70\n").unwrap();
        fs::write(below.join("cgroup.procs"), "71\n").unwrap();
        process(tree, 70, "/dev/null");
        process(tree, 71, "/dev/null");
        let root = Root::tree(tree).unwrap();
        let check = || check_move(&root, "/cgroup/app", "cpuset.mems of /app");
        check().unwrap();

        // Also of a process in a cgroup below.
        symlink("/dev/vfio/12", tree.join("proc/71/fd/4")).unwrap();
        let refused = check().unwrap_err().to_string();
        assert!(refused.contains("process 71") && refused.contains("/dev/vfio/12"), "{refused}");
        fs::remove_file(tree.join("proc/71/fd/4")).unwrap();
        check().unwrap();

        // What is unknown is not moved.
        fs::remove_file(tree.join("proc/70/numa_maps")).unwrap();
        let refused = check().unwrap_err().to_string();
        assert!(refused.contains("process 70") && refused.contains("unknown"), "{refused}");
        // A process that has exited has no memory.
        fs::remove_dir_all(tree.join("proc/70")).unwrap();
        check().unwrap();
    }
}
