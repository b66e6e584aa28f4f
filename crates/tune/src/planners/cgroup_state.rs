//! What the cgroup of a process has as its cpuset: read before planning, as a planner reads nothing.

use crate::cgroups::mount_point;
use crate::setting::Setting;
use crate::units::booted;
use nearpath_host::{EntryKind, Root};
use nearpath_model::{CpuSet, UnitProperty, UnitSetting, is_service};
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
    /// The systemd service whose cgroup it is: systemd then sets its cpuset.
    pub service: Option<String>,
    /// `cpuset.cpus`, empty when it takes those of the cgroup above; `AllowedCPUs=` of a service.
    pub cpus: String,
    /// `cpuset.mems`; `AllowedMemoryNodes=` of a service.
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
            effective: set(file("cpuset.cpus.effective")?)?,
            allowed: set(above.map_err(|e| e.to_string())?)?,
            processes: processes(root, &folder)?,
            cpus,
        })
    }

    /// That of a service, which systemd gives a cpuset when one is set.
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
            effective: effective(root, point, &folder)?,
            allowed: effective(root, point, above)?,
            processes: processes(root, &folder)?,
        })
    }
}

/// The cgroup of the service that a cgroup is in, and the service: systemd manages it down to there.
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

/// The CPUs that are in effect in a cgroup: those of the nearest one above with a cpuset.
fn effective(root: &Root, point: &str, folder: &str) -> Result<CpuSet, String> {
    let mut folder = folder;
    loop {
        if let Ok(list) = root.text(&format!("{folder}/cpuset.cpus.effective")) {
            return CpuSet::from_list(&list).map_err(|error| error.to_string());
        }
        match folder.rsplit_once('/') {
            Some((above, _)) if above.len() >= point.len() => folder = above,
            _ => return Err("the cpuset controller is one of cgroup v1 here".to_owned()),
        }
    }
}

/// Why a cgroup has no cpuset. It is not enabled for it: whoever manages the cgroups decides that.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_in_the_path_of_their_cgroups() {
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
    fn what_is_in_effect_is_that_of_the_nearest_cpuset_above() {
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
