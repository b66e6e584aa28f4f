//! Network namespaces: which one facts are read from, and reading from another.
//!
//! In goes a [`NetnsRef`] and what is to be read there; it is read on a thread of its own that has
//! entered the namespace, so that the process itself stays where it is. Nothing is mounted on the
//! file tree, and the namespace is left as the thread ends.

use crate::{ReadError, Root};
use nearpath_model::Netns;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, openat, stat};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

/// Where `ip netns add` keeps named namespaces.
const NAMED: &str = "/run/netns";

/// A network namespace of this machine, as people name it.
///
/// As text: `blue` is the one in `/run/netns`, `pid:123` that of a process, and anything with a
/// slash the path of a namespace file.
#[derive(Debug)]
pub enum NetnsRef {
    /// Its name in `/run/netns`.
    Name(String),
    /// The file of a namespace: `/proc/123/ns/net`, or what it is mounted on.
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

/// Runs `read` in a network namespace, with a live [`Root`] that shows that namespace's devices
/// and sockets. Netlink sockets that `read` opens are of that namespace as well.
///
/// # Errors
/// There is no such namespace, or it may not be entered (CAP_SYS_ADMIN).
pub fn in_netns<T: Send>(
    netns: &NetnsRef,
    read: impl FnOnce(Root) -> T + Send,
) -> Result<T, ReadError> {
    let (what, opened) = match netns {
        NetnsRef::Name(name) => {
            let what = format!("{NAMED}/{name}");
            if name.is_empty() || name.contains('/') || matches!(name.as_str(), "." | "..") {
                return Err(ReadError::new(&what, "not a namespace's name"));
            }
            (what.clone(), open(&what)?)
        }
        NetnsRef::Path(path) => {
            let what = path.display().to_string();
            (what.clone(), open(&what)?)
        }
        NetnsRef::Pid(pid) => {
            let what = format!("/proc/{pid}/ns/net");
            (what.clone(), open(&what)?)
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
        // A panic of `read` is passed on as it is.
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn enter(what: &str, netns: OwnedFd) -> Result<(), ReadError> {
    move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network)).map_err(|errno| {
        match errno {
            Errno::INVAL => ReadError::new(what, "not a network namespace"),
            Errno::PERM => {
                ReadError::new(what, "may not be entered: it takes root (CAP_SYS_ADMIN)")
            }
            other => ReadError::from_errno(what, other),
        }
    })
}

fn open(path: &str) -> Result<OwnedFd, ReadError> {
    // O_NONBLOCK: a path that people give may be a FIFO.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    openat(CWD, path, flags, Mode::empty()).map_err(|errno| ReadError::from_errno(path, errno))
}

/// The network namespace that a root shows: its inode, and its name in `/run/netns` if it has one.
pub fn current_netns(root: &Root) -> Netns {
    let inode = ["/proc/thread-self/ns/net", "/proc/self/ns/net"]
        .iter()
        .find_map(|path| namespace_inode(&root.link(path).ok()?));
    let name = inode.and_then(|inode| {
        root.answer::<Option<String>>("netns-name", || Ok(name_of(inode))).ok().flatten()
    });
    Netns { name, inode }
}

/// The number in `net:[4026531840]`.
fn namespace_inode(link: &str) -> Option<u64> {
    link.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// The name of the file in `/run/netns` on which the namespace of this inode is mounted.
fn name_of(inode: u64) -> Option<String> {
    // All namespaces are inodes of one file system, which tells them from other files here.
    let nsfs = stat("/proc/self/ns/net").ok()?.st_dev;
    std::fs::read_dir(NAMED).ok()?.flatten().find_map(|entry| {
        let found = stat(entry.path()).ok()?;
        let is_it = found.st_ino == inode && found.st_dev == nsfs;
        is_it.then(|| entry.file_name().to_string_lossy().into_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_told_apart() {
        let parsed = |text: &str| text.parse::<NetnsRef>().unwrap();
        assert!(matches!(parsed("blue"), NetnsRef::Name(name) if name == "blue"));
        assert!(matches!(parsed("pid:12"), NetnsRef::Pid(12)));
        assert!(matches!(parsed("pid:x"), NetnsRef::Name(_)));
        assert!(matches!(parsed("/proc/1/ns/net"), NetnsRef::Path(_)));
    }

    #[test]
    fn what_is_no_namespace_is_refused() {
        for (netns, reason) in [
            (NetnsRef::Name("../../etc/passwd".into()), "not a namespace's name"),
            (NetnsRef::Name("no-such-namespace".into()), "is not there"),
            (NetnsRef::Path("/proc/self/status".into()), "not a network namespace"),
            (NetnsRef::Pid(u32::MAX), "is not there"),
        ] {
            let error = in_netns(&netns, |_| ()).unwrap_err();
            assert_eq!(error.reason, reason, "{netns:?}");
        }
    }

    #[test]
    fn inodes_are_read() {
        assert_eq!(namespace_inode("net:[4026531840]"), Some(4_026_531_840));
        assert_eq!(namespace_inode("mnt:[1]"), None);
    }
}
