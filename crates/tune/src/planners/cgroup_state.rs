//! What the cgroup of a process has as its cpuset: read before planning, as a planner reads nothing.

use crate::cgroups::mount_point;
use nearpath_host::{CpuSet, EntryKind, Root};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

/// Cgroups that are looked into below one, at most.
const MAX_BELOW: usize = 4096;

/// A cgroup with a cpuset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CgroupState {
    /// As `/proc/PID/cgroup` names it.
    pub cgroup: String,
    /// The inode of its folder.
    pub inode: u64,
    /// `cpuset.cpus`, empty when it takes those of the cgroup above.
    pub cpus: String,
    /// `cpuset.mems`.
    pub mems: String,
    /// `cpuset.cpus.effective`.
    pub effective: CpuSet,
    /// That of the cgroup above: it may be given no others.
    pub allowed: CpuSet,
    /// The processes in it and below it.
    pub processes: BTreeSet<u32>,
}

impl CgroupState {
    /// That of a process.
    ///
    /// # Errors
    /// It has none that may be set, and why.
    pub fn of(root: &Root, pid: u32) -> Result<Self, String> {
        let point = mount_point(root).ok_or("cgroup v2 is not mounted here")?;
        let text = root.text(&format!("/proc/{pid}/cgroup")).map_err(|e| e.to_string())?;
        let cgroup = text
            .lines()
            .find_map(|line| line.strip_prefix("0::"))
            .ok_or("it is in no cgroup of version 2")?;
        if cgroup == "/" {
            return Err("it is in the root of the cgroups, which has no cpuset".to_owned());
        }
        let folder = format!("{point}{cgroup}");
        let parent = folder.rsplit_once('/').map_or(point.as_str(), |(parent, _)| parent);
        let file = |name: &str| root.text(&format!("{folder}/{name}")).map_err(|e| e.to_string());
        let Ok(cpus) = file("cpuset.cpus") else {
            return Err(not_enabled(root, &folder, parent));
        };
        let set = |text: String| CpuSet::from_list(&text).map_err(|e| e.to_string());
        let above = root.text(&format!("{parent}/cpuset.cpus.effective"));
        Ok(Self {
            cgroup: cgroup.to_owned(),
            inode: std::fs::metadata(&folder).map_err(|e| e.to_string())?.ino(),
            mems: file("cpuset.mems")?,
            effective: set(file("cpuset.cpus.effective")?)?,
            allowed: set(above.map_err(|e| e.to_string())?)?,
            processes: processes(root, &folder)?,
            cpus,
        })
    }
}

/// Why a cgroup has no cpuset. It is not enabled for it: whoever manages the cgroups decides that.
fn not_enabled(root: &Root, folder: &str, parent: &str) -> String {
    let has = |file: String| {
        root.text(&file).is_ok_and(|text| text.split_ascii_whitespace().any(|c| c == "cpuset"))
    };
    if has(format!("{parent}/cgroup.controllers")) {
        format!(
            "the cpuset controller is not enabled for {folder}: systemctl set-property --runtime \
             UNIT AllowedCPUs= does it for a unit, else echo +cpuset >{parent}/cgroup.subtree_control"
        )
    } else {
        format!("the cpuset controller is not delegated to {parent}, or is one of cgroup v1 here")
    }
}

fn processes(root: &Root, folder: &str) -> Result<BTreeSet<u32>, String> {
    let mut all = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        seen += 1;
        if seen > MAX_BELOW {
            return Err(format!("more than {MAX_BELOW} cgroups are below it"));
        }
        let file = format!("{folder}/cgroup.procs");
        match root.text(&file) {
            Ok(text) => all.extend(text.lines().filter_map(|pid| pid.parse::<u32>().ok())),
            // Of a threaded cgroup only its threads can be listed; one may be gone.
            Err(error) if error.absent => {}
            Err(error) => return Err(error.to_string()),
        }
        let Ok(entries) = root.list(&folder) else { continue };
        let below = entries.into_iter().filter(|entry| entry.kind == EntryKind::Dir);
        folders.extend(below.map(|entry| format!("{folder}/{}", entry.name)));
    }
    Ok(all)
}
