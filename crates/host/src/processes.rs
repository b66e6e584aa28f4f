//! The processes under `/proc`, as visible to this user and namespace.
//!
//! Input: a root. Output: process ids, and the name, affinity and cgroup of a process.

use crate::cpu_table::{Malformed, printable};
use crate::{ReadError, Root};
use nearpath_model::CpuSet;
use std::sync::LazyLock;

/// The process ids, ascending.
///
/// # Errors
/// `/proc` cannot be read, or has no processes (a tree captured without processes).
pub(crate) fn pids(root: &Root) -> Result<Vec<u32>, ReadError> {
    let names = root.list("/proc")?;
    let mut pids: Vec<u32> = names.iter().filter_map(|entry| entry.name.parse().ok()).collect();
    if pids.is_empty() {
        return Err(ReadError::new("/proc", "no processes"));
    }
    pids.sort_unstable();
    Ok(pids)
}

/// A process's name, without its final newline.
///
/// # Errors
/// It has exited, or is hidden and belongs to another user.
pub(crate) fn comm(root: &Root, pid: u32) -> Result<String, ReadError> {
    Ok(printable(root.read(&format!("/proc/{pid}/comm"))?.trim_ascii_end()))
}

/// The parent of a process; `None` if it has exited, is hidden, or has none in the namespace of `/proc`.
pub(crate) fn parent(root: &Root, pid: u32) -> Option<u32> {
    let status = root.read(&format!("/proc/{pid}/status")).ok()?;
    let line = status.split(|&b| b == b'\n').find_map(|line| line.strip_prefix(b"PPid:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok().filter(|&parent| parent > 0)
}

/// Where a process or a thread may run, according to `/proc/PID/status`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    /// `Cpus_allowed_list`.
    pub cpus: Option<CpuSet>,
    /// `Mems_allowed_list`, nodes in cpulist format; `None` without NUMA and cpusets.
    pub mems: Option<String>,
}

/// Parses `/proc/PID/status`.
///
/// # Errors
/// A malformed list.
pub fn parse_status(bytes: &[u8]) -> Result<Allowed, Malformed> {
    let mut allowed = Allowed::default();
    // These lines are near the end; the thread's name, in the first line, cannot contain a newline.
    for line in bytes.split(|&b| b == b'\n') {
        if let Some(list) = line.strip_prefix(b"Cpus_allowed_list:") {
            allowed.cpus = Some(cpu_list(list)?);
        } else if let Some(list) = line.strip_prefix(b"Mems_allowed_list:") {
            // Validated, since it is printed; nodes are numbered like CPUs.
            allowed.mems = Some(cpu_list(list)?.to_string());
        }
    }
    Ok(allowed)
}

/// The CPUs that a thread may run on; `None` if it has exited or access is denied.
pub fn thread_cpus(root: &Root, pid: u32, tid: u32) -> Option<CpuSet> {
    let status = root.read(&format!("/proc/{pid}/task/{tid}/status")).ok()?;
    parse_status(&status).ok()?.cpus
}

fn cpu_list(text: &[u8]) -> Result<CpuSet, Malformed> {
    CpuSet::from_list(&String::from_utf8_lossy(text)).map_err(|e| Malformed(e.to_string()))
}

/// The cgroup that determines where a process runs, from `/proc/PID/cgroup`: that of the cpuset controller of v1, else
/// the v2 path, else that of the cpu controller. On hosts with both versions, the first one that is not the root: a
/// controller is in one of them, and the v2 path of a container may be that of the service that started it.
pub fn parse_cgroup(bytes: &[u8]) -> Option<String> {
    let mut paths = [None; 3];
    for line in bytes.split(|&b| b == b'\n') {
        // `3:cpu,cpuacct:/system.slice`; the path may contain colons.
        let mut fields = line.splitn(3, |&b| b == b':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let has = |name: &[u8]| controllers.split(|&b| b == b',').any(|c| c == name);
        let rank = [b"cpuset".as_slice(), b"", b"cpu"].iter().position(|name| has(name));
        if let Some(slot) = rank.and_then(|rank| paths.get_mut(rank)) {
            *slot = Some(path);
        }
    }
    let known = || paths.iter().flatten();
    known().find(|path| **path != b"/").or_else(|| known().next()).map(|path| printable(path))
}

/// The cgroup of a thread, given its id in /proc; `None` for the idle task, and if it has exited.
pub fn cgroup_of(root: &Root, pid: u32) -> Option<String> {
    if pid == 0 {
        return None;
    }
    parse_cgroup(&root.read(&format!("/proc/{pid}/cgroup")).ok()?)
}

/// Whether the kernel refuses to move a task to other CPUs (`PF_NO_SETAFFINITY` of include/linux/sched.h),
/// like per-CPU workqueue workers and per-CPU threads; `None` if it has exited.
pub fn is_bound(root: &Root, pid: u32) -> Option<bool> {
    const PF_NO_SETAFFINITY: u32 = 0x0400_0000;
    let stat = root.read(&format!("/proc/{pid}/stat")).ok()?;
    Some(parse_flags(&stat)? & PF_NO_SETAFFINITY != 0)
}

/// Whether it is a thread of this process.
pub fn is_own(root: &Root, tid: u32) -> bool {
    root.read(&format!("/proc/{}/task/{tid}/comm", std::process::id())).is_ok()
}

/// The flags, the ninth field of `/proc/PID/stat`. The second is a name in parentheses, which may contain
/// blanks and parentheses.
fn parse_flags(stat: &[u8]) -> Option<u32> {
    let end = stat.iter().rposition(|&b| b == b')')?;
    let text = str::from_utf8(stat.get(end + 1..)?).ok()?;
    text.split_ascii_whitespace().nth(6)?.parse().ok()
}

/// Inode of the PID namespace whose ids this machine's /proc shows, like all other tools; `None` for the initial
/// one, whose ids are the kernel's own, and if unknown.
pub fn pid_namespace() -> Option<u32> {
    static INODE: LazyLock<Option<u32>> = LazyLock::new(|| pid_namespace_of(&Root::live()));
    *INODE
}

fn pid_namespace_of(root: &Root) -> Option<u32> {
    let inode = namespace_shown(root, "self").or_else(|| {
        // We are in a child namespace. Not all of its processes may be accessible.
        pids(root).ok()?.iter().find_map(|pid| namespace_shown(root, &pid.to_string()))
    })?;
    u32::try_from(inode).ok().filter(|_| inode != FIRST_PID_NAMESPACE)
}

/// Inode of a process's PID namespace, if that is the one of /proc: it then has a single id there.
fn namespace_shown(root: &Root, process: &str) -> Option<u64> {
    let status = root.text(&format!("/proc/{process}/status")).ok()?;
    if ids_shown(&status)? > 1 {
        return None;
    }
    let link = root.link(&format!("/proc/{process}/ns/pid")).ok()?;
    link.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// Number of ids of a process, in the namespace of /proc and its children, from `/proc/PID/status`.
fn ids_shown(status: &str) -> Option<usize> {
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    Some(ids.split_whitespace().count())
}

/// Its inode (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_process_below_the_namespace_of_proc_has_several_ids() {
        assert_eq!(ids_shown("Name:\tsh\nNSpid:\t8707\t1\nNSsid:\t1\n"), Some(2));
        assert_eq!(ids_shown("NSpid:\t8707\n"), Some(1));
        assert_eq!(ids_shown("Name:\tNSpid: 1\n"), None);
    }

    #[test]
    fn the_namespace_is_that_of_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        let process = |pid: &str, ids: &str, inode: &str| {
            let folder = dir.path().join("proc").join(pid);
            std::fs::create_dir_all(folder.join("ns")).unwrap();
            std::fs::write(folder.join("status"), format!("NSpid:\t{ids}\n")).unwrap();
            std::fs::write(folder.join("cgroup"), format!("0::/slice-{pid}\n")).unwrap();
            std::os::unix::fs::symlink(format!("pid:[{inode}]"), folder.join("ns/pid")).unwrap();
        };
        process("self", "70 1", "4026532300");
        process("70", "70 1", "4026532300");
        process("90", "90", "4026532200");
        let root = Root::tree(dir.path()).unwrap();
        assert_eq!(pid_namespace_of(&root), Some(4_026_532_200), "of the process with one id");
        assert_eq!(cgroup_of(&root, 90).as_deref(), Some("/slice-90"));
        assert_eq!((cgroup_of(&root, 0), cgroup_of(&root, 91)), (None, None));
        process("80", "80", "4026531836");
        assert_eq!(pid_namespace_of(&root), None, "the initial one");
    }

    #[test]
    fn tasks_that_cannot_be_migrated() {
        let stat = b"19 (ksoftirqd/1) S 2 0 0 0 -1 69238848 0 0 0 0 7 81 0 0 20 0 1 0 8 0 0\n";
        assert_eq!(parse_flags(stat).unwrap() & 0x0400_0000, 0x0400_0000);
        assert_eq!(parse_flags(b"7 (a b) c) R 1 7 7 0 -1 4194304 0\n"), Some(4_194_304));
        assert_eq!((parse_flags(b"7 (a) R 1"), parse_flags(b"")), (None, None));
        assert_eq!(is_bound(&Root::live(), std::process::id()), Some(false));
    }

    #[test]
    fn status_has_the_affinity_of_a_thread() {
        let text = b"Name:\tnginx\nThreads:\t1\nCpus_allowed:\tf0\nCpus_allowed_list:\t4-7\n\
            Mems_allowed:\t00000000,00000003\nMems_allowed_list:\t0-1\n";
        let allowed = parse_status(text).unwrap();
        assert_eq!(allowed.cpus.unwrap().to_string(), "4-7");
        assert_eq!(allowed.mems.as_deref(), Some("0-1"));
        // A kernel without NUMA and cpusets.
        assert_eq!(parse_status(b"Name:\tx\n").unwrap(), Allowed::default());
        assert!(parse_status(b"Cpus_allowed_list:\tall\n").is_err());
    }

    #[test]
    fn cgroup_of_cpuset_then_v2_then_cpu() {
        for (text, cgroup) in [
            ("0::/system.slice/nginx.service\n", Some("/system.slice/nginx.service")),
            ("0::/\n", Some("/")),
            ("12:cpuset:/docker/a:b\n4:cpu,cpuacct:/x\n1:name=systemd:/y\n", Some("/docker/a:b")),
            ("4:cpu,cpuacct:/x\n3:memory:/m\n0::/\n", Some("/x")),
            (
                "5:cpuset:/kubepods/pod1/4f\n0::/system.slice/containerd.service\n",
                Some("/kubepods/pod1/4f"),
            ),
            ("5:cpuset:/\n0::/system.slice/nginx.service\n", Some("/system.slice/nginx.service")),
            ("3:cpuset:/\n2:cpuacct:/z\n1:cpu:/\n", Some("/")),
            ("3:memory:/m\n", None),
            ("", None),
        ] {
            assert_eq!(parse_cgroup(text.as_bytes()).as_deref(), cgroup, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_status(&bytes);
            let _ = parse_status(&[b"Cpus_allowed_list:", &bytes[..]].concat());
            let _ = parse_cgroup(&bytes);
            let _ = parse_cgroup(&[b"0::", &bytes[..]].concat());
        }
    }
}
