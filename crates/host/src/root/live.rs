//! This machine, as the calling thread's network namespace sees it.
//!
//! Two places of the file tree depend on the namespace. `/proc/net` is that of the process's main
//! thread, so that of the calling thread is read in its stead. A sysfs shows the interfaces of the
//! namespace in which it was mounted (fs/sysfs/mount.c), which need not be ours: then a sysfs of
//! our own is mounted, attached nowhere, and read through its descriptor.

use super::fault::Fault;
use super::files::{self, LOOK, Look, MAX_FILE, READ};
use super::{Entry, EntryKind};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, fstat, openat, readlinkat, stat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// The calling thread's own `/proc/net`, from `/proc`.
const OWN_NET: &str = "thread-self/net";

/// The size of a file of /proc or /sys: whatever it says, reading tells.
const UNTOLD: u64 = 0;

/// The sysfs that shows the interfaces of our namespace.
#[derive(Debug)]
enum Sysfs {
    /// The one on `/sys`.
    Mounted,
    /// One that is attached nowhere. It goes away with its descriptor.
    Detached(OwnedFd),
    /// None: the one on `/sys` is of another namespace, and no other could be had.
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
    pub fn read(&self, path: &str) -> Result<Vec<u8>, Fault> {
        let fd = self.open(path, READ)?;
        files::regular(&fd)?;
        files::content(fd, UNTOLD, MAX_FILE)
    }

    /// The names in a folder.
    pub fn list(&self, path: &str) -> Result<Vec<Entry>, Fault> {
        files::names(self.open(path, READ | OFlags::DIRECTORY)?)
    }

    /// What stands at a path, of whose components only the last may be a link.
    pub fn look(&self, path: &str) -> Result<Look, Fault> {
        if path == "/proc/net" {
            return Ok(Look::Link(OWN_NET.to_owned()));
        }
        files::look(self.open(path, LOOK | OFlags::NOFOLLOW)?)
    }

    /// Where a link points; links on the way to it are followed.
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
                    // Other file systems are mounted below these; nothing there is by namespace.
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

/// What follows `prefix` in a path that is it or lies below it.
fn below<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    path.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Finds out whether the sysfs on `/sys` is that of our network namespace, and has another if not.
/// There is one superblock, so one device number, for each namespace.
fn own_sysfs() -> Sysfs {
    match detached_sysfs() {
        Ok((own, device)) => match stat("/sys/class/net/.") {
            Ok(mounted) if mounted.st_dev == device => Sysfs::Mounted,
            _ => Sysfs::Detached(own),
        },
        // Without the privilege to mount, the names tell: good enough as long as the namespaces
        // do not have the same ones.
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

/// A sysfs of our network namespace that is attached nowhere (5.2 and later), and its device.
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

/// Whether `/sys/class/net` and `/proc/net/dev` name other interfaces. False when either cannot
/// be read.
fn names_differ() -> bool {
    let plain = Live { sysfs: Sysfs::Mounted };
    let (Ok(listed), Ok(dev)) = (plain.list("/sys/class/net"), plain.read("/proc/net/dev")) else {
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
    fn a_foreign_sysfs_is_not_believed() {
        let live = Live { sysfs: Sysfs::Foreign(Fault::new("of another namespace")) };
        assert!(live.list("/sys/class/net").is_err());
        assert!(live.list("/sys/class").is_ok());
    }
}
