//! Network namespaces: the one that facts are read from, and reading from another one.
//!
//! Input: a [`NetnsRef`] and a function that reads. It runs on a separate thread that has entered the
//! namespace, so that the process itself is not affected. Nothing is mounted in the file tree, and the
//! namespace is released when the thread ends.

use crate::processes::{comm, parent, pids};
use crate::root::open_here;
use crate::{ReadError, Root};
use nearpath_model::Netns;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{stat, statfs};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

/// Directory of the namespaces named by `ip netns add`.
const NAMED: &str = "/run/netns";

/// The file system of namespaces (include/uapi/linux/magic.h).
const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;

/// A network namespace of this machine, as given by the user.
///
/// As text: `blue` is the one in `/run/netns`, `pid:123` that of a process, and anything with a slash is the
/// path of a namespace file.
#[derive(Debug)]
pub enum NetnsRef {
    /// Its name in `/run/netns`.
    Name(String),
    /// The file of a namespace: `/proc/123/ns/net`, or its mount point.
    Path(PathBuf),
    /// That of a process.
    Pid(u32),
    /// An open file of a namespace.
    Fd(OwnedFd),
}

impl FromStr for NetnsRef {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let pid = text.strip_prefix("pid:").and_then(|pid| pid.parse().ok());
        Ok(match pid {
            Some(pid) => Self::Pid(pid),
            None if text.contains('/') => Self::Path(text.into()),
            None => Self::Name(text.to_owned()),
        })
    }
}

/// Runs `read` in a network namespace, with a live [`Root`] that shows that namespace's devices and sockets.
/// Netlink sockets opened by `read` belong to that namespace as well.
///
/// # Errors
/// The namespace does not exist, or cannot be entered (CAP_SYS_ADMIN).
pub fn in_netns<T: Send>(
    netns: &NetnsRef,
    read: impl FnOnce(Root) -> T + Send,
) -> Result<T, ReadError> {
    let (what, opened) = match netns {
        NetnsRef::Name(name) => {
            let what = format!("{NAMED}/{name}");
            if name.is_empty() || name.contains('/') || matches!(name.as_str(), "." | "..") {
                return Err(ReadError::new(&what, "not the name of a namespace"));
            }
            (what.clone(), open_here(&what)?)
        }
        NetnsRef::Path(path) => {
            let what = path.display().to_string();
            (what.clone(), open_here(&what)?)
        }
        NetnsRef::Pid(pid) => {
            let what = format!("/proc/{pid}/ns/net");
            (what.clone(), open_here(&what)?)
        }
        NetnsRef::Fd(fd) => {
            let what = "the open network namespace".to_owned();
            let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0)
                .map_err(|errno| ReadError::from_errno(&what, errno))?;
            (what, fd)
        }
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            enter(&what, opened)?;
            Ok(read(Root::live()))
        });
        // A panic of `read` is propagated.
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `read` in the initial network namespace, where sysctls of the whole kernel are: that of this process, or that of
/// process 1. `None` if neither is the initial one, or it cannot be entered, as in a container.
pub fn in_initial_netns<T: Send>(read: impl Fn(Root) -> T + Send + Sync) -> Option<T> {
    // One of `net_core_table` (net/core/sysctl_net_core.c), which other namespaces do not have.
    let only_there = "/proc/sys/net/core/netdev_max_backlog";
    let places = ["/proc/self/ns/net", "/proc/1/ns/net"];
    places.into_iter().find_map(|place| {
        let look = |root: Root| root.text(only_there).is_ok().then(|| read(root));
        in_netns(&NetnsRef::Path(place.into()), look).ok()?
    })
}

/// The text of a file that only the initial network namespace shows, saved as the answer to `key`.
///
/// # Errors
/// That namespace cannot be entered, or the file cannot be read there.
pub(crate) fn text_of_initial_netns(
    root: &Root,
    key: &str,
    path: &str,
) -> Result<String, ReadError> {
    root.answer(key, || {
        let text = in_initial_netns(|there| there.text(path));
        text.unwrap_or_else(|| {
            Err(ReadError::new(path, "the initial network namespace cannot be entered"))
        })
    })
}

fn enter(what: &str, netns: OwnedFd) -> Result<(), ReadError> {
    move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|errno| {
        match errno {
            Errno::INVAL => ReadError::new(what, "not a network namespace"),
            Errno::PERM => ReadError::new(what, "cannot be entered: requires root (CAP_SYS_ADMIN)"),
            other => ReadError::from_errno(what, other),
        }
    })
}

/// Looks in the other network namespaces of this machine, one after the other, until `look` returns something there. They
/// are those of its threads, those mounted anywhere, and those that a process has open, as far as they can be entered.
pub fn find_in_netns<T: Send>(look: impl Fn(u64, Root) -> Option<T> + Sync) -> Option<T> {
    let root = Root::live();
    let mut seen: BTreeSet<u64> = current_netns(&root).inode.into_iter().collect();
    let mut visit = |inode: Option<u64>, path: String| {
        let inode = inode.filter(|inode| !seen.contains(inode))?;
        let found = in_netns(&NetnsRef::Path(path.into()), |root| look(inode, root)).ok()?;
        seen.insert(inode);
        found
    };
    let list = |folder: &str| root.list(folder).unwrap_or_default().into_iter().map(|its| its.name);
    let inode_of = |path: &str| namespace_inode(&root.link(path).ok()?);
    let pids = pids(&root).unwrap_or_default();
    let mut mounts = BTreeSet::new();
    for pid in &pids {
        let threads = format!("/proc/{pid}/task");
        for path in list(&threads).map(|thread| format!("{threads}/{thread}/ns/net")) {
            let found = visit(inode_of(&path), path);
            if found.is_some() {
                return found;
            }
        }
        if root.link(&format!("/proc/{pid}/ns/mnt")).is_ok_and(|its| mounts.insert(its)) {
            let table = root.text(&format!("/proc/{pid}/mountinfo")).unwrap_or_default();
            for (inode, point) in mounted_namespaces(&table) {
                let found = visit(Some(inode), format!("/proc/{pid}/root{point}"));
                if found.is_some() {
                    return found;
                }
            }
        }
    }
    // Last, as they are many.
    let files = pids.iter().map(|pid| format!("/proc/{pid}/fd"));
    let mut files =
        files.flat_map(|folder| list(&folder).map(move |file| format!("{folder}/{file}")));
    files.find_map(|path| visit(inode_of(&path), path))
}

/// The network namespaces in a `mountinfo` (proc_pid_mountinfo(5)): inode and mount point.
fn mounted_namespaces(table: &str) -> Vec<(u64, String)> {
    let mounted = |line: &str| {
        let mut fields = line.split(' ').skip(3);
        let (inode, point) = (namespace_inode(fields.next()?)?, fields.next()?);
        // The kernel writes blanks and backslashes as octal numbers (`mangle` of fs/proc_namespace.c).
        let plain = [("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")];
        let point = plain.iter().fold(point.to_owned(), |point, (code, plain)| {
            point.replace(&format!("\\{code}"), plain)
        });
        Some((inode, point))
    };
    table.lines().filter_map(mounted).collect()
}

/// The network namespace shown by a root: its inode, and its name in `/run/netns` if it has one.
pub fn current_netns(root: &Root) -> Netns {
    let inode = ["/proc/thread-self/ns/net", "/proc/self/ns/net"]
        .iter()
        .find_map(|path| namespace_inode(&root.link(path).ok()?));
    let name = inode.and_then(|inode| {
        root.answer::<Option<String>>("netns-name", || Ok(name_of(inode))).ok().flatten()
    });
    Netns { name, inode }
}

/// The name of this process's network namespace if who has run it is in another one, as the shell of
/// `ip netns exec blue nearpath` or `ip netns exec blue sudo nearpath`.
pub fn entered_netns() -> Option<String> {
    let root = Root::live();
    let own = current_netns(&root);
    let parent = rustix::process::getppid()?.as_raw_nonzero().get().unsigned_abs();
    let invoker = invoker(&root, parent);
    let its = namespace_inode(&root.link(&format!("/proc/{invoker}/ns/net")).ok()?)?;
    own.name.filter(|_| own.inode != Some(its))
}

/// Programs that stay the parent of the command that they were asked to run.
const WRAPPERS: [&str; 6] = ["sudo", "doas", "su", "timeout", "time", "watch"];
/// Ancestors that are looked at: sudo is two processes where it has a terminal of its own (`use_pty`).
const ANCESTORS: usize = 8;

/// The nearest of this process and its ancestors that is not one of [`WRAPPERS`]; the last that can be read.
fn invoker(root: &Root, mut pid: u32) -> u32 {
    for _ in 0..ANCESTORS {
        let is_wrapper = comm(root, pid).is_ok_and(|name| WRAPPERS.contains(&name.as_str()));
        let Some(parent) = parent(root, pid).filter(|_| is_wrapper) else { break };
        pid = parent;
    }
    pid
}

/// The number in `net:[4026531840]`.
fn namespace_inode(link: &str) -> Option<u64> {
    link.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// The name of the file in `/run/netns` on which the namespace with this inode is mounted.
fn name_of(inode: u64) -> Option<String> {
    netns_names().remove(&inode)
}

/// The names in `/run/netns` of this host's network namespaces, by their inodes; of several names of one, the first in
/// order.
pub fn netns_names() -> BTreeMap<u64, String> {
    let mut names = BTreeMap::new();
    for entry in std::fs::read_dir(NAMED).into_iter().flatten().flatten() {
        let path = entry.path();
        // Namespaces are inodes of one file system, which distinguishes them from other files here.
        let (Ok(file), Ok(system)) = (stat(&path), statfs(&path)) else { continue };
        if system.f_type == NSFS_MAGIC {
            let name = entry.file_name().to_string_lossy().into_owned();
            let known: &mut String = names.entry(file.st_ino).or_insert_with(|| name.clone());
            if name < *known {
                *known = name;
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_parsed() {
        let parsed = |text: &str| text.parse::<NetnsRef>().unwrap();
        assert!(matches!(parsed("blue"), NetnsRef::Name(name) if name == "blue"));
        assert!(matches!(parsed("pid:12"), NetnsRef::Pid(12)));
        assert!(matches!(parsed("pid:x"), NetnsRef::Name(_)));
        assert!(matches!(parsed("/proc/1/ns/net"), NetnsRef::Path(_)));
    }

    #[test]
    fn invalid_namespaces_are_rejected() {
        for (netns, reason) in [
            (NetnsRef::Name("../../etc/passwd".into()), "not the name of a namespace"),
            (NetnsRef::Name("no-such-namespace".into()), "not found"),
            (NetnsRef::Path("/proc/self/status".into()), "not a network namespace"),
            (NetnsRef::Pid(u32::MAX), "not found"),
        ] {
            let error = in_netns(&netns, |_| ()).unwrap_err();
            assert_eq!(error.reason, reason, "{netns:?}");
        }
    }

    #[test]
    fn who_runs_a_command_is_behind_what_wraps_it() {
        let dir = tempfile::tempdir().unwrap();
        let process = |pid: u32, comm: &str, parent: u32| {
            let folder = dir.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("comm"), format!("{comm}\n")).unwrap();
            let status = format!("Name:\t{comm}\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t{parent}\n");
            std::fs::write(folder.join("status"), status).unwrap();
        };
        process(1, "systemd", 0);
        process(10, "bash", 1);
        process(11, "sudo", 10);
        process(12, "sudo", 11);
        process(13, "timeout", 12);
        // A name is what the process says of itself: a circle ends.
        process(20, "sudo", 21);
        process(21, "su", 20);
        // The parent of the first process, and one in another PID namespace, is 0.
        process(30, "sudo", 0);
        process(31, "sudo", 99);
        let root = Root::tree(dir.path()).unwrap();
        for (pid, expected) in [(10, 10), (11, 10), (12, 10), (13, 10), (30, 30), (31, 99)] {
            assert_eq!(invoker(&root, pid), expected, "{pid}");
        }
        assert!([20, 21].contains(&invoker(&root, 20)));
    }

    #[test]
    fn namespaces_are_found_among_the_mounts() {
        let table = "66 25 0:21 / /run rw shared:5 - tmpfs tmpfs rw\n\
             461 66 0:4 net:[4026532237] /run/netns/a\\040b rw shared:252 - nsfs nsfs rw\n\
             462 66 0:4 mnt:[4026532238] /run/mnt rw - nsfs nsfs rw\n463 66";
        assert_eq!(mounted_namespaces(table), [(4_026_532_237, "/run/netns/a b".to_owned())]);
    }

    #[test]
    fn inodes_are_read() {
        assert_eq!(namespace_inode("net:[4026531840]"), Some(4_026_531_840));
        assert_eq!(namespace_inode("mnt:[1]"), None);
    }
}
