//! This machine, as seen by the calling thread's network namespace.
//!
//! Two parts of the file tree depend on the namespace. `/proc/net` is that of the process's main thread, so
//! that of the calling thread is read instead. A sysfs shows the interfaces of the namespace in which it was
//! mounted (fs/sysfs/mount.c), which may be another one: a separate sysfs is then mounted, not attached to the
//! tree, and read through its descriptor.

use super::fault::Fault;
use super::files::{self, LOOK, Look, MAX_FILE, READ};
use super::{Entry, EntryKind, ReadError};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, fstat, openat, readlinkat, stat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Instant;

/// The calling thread's `/proc/net`, relative to `/proc`.
const OWN_NET: &str = "thread-self/net";

/// The size of a file of /proc or /sys is not used: the content ends at the end of file.
const UNTOLD: u64 = 0;

/// The sysfs that shows the interfaces of the current namespace.
#[derive(Debug)]
enum Sysfs {
    /// The one on `/sys`.
    Mounted,
    /// A detached one. It is unmounted when its descriptor is closed.
    Detached(OwnedFd),
    /// None: the one on `/sys` belongs to another namespace, and mounting another one failed.
    Foreign(Fault),
}

/// This machine.
#[derive(Debug)]
pub(super) struct Live {
    sysfs: Sysfs,
}

impl Live {
    /// This machine, as seen from the calling thread's network namespace.
    pub fn new() -> Self {
        Self { sysfs: own_sysfs() }
    }

    /// A file's bytes.
    pub fn read(&self, path: &str, until: Option<Instant>) -> Result<Vec<u8>, Fault> {
        let fd = self.open(path, READ)?;
        files::regular(&fd)?;
        files::content_until(fd, UNTOLD, MAX_FILE, until)
    }

    /// The names in a directory.
    pub fn list(&self, path: &str) -> Result<Vec<Entry>, Fault> {
        files::names(self.open(path, READ | OFlags::DIRECTORY)?)
    }

    /// The kind of entry at a path, of which only the last component may be a link.
    pub fn look(&self, path: &str) -> Result<Look, Fault> {
        if path == "/proc/net" {
            return Ok(Look::Link(OWN_NET.to_owned()));
        }
        files::look(self.open(path, LOOK | OFlags::NOFOLLOW)?)
    }

    /// The target of a link; links in the path to it are followed.
    pub fn link(&self, path: &str) -> Result<String, Fault> {
        if path == "/proc/net" {
            return Ok(OWN_NET.to_owned());
        }
        let (dir, path) = self.place(path)?;
        match readlinkat(dir, &*path, Vec::with_capacity(256)) {
            Ok(text) => Ok(text.to_string_lossy().into_owned()),
            Err(Errno::INVAL) => Err(Fault::new("is not a link")),
            Err(errno) => Err(errno.into()),
        }
    }

    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Fault> {
        let (dir, path) = self.place(path)?;
        Ok(openat(dir, &*path, flags, Mode::empty())?)
    }

    /// Where a path is to be opened.
    fn place<'a>(&'a self, path: &'a str) -> Result<(BorrowedFd<'a>, Cow<'a, str>), Fault> {
        if let Some(rest) = below(path, "/proc/net") {
            return Ok((CWD, Cow::Owned(format!("/proc/{OWN_NET}{rest}"))));
        }
        match &self.sysfs {
            Sysfs::Detached(fd) => {
                if let Some(rest) = below(path, "/sys")
                    // Other file systems are mounted below these; nothing there depends on the namespace.
                    && below(path, "/sys/fs").is_none()
                    && below(path, "/sys/kernel").is_none()
                {
                    let rest = rest.trim_start_matches('/');
                    return Ok((
                        fd.as_fd(),
                        Cow::Borrowed(if rest.is_empty() { "." } else { rest }),
                    ));
                }
            }
            Sysfs::Foreign(fault) if below(path, "/sys/class/net").is_some() => {
                return Err(fault.clone());
            }
            Sysfs::Foreign(_) | Sysfs::Mounted => {}
        }
        Ok((CWD, Cow::Borrowed(path)))
    }
}

/// The part of a path after `prefix`, if the path is equal to it or below it.
fn below<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    path.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// An open file of this machine, for calls that take a descriptor (setns(2)).
pub(crate) fn open_here(path: &str) -> Result<OwnedFd, ReadError> {
    // A path given by the user may be a FIFO: READ does not block on one.
    openat(CWD, path, READ, Mode::empty()).map_err(|errno| ReadError::from_errno(path, errno))
}

/// Determines whether the sysfs on `/sys` is that of the current network namespace, and mounts another one if not.
/// There is one superblock, and so one device number, per namespace.
fn own_sysfs() -> Sysfs {
    match detached_sysfs() {
        Ok((own, device)) => match stat("/sys/class/net/.") {
            Ok(mounted) if mounted.st_dev == device => Sysfs::Mounted,
            _ => Sysfs::Detached(own),
        },
        // Without the privilege to mount, the interface names are compared: sufficient as long as the
        // namespaces do not have the same names.
        Err(errno) if names_differ() => {
            let why = Fault::from(errno).reason;
            Sysfs::Foreign(Fault::new(format!(
                "/sys shows the interfaces of another network namespace, and mounting a sysfs \
                 of this one failed: {why}"
            )))
        }
        Err(_) => Sysfs::Mounted,
    }
}

/// A detached sysfs of the current network namespace (since 5.2), and its device number.
fn detached_sysfs() -> Result<(OwnedFd, u64), Errno> {
    let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let device = fstat(&mount)?.st_dev;
    Ok((mount, device))
}

/// Whether `/sys/class/net` and `/proc/net/dev` list different interfaces. False if either cannot be read.
fn names_differ() -> bool {
    let plain = Live { sysfs: Sysfs::Mounted };
    let (Ok(listed), Ok(dev)) = (plain.list("/sys/class/net"), plain.read("/proc/net/dev", None))
    else {
        return false;
    };
    // `bonding_masters` is a file among the links.
    let in_sysfs: BTreeSet<_> =
        listed.into_iter().filter(|e| e.kind == EntryKind::Link).map(|e| e.name).collect();
    let in_proc: BTreeSet<_> = String::from_utf8_lossy(&dev)
        .lines()
        .skip(2)
        .filter_map(|line| line.split_once(':').map(|(name, _)| name.trim().to_owned()))
        .collect();
    in_sysfs != in_proc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_whole_components() {
        assert_eq!(below("/sys", "/sys"), Some(""));
        assert_eq!(below("/sys/class", "/sys"), Some("/class"));
        assert_eq!(below("/system", "/sys"), None);
        assert_eq!(below("/proc/net/dev", "/proc/net"), Some("/dev"));
        assert_eq!(below("/proc/net_x", "/proc/net"), None);
    }

    #[test]
    fn the_sysfs_of_another_namespace_is_not_used() {
        let live = Live { sysfs: Sysfs::Foreign(Fault::new("of another namespace")) };
        assert!(live.list("/sys/class/net").is_err());
        assert!(live.list("/sys/class").is_ok());
    }
}
