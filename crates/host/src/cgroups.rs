//! Limits of the cgroups of socket owners: the CPUs of their cpuset, and CPU quotas with their
//! throttling statistics.
//!
//! Input: a root and the owners. Output: the cgroups with a quota, including ancestors of the owners'
//! cgroups; the owners get their cpuset. Version 2 is read (Documentation/admin-guide/cgroup-v2.rst:
//! `cpu.max`, `cpu.stat`, `cpuset.cpus.effective`), else version 1 (cgroup-v1/cpusets.rst,
//! scheduler/sched-bwc.rst: `cpu.cfs_quota_us`). A group without the file has no limit.

use crate::{Notes, Root};
use nearpath_model::{Cgroup, CpuSet, SocketOwner};
use std::collections::BTreeMap;

/// Maximum number of groups read, for all owners: a host has some hundreds.
const MAX_GROUPS: usize = 4096;
/// Name of the fact in notes.
const FACT: &str = "cgroups";
/// Maximum depth of groups; the kernel has no bound, systemd and Kubernetes create some ten levels.
const MAX_DEPTH: usize = 32;

/// Reads the limits, and sets the cpusets. What hides the limits of all owners is noted once.
pub(crate) fn read(root: &Root, notes: &mut Notes, owners: &mut [SocketOwner]) -> Vec<Cgroup> {
    if owners.is_empty() {
        return Vec::new();
    }
    let mounts = match Mounts::read(root) {
        Ok(mounts) => mounts,
        Err(reason) => {
            // The root has no limits, and neither have processes that never left it.
            let is_limited = |owner: &SocketOwner| {
                let text = root.text(&format!("/proc/{}/cgroup", owner.pid)).unwrap_or_default();
                text.lines().any(|line| line.splitn(3, ':').nth(2).is_some_and(|path| path != "/"))
            };
            if owners.iter().any(is_limited) {
                notes.add("host", FACT, &reason);
            }
            return Vec::new();
        }
    };
    let mut hidden = None;
    let mut cpusets: BTreeMap<String, Option<CpuSet>> = BTreeMap::new();
    let mut groups: BTreeMap<String, Option<Cgroup>> = BTreeMap::new();
    for owner in owners {
        let bytes = match root.read(&format!("/proc/{}/cgroup", owner.pid)) {
            Ok(bytes) => bytes,
            // It has exited in the meantime.
            Err(error) if error.absent => continue,
            Err(error) => {
                hidden.get_or_insert_with(|| error.to_string());
                continue;
            }
        };
        let text = String::from_utf8_lossy(&bytes);
        let paths = Paths::parse(&text);
        if let Some((folder, file, path)) = mounts.cpuset(&paths) {
            // A group without the controller has the limit of the one above it.
            let read = || and_above(path).find_map(|path| cpuset_of(root, folder, path, file));
            let known = cpusets.entry(path.to_owned()).or_insert_with(read);
            owner.cpuset = known.clone().filter(|cpus| !cpus.is_empty());
        }
        let Some((folder, version, path)) = mounts.cpu(&paths) else { continue };
        if !is_plain(path) {
            hidden.get_or_insert_with(|| {
                format!("/proc/{}/cgroup: {path} is outside of this cgroup namespace", owner.pid)
            });
            continue;
        }
        for path in and_above(path) {
            if groups.len() >= MAX_GROUPS && !groups.contains_key(path) {
                break;
            }
            let group = groups
                .entry(path.to_owned())
                .or_insert_with(|| version.limit(root, &format!("{folder}{path}"), path));
            group.iter_mut().for_each(|group| group.pids.push(owner.pid));
        }
    }
    if let Some(reason) = hidden {
        notes.add("host", FACT, &reason);
    }
    groups.into_values().flatten().collect()
}

/// The CPUs of a group; `None` if it has no such file.
fn cpuset_of(root: &Root, folder: &str, path: &str, file: &str) -> Option<CpuSet> {
    CpuSet::from_list(root.text(&format!("{folder}{path}/{file}")).ok()?.trim()).ok()
}

/// A group and its ancestors, without the root, which has no limits.
fn and_above(path: &str) -> impl Iterator<Item = &str> {
    let whole = Some(path).filter(|path| is_plain(path));
    std::iter::successors(whole, |path| Some(path.rsplit_once('/')?.0))
        .take_while(|path| !path.is_empty())
        .take(MAX_DEPTH)
}

/// A path within the hierarchy: that of a process outside of the current namespace starts with `/..`.
fn is_plain(path: &str) -> bool {
    path.strip_prefix('/')
        .is_some_and(|rest| !rest.split('/').any(|name| matches!(name, "." | "..")))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// The quota of a group, if it has one.
    fn limit(self, root: &Root, folder: &str, path: &str) -> Option<Cgroup> {
        let text = |file: &str| root.text(&format!("{folder}/{file}")).ok();
        let (quota_us, period_us) = match self {
            Self::Two => {
                let max = text("cpu.max")?;
                let (quota, period) = max.split_once(' ')?;
                // `max 100000` means unlimited.
                (quota.parse().ok()?, period.parse().ok()?)
            }
            Self::One => {
                // -1 means unlimited.
                (text("cpu.cfs_quota_us")?.parse().ok()?, text("cpu.cfs_period_us")?.parse().ok()?)
            }
        };
        let stat = text("cpu.stat").unwrap_or_default();
        let value = |name: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line?.trim().parse::<u64>().ok()
        };
        Some(Cgroup {
            path: path.to_owned(),
            pids: Vec::new(),
            quota_us,
            period_us,
            periods: value("nr_periods"),
            throttled_periods: value("nr_throttled"),
            throttled_us: value("throttled_usec").or_else(|| Some(value("throttled_time")? / 1000)),
        })
    }
}

/// Mount points of the hierarchies.
#[derive(Debug, Default)]
struct Mounts {
    two: Option<String>,
    cpu: Option<String>,
    cpuset: Option<String>,
}

impl Mounts {
    /// # Errors
    /// Why no hierarchy can be read.
    fn read(root: &Root) -> Result<Self, String> {
        let mut mounts = Self::default();
        let table = root.text("/proc/self/mountinfo").map_err(|error| error.to_string())?;
        for line in table.lines() {
            // `30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate` (proc(5)).
            let Some((mount, file_system)) = line.split_once(" - ") else { continue };
            let mut fields = mount.split(' ').skip(3);
            let (Some("/"), Some(point)) = (fields.next(), fields.next()) else { continue };
            let mut kind = file_system.split(' ');
            let has = |name| {
                file_system.rsplit(' ').next().is_some_and(|o| o.split(',').any(|o| o == name))
            };
            match kind.next() {
                Some("cgroup2") => drop(mounts.two.get_or_insert(point.to_owned())),
                Some("cgroup") => {
                    for (name, slot) in [("cpu", &mut mounts.cpu), ("cpuset", &mut mounts.cpuset)] {
                        if has(name) {
                            slot.get_or_insert(point.to_owned());
                        }
                    }
                }
                _ => {}
            }
        }
        match (&mounts.two, &mounts.cpu, &mounts.cpuset) {
            (None, None, None) => {
                Err("/proc/self/mountinfo: no cgroup hierarchy is mounted with its root".to_owned())
            }
            _ => Ok(mounts),
        }
    }

    /// The hierarchy of a process's cpuset, with the file and the group.
    fn cpuset<'a>(&'a self, paths: &Paths<'a>) -> Option<(&'a str, &'static str, &'a str)> {
        let one = || Some((self.cpuset.as_deref()?, "cpuset.effective_cpus", paths.cpuset?));
        let two = || Some((self.two.as_deref()?, "cpuset.cpus.effective", paths.two?));
        one().or_else(two).filter(|(.., path)| is_plain(path))
    }

    /// The hierarchy that limits its CPU time.
    fn cpu<'a>(&'a self, paths: &Paths<'a>) -> Option<(&'a str, Version, &'a str)> {
        let one = || Some((self.cpu.as_deref()?, Version::One, paths.cpu?));
        let two = || Some((self.two.as_deref()?, Version::Two, paths.two?));
        one().or_else(two)
    }
}

/// The groups of a process by controller, from `/proc/PID/cgroup`.
#[derive(Debug, Default)]
struct Paths<'a> {
    two: Option<&'a str>,
    cpu: Option<&'a str>,
    cpuset: Option<&'a str>,
}

impl<'a> Paths<'a> {
    fn parse(text: &'a str) -> Self {
        let mut paths = Self::default();
        for line in text.lines() {
            // `3:cpu,cpuacct:/system.slice`; the path may contain colons.
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            if controllers.is_empty() {
                paths.two = Some(path);
            }
            for controller in controllers.split(',') {
                match controller {
                    "cpu" => paths.cpu = Some(path),
                    "cpuset" => paths.cpuset = Some(path),
                    _ => {}
                }
            }
        }
        paths
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn owner(pid: u32) -> SocketOwner {
        SocketOwner { pid, comm: "nginx".to_owned(), ..SocketOwner::default() }
    }

    /// The cgroups and the cpusets of processes 7 and 8, in a tree with these files.
    fn of_tree(files: &[(&str, &str)]) -> (Vec<Cgroup>, Vec<Option<String>>) {
        let (groups, cpusets, _) = and_notes(files);
        (groups, cpusets)
    }

    /// With the reasons of what is unknown.
    fn and_notes(files: &[(&str, &str)]) -> (Vec<Cgroup>, Vec<Option<String>>, Vec<String>) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut owners = [owner(7), owner(8)];
        let mut notes = Notes::default();
        let groups = read(&Root::tree(dir.path()).unwrap(), &mut notes, &mut owners);
        let cpusets = owners.map(|o| o.cpuset.map(|cpus| cpus.to_string())).to_vec();
        (groups, cpusets, notes.unknown().iter().map(|note| note.reason.clone()).collect())
    }

    #[test]
    fn limits_that_cannot_be_seen_are_noted() {
        const MOUNTED: (&str, &str) =
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        let notes = |files: &[(&str, &str)]| and_notes(files).2.concat();
        let elsewhere =
            ("proc/self/mountinfo", "30 23 0:26 /docker/a /sys/fs/cgroup rw - cgroup2 c rw\n");
        let web = ("proc/7/cgroup", "0::/web\n");
        assert!(notes(&[elsewhere, web]).contains("no cgroup hierarchy is mounted"));
        assert!(notes(&[web]).contains("mountinfo"));
        assert!(notes(&[MOUNTED, ("proc/7/cgroup", "0::/../web\n")]).contains("is outside of"));
        // Without a limit there is nothing to be noted: the root, no cgroups at all.
        assert_eq!(notes(&[MOUNTED, web]), "");
        assert_eq!(notes(&[elsewhere, ("proc/7/cgroup", "0::/\n")]), "");
        assert_eq!(notes(&[("proc/7/comm", "nginx\n")]), "");
    }

    #[test]
    fn version_2_with_the_limit_of_an_ancestor() {
        let (groups, cpusets) = of_tree(&[
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("proc/7/cgroup", "0::/pods.slice/web.scope\n"),
            ("proc/8/cgroup", "0::/pods.slice\n"),
            ("sys/fs/cgroup/pods.slice/cpu.max", "50000 100000\n"),
            (
                "sys/fs/cgroup/pods.slice/cpu.stat",
                "usage_usec 9\nnr_periods 80\nnr_throttled 20\nthrottled_usec 900\n",
            ),
            ("sys/fs/cgroup/pods.slice/web.scope/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/pods.slice/web.scope/cpuset.cpus.effective", "2-3\n"),
        ]);
        let expected = Cgroup {
            path: "/pods.slice".to_owned(),
            pids: vec![7, 8],
            quota_us: 50_000,
            period_us: 100_000,
            periods: Some(80),
            throttled_periods: Some(20),
            throttled_us: Some(900),
        };
        assert_eq!(groups, [expected]);
        assert_eq!(cpusets, [Some("2-3".to_owned()), None]);
    }

    #[test]
    fn version_1() {
        let (groups, cpusets) = of_tree(&[
            (
                "proc/self/mountinfo",
                "31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                 32 23 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n",
            ),
            ("proc/7/cgroup", "4:cpu,cpuacct:/web\n3:cpuset:/bound\n0::/x\n"),
            ("proc/8/cgroup", "4:cpu,cpuacct:/\n3:cpuset:/\n"),
            ("sys/fs/cgroup/cpu,cpuacct/web/cpu.cfs_quota_us", "20000\n"),
            ("sys/fs/cgroup/cpu,cpuacct/web/cpu.cfs_period_us", "100000\n"),
            (
                "sys/fs/cgroup/cpu,cpuacct/web/cpu.stat",
                "nr_periods 8\nnr_throttled 2\nthrottled_time 900000\n",
            ),
            ("sys/fs/cgroup/cpuset/bound/cpuset.effective_cpus", "5\n"),
        ]);
        let found: Vec<_> = groups.iter().map(|g| (g.path.as_str(), g.throttled_us)).collect();
        assert_eq!(found, [("/web", Some(900))]);
        assert_eq!(cpusets, [Some("5".to_owned()), None]);
    }

    #[test]
    fn a_cpuset_above_counts_where_the_group_has_none() {
        // A container whose init has made groups of its own, without the cpuset controller.
        const POD: &str = "kubepods.slice/kubepods-pod1.slice/cri-containerd-4f.scope";
        let init = format!("0::/{POD}/init.scope\n");
        let effective = format!("sys/fs/cgroup/{POD}/cpuset.cpus.effective");
        let mounted =
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        let tree = [
            mounted,
            ("proc/7/cgroup", init.as_str()),
            ("proc/8/cgroup", "0::/user.slice/x.scope\n"),
            (&effective, "2-3\n"),
            ("sys/fs/cgroup/cpuset.cpus.effective", "0-7\n"),
        ];
        assert_eq!(of_tree(&tree).1, [Some("2-3".to_owned()), None]);
        // Version 1 without a cpu controller, in a container of CRI-O.
        let scope =
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod2.slice/crio-9.scope";
        let of_seven = format!("11:cpuset:/{scope}\n0::/system.slice/crio.service\n");
        let effective = format!("sys/fs/cgroup/cpuset/{scope}/cpuset.effective_cpus");
        let tree = [
            (
                "proc/self/mountinfo",
                "32 23 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n",
            ),
            ("proc/7/cgroup", of_seven.as_str()),
            (&effective, "5,7\n"),
        ];
        assert_eq!(of_tree(&tree).1, [Some("5,7".to_owned()), None]);
    }

    #[test]
    fn paths_outside_and_malformed_limits_are_ignored() {
        let (groups, cpusets) = of_tree(&[
            ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("proc/7/cgroup", "0::/../../etc\n"),
            ("proc/8/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/cpu.max", "fast\n"),
            ("sys/fs/cgroup/a/cpuset.cpus.effective", "\n"),
            ("etc/cpu.max", "1 1\n"),
        ]);
        assert_eq!((groups, cpusets), (Vec::new(), vec![None, None]));
        assert_eq!(of_tree(&[("proc/7/cgroup", "0::/a\n")]), (Vec::new(), vec![None, None]));
    }
}
