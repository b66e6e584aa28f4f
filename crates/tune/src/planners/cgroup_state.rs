//! The cpuset of a process's cgroup, read before planning, as planners do not access the host.

use crate::cgroups::mount_point;
use crate::pages::processes;
use crate::setting::Setting;
use crate::units::booted;
use nearpath_host::Root;
use nearpath_model::{CpuSet, UnitProperty, UnitSetting, is_service};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

/// A cgroup with a cpuset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CgroupState {
    /// Its path in `/proc/PID/cgroup`.
    pub cgroup: String,
    /// The inode of its directory.
    pub inode: u64,
    /// The systemd service that owns the cgroup: systemd then sets its cpuset.
    pub service: Option<String>,
    /// `cpuset.cpus`, empty if inherited from the parent; `AllowedCPUs=` of a service.
    pub cpus: String,
    /// `cpuset.mems`; `AllowedMemoryNodes=` of a service.
    pub mems: String,
    /// `cpuset.cpus.partition`, where the cgroup may become a partition: its parent is one.
    pub partition: Option<String>,
    /// `cpuset.cpus.effective`.
    pub effective: CpuSet,
    /// That of the parent cgroup, which limits it.
    pub allowed: CpuSet,
    /// The processes in it and its descendants.
    pub processes: BTreeSet<u32>,
}

impl CgroupState {
    /// Reads that of a process.
    ///
    /// # Errors
    /// Why it has none that can be set.
    pub fn of(root: &Root, pid: u32) -> Result<Self, String> {
        let point = mount_point(root).ok_or("cgroup v2 is not mounted")?;
        let text = root.text(&format!("/proc/{pid}/cgroup")).map_err(|e| e.to_string())?;
        let cgroup = text
            .lines()
            .find_map(|line| line.strip_prefix("0::"))
            .ok_or("it is not in a cgroup v2")?;
        if cgroup == "/" {
            return Err("it is in the root cgroup, which has no cpuset".to_owned());
        }
        if let Some((cgroup, service)) = service_of(cgroup).filter(|_| booted()) {
            return Self::of_service(root, &point, cgroup, service);
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
            service: None,
            mems: file("cpuset.mems")?,
            partition: partition(root, &point, &folder, parent),
            effective: set(file("cpuset.cpus.effective")?)?,
            allowed: set(above.map_err(|e| e.to_string())?)?,
            processes: processes(root, &folder)?,
            cpus,
        })
    }

    /// Reads that of a service, for which systemd creates a cpuset when one is set.
    fn of_service(root: &Root, point: &str, cgroup: &str, service: &str) -> Result<Self, String> {
        let value = |property: UnitProperty| {
            let setting = UnitSetting::new(service, property);
            let value = setting.read().map_err(|error| error.to_string())?;
            value.ok_or_else(|| format!("systemd has no unit {service}"))
        };
        let folder = format!("{point}{cgroup}");
        let above = folder.rsplit_once('/').map_or(point, |(above, _)| above);
        Ok(Self {
            cgroup: cgroup.to_owned(),
            inode: std::fs::metadata(&folder).map_err(|e| e.to_string())?.ino(),
            service: Some(service.to_owned()),
            cpus: value(UnitProperty::AllowedCpus)?,
            mems: value(UnitProperty::AllowedMemoryNodes)?,
            partition: None,
            effective: effective(root, point, &folder)?,
            allowed: effective(root, point, above)?,
            processes: processes(root, &folder)?,
        })
    }
}

/// The kind of partition that a cgroup is; `None` if it cannot be one.
fn partition(root: &Root, point: &str, folder: &str, parent: &str) -> Option<String> {
    let of = |folder: &str| root.text(&format!("{folder}/cpuset.cpus.partition")).ok();
    // The root cgroup is one, and has no such file.
    let may_be =
        parent == point || of(parent).is_some_and(|its| ["root", "isolated"].contains(&its.trim()));
    may_be.then(|| of(folder).map(|its| its.trim().to_owned()))?
}

/// The service that a cgroup belongs to and the service's cgroup; systemd manages the tree down to there.
fn service_of(cgroup: &str) -> Option<(&str, &str)> {
    let mut end = 0;
    for name in cgroup.split('/') {
        end += name.len();
        if is_service(name) {
            return Some((cgroup.get(..end)?, name));
        }
        end += 1;
    }
    None
}

/// The effective CPUs of a cgroup: those of the nearest ancestor with a cpuset.
fn effective(root: &Root, point: &str, folder: &str) -> Result<CpuSet, String> {
    let mut folder = folder;
    loop {
        if let Ok(list) = root.text(&format!("{folder}/cpuset.cpus.effective")) {
            return CpuSet::from_list(&list).map_err(|error| error.to_string());
        }
        match folder.rsplit_once('/') {
            Some((above, _)) if above.len() >= point.len() => folder = above,
            _ => return Err("the cpuset controller is mounted as cgroup v1".to_owned()),
        }
    }
}

/// Why a cgroup has no cpuset. The controller is not enabled here: that is up to the cgroup manager.
fn not_enabled(root: &Root, folder: &str, parent: &str) -> String {
    let has = |file: String| {
        root.text(&file).is_ok_and(|text| text.split_ascii_whitespace().any(|c| c == "cpuset"))
    };
    if has(format!("{parent}/cgroup.controllers")) {
        format!(
            "the cpuset controller is not enabled for {folder}: echo +cpuset \
             >{parent}/cgroup.subtree_control"
        )
    } else {
        format!("the cpuset controller is not delegated to {parent}, or is mounted as cgroup v1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_by_cgroup_path() {
        let nginx = "/system.slice/nginx.service";
        assert_eq!(service_of(nginx), Some((nginx, "nginx.service")));
        assert_eq!(
            service_of("/system.slice/nginx.service/workers"),
            Some((nginx, "nginx.service"))
        );
        for other in ["/", "/user.slice/session-1.scope", "/.service/x", ""] {
            assert_eq!(service_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_cgroup_below_a_partition_may_become_one() {
        let dir = tempfile::tempdir().unwrap();
        for (folder, kind) in
            [("a", "member\n"), ("a/b", "member\n"), ("r", "root\n"), ("r/c", "member\n")]
        {
            let folder = dir.path().join("c").join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("cpuset.cpus.partition"), kind).unwrap();
        }
        std::fs::create_dir_all(dir.path().join("c/old")).unwrap();
        std::fs::create_dir_all(dir.path().join("proc")).unwrap();
        let root = Root::tree(dir.path()).unwrap();
        let of = |folder: &str, parent: &str| partition(&root, "/c", folder, parent);
        assert_eq!(of("/c/a", "/c").as_deref(), Some("member"));
        assert_eq!(of("/c/a/b", "/c/a"), None, "its parent is none");
        assert_eq!(of("/c/r/c", "/c/r").as_deref(), Some("member"));
        assert_eq!(of("/c/old", "/c"), None, "without the file");
    }

    #[test]
    fn the_nearest_ancestor_with_a_cpuset_is_effective() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["proc", "c/a/b/d"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::fs::write(dir.path().join("c/a/cpuset.cpus.effective"), "0-3\n").unwrap();
        let root = Root::tree(dir.path()).unwrap();
        assert_eq!(effective(&root, "/c", "/c/a/b/d").unwrap().to_string(), "0-3");
        assert!(effective(&root, "/c", "/c").unwrap_err().contains("cgroup v1"));
    }
}
