//! The processes under `/proc`, as far as this user and this namespace see them.
//!
//! In goes a root, out come process ids, and of a process its name, its affinity and its cgroup.

use crate::cpu_table::{Malformed, printable};
use crate::{ReadError, Root};
use nearpath_model::CpuSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::LazyLock;

/// The process ids, ascending.
///
/// # Errors
/// `/proc` cannot be read, or holds no process (a tree that was not taken with processes).
pub(crate) fn pids(root: &Root) -> Result<Vec<u32>, ReadError> {
    let names = root.list("/proc")?;
    let mut pids: Vec<u32> = names.iter().filter_map(|entry| entry.name.parse().ok()).collect();
    if pids.is_empty() {
        return Err(ReadError::new("/proc", "holds no process"));
    }
    pids.sort_unstable();
    Ok(pids)
}

/// A process's name, without its final newline.
///
/// # Errors
/// It has ended, or belongs to somebody else who hides it.
pub(crate) fn comm(root: &Root, pid: u32) -> Result<String, ReadError> {
    Ok(printable(root.read(&format!("/proc/{pid}/comm"))?.trim_ascii_end()))
}

/// What `/proc/PID/status` tells of where a process or a thread may run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    /// `Cpus_allowed_list`.
    pub cpus: Option<CpuSet>,
    /// `Mems_allowed_list`, a list of nodes like a cpulist; `None` without NUMA and cpusets.
    pub mems: Option<String>,
}

/// Reads the text of `/proc/PID/status`.
///
/// # Errors
/// A list that is none.
pub fn parse_status(bytes: &[u8]) -> Result<Allowed, Malformed> {
    let mut allowed = Allowed::default();
    // These lines stand near the end; a thread's name, the first, cannot hold a newline there.
    for line in bytes.split(|&b| b == b'\n') {
        if let Some(list) = line.strip_prefix(b"Cpus_allowed_list:") {
            allowed.cpus = Some(cpu_list(list)?);
        } else if let Some(list) = line.strip_prefix(b"Mems_allowed_list:") {
            // Checked, since it is shown; nodes are numbered like CPUs.
            allowed.mems = Some(cpu_list(list)?.to_string());
        }
    }
    Ok(allowed)
}

/// The CPUs that a thread may run on; `None` when it has ended or may not be looked at.
pub fn thread_cpus(root: &Root, pid: u32, tid: u32) -> Option<CpuSet> {
    let status = root.read(&format!("/proc/{pid}/task/{tid}/status")).ok()?;
    parse_status(&status).ok()?.cpus
}

fn cpu_list(text: &[u8]) -> Result<CpuSet, Malformed> {
    CpuSet::from_list(&String::from_utf8_lossy(text)).map_err(|e| Malformed(e.to_string()))
}

/// The cgroup that decides where a process runs, from the text of `/proc/PID/cgroup`: the v2
/// path, else that of the cpuset or the cpu controller. On hosts that mount both kinds, the first
/// that is not the root.
pub fn parse_cgroup(bytes: &[u8]) -> Option<String> {
    let mut paths = [None; 3];
    for line in bytes.split(|&b| b == b'\n') {
        // `3:cpu,cpuacct:/system.slice`; the path may hold colons.
        let mut fields = line.splitn(3, |&b| b == b':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let has = |name: &[u8]| controllers.split(|&b| b == b',').any(|c| c == name);
        let rank = [b"".as_slice(), b"cpuset", b"cpu"].iter().position(|name| has(name));
        if let Some(slot) = rank.and_then(|rank| paths.get_mut(rank)) {
            *slot = Some(path);
        }
    }
    let known = || paths.iter().flatten();
    known().find(|path| **path != b"/").or_else(|| known().next()).map(|path| printable(path))
}

/// The cgroup of a thread of this host that is known by its id in /proc; `None` for the idle task, and when it is gone.
pub fn cgroup_of(pid: u32) -> Option<String> {
    if pid == 0 {
        return None;
    }
    let file = File::open(format!("/proc/{pid}/cgroup")).ok()?;
    let mut text = Vec::new();
    file.take(CGROUP_BYTES).read_to_end(&mut text).ok()?;
    parse_cgroup(&text)
}

/// Inode of the PID namespace whose ids /proc shows, and so all other tools; `None` for the first one, where these
/// are the ids that the kernel uses itself, and where it is not known.
pub fn pid_namespace() -> Option<u32> {
    static INODE: LazyLock<Option<u32>> = LazyLock::new(|| {
        let inode = namespace_shown("self").or_else(|| {
            // We are in a namespace below it. Not all of its processes may be looked at.
            let processes = std::fs::read_dir("/proc")
                .ok()?
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            processes
                .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
                .find_map(|pid| namespace_shown(&pid))
        })?;
        u32::try_from(inode).ok().filter(|_| inode != FIRST_PID_NAMESPACE)
    });
    *INODE
}

/// Inode of a process's PID namespace, if that is the one of /proc: then it has one id there.
fn namespace_shown(process: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    if ids_shown(&status)? > 1 {
        return None;
    }
    Some(std::fs::metadata(format!("/proc/{process}/ns/pid")).ok()?.ino())
}

/// How many ids a process has, in the namespace of /proc and those below, by the text of `/proc/PID/status`.
fn ids_shown(status: &str) -> Option<usize> {
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    Some(ids.split_whitespace().count())
}

/// Its inode (`PROC_PID_INIT_INO` in `include/linux/proc_ns.h`).
const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// More than a line of 4 KiB for each controller that there is.
const CGROUP_BYTES: u64 = 128 << 10;

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
    fn status_tells_where_a_thread_may_run() {
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
    fn cgroup_v2_then_cpuset_then_cpu() {
        for (text, cgroup) in [
            ("0::/system.slice/nginx.service\n", Some("/system.slice/nginx.service")),
            ("0::/\n", Some("/")),
            ("12:cpuset:/docker/a:b\n4:cpu,cpuacct:/x\n1:name=systemd:/y\n", Some("/docker/a:b")),
            ("4:cpu,cpuacct:/x\n3:memory:/m\n0::/\n", Some("/x")),
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
