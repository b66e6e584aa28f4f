//! An unpacked tree, which is untrusted: links are resolved inside it, and nothing in it can make us block or
//! open a device.

use super::Entry;
use super::fault::Fault;
use super::files::{self, LOOK, Look, MAX_FILE, READ};
use super::walk::walk;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, openat, openat2, statat};
use rustix::io::Errno;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Maximum retries of a lookup disturbed by a rename elsewhere in the tree (EAGAIN).
const RETRIES: usize = 16;

/// A directory that represents `/` of a machine.
#[derive(Debug)]
pub(super) struct Tree {
    dir: OwnedFd,
    /// Whether this kernel has openat2 (since 5.6) and permits it.
    openat2: bool,
    /// The directory from which a file was last read.
    last_folder: Mutex<Option<(String, OwnedFd)>>,
}

impl Tree {
    /// Opens the directory.
    pub fn new(dir: &Path) -> Result<Self, Errno> {
        let dir = openat(CWD, dir, LOOK | OFlags::DIRECTORY, Mode::empty())?;
        // A sandbox that does not know openat2 returns EPERM.
        let openat2 =
            !matches!(in_root(&dir, ".", LOOK), Err(Errno::NOSYS | Errno::PERM | Errno::ACCESS));
        Ok(Self { dir, openat2, last_folder: Mutex::default() })
    }

    /// A file's bytes. Opening a device may have side effects, so the kind is checked first.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, Fault> {
        if let Some((folder, name)) = split(path)
            && let Some((fd, size)) = self.open_in(folder, name)?
        {
            return files::content(fd, size, MAX_FILE);
        }
        files::regular(self.open(path, LOOK)?)?;
        let fd = self.open(path, READ)?;
        let size = files::regular(&fd)?;
        files::content(fd, size, MAX_FILE)
    }

    /// Opens a file in a directory and returns its size; `None` if it is a link.
    ///
    /// Files are mostly read directory by directory: the last directory stays open, which halves the cost of a
    /// read. A tree is assumed not to change while it is read.
    fn open_in(&self, folder: &str, name: &str) -> Result<Option<(OwnedFd, u64)>, Fault> {
        let mut last = self.last_folder.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|(path, _)| path != folder) {
            let fd = self.open(folder, LOOK | OFlags::DIRECTORY)?;
            *last = Some((folder.to_owned(), fd));
        }
        let Some((_, folder)) = last.as_ref() else { return Ok(None) };
        let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            return Ok(None);
        }
        let size = files::regular_size(&stat)?;
        let fd = openat(folder, name, READ | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Some((fd, size)))
    }

    /// The names in a directory.
    pub fn list(&self, path: &str) -> Result<Vec<Entry>, Fault> {
        files::names(self.open(path, READ | OFlags::DIRECTORY)?)
    }

    /// The kind of entry at a path; a link as the last component is not followed.
    pub fn look(&self, path: &str) -> Result<Look, Fault> {
        files::look(self.open(path, LOOK | OFlags::NOFOLLOW)?)
    }

    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Fault> {
        if self.openat2 {
            Ok(in_root(&self.dir, relative(path), flags)?)
        } else {
            let follow_last = !flags.contains(OFlags::NOFOLLOW);
            let path = walk(path, follow_last, |at| files::look(self.open_step(at)?))?;
            let flags = flags | OFlags::NOFOLLOW;
            Ok(openat(&self.dir, relative(&path), flags, Mode::empty())?)
        }
    }

    /// Opens a path that has no links before its last component, without reading it.
    fn open_step(&self, path: &str) -> Result<OwnedFd, Errno> {
        openat(&self.dir, relative(path), LOOK | OFlags::NOFOLLOW, Mode::empty())
    }
}

fn in_root(dir: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..RETRIES {
        match openat2(dir, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            done => return done,
        }
    }
    Err(Errno::AGAIN)
}

/// The directory of a path and the name in it, if it ends in a name.
fn split(path: &str) -> Option<(&str, &str)> {
    path.rsplit_once('/').filter(|(_, name)| !matches!(*name, "" | "." | ".."))
}

fn relative(path: &str) -> &str {
    match path.trim_start_matches('/') {
        "" => ".",
        path => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::mknodat;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// The same tree through openat2 and through the resolver for kernels without it.
    fn both(dir: &Path) -> [Tree; 2] {
        [Tree::new(dir).unwrap(), Tree { openat2: false, ..Tree::new(dir).unwrap() }]
    }

    #[test]
    fn links_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        let at = |p: &str| dir.path().join(p);
        fs::create_dir_all(at("sys/class/net")).unwrap();
        fs::create_dir_all(at("sys/devices/eth0")).unwrap();
        fs::create_dir_all(at("etc")).unwrap();
        fs::write(at("sys/devices/eth0/mtu"), "1500\n").unwrap();
        fs::write(at("etc/passwd"), "inside").unwrap();
        symlink("../../devices/eth0", at("sys/class/net/eth0")).unwrap();
        symlink("/etc/passwd", at("sys/absolute")).unwrap();
        symlink("../../../../../../etc/passwd", at("sys/out")).unwrap();
        symlink("/etc/shadow", at("sys/shadow")).unwrap();
        symlink("loop", at("sys/loop")).unwrap();
        for tree in both(dir.path()) {
            let read = |p: &str| tree.read(p).map(|b| String::from_utf8(b).unwrap());
            assert_eq!(read("/sys/class/net/eth0/mtu").unwrap(), "1500\n");
            assert_eq!(read("/sys/absolute").unwrap(), "inside");
            assert_eq!(read("/sys/out").unwrap(), "inside");
            assert_eq!(read("/../../etc/passwd").unwrap(), "inside");
            assert!(read("/sys/shadow").unwrap_err().absent);
            assert_eq!(read("/sys/loop").unwrap_err().reason, "symbolic link loop");
            assert_eq!(read("/sys").unwrap_err().reason, "is a directory, not a file");
            let out = Look::Link("../../../../../../etc/passwd".to_owned());
            assert_eq!(tree.look("/sys/out").unwrap(), out);
            assert_eq!(tree.look("/sys/class").unwrap(), Look::Dir);
            let names: Vec<_> = tree.list("/sys").unwrap().into_iter().map(|e| e.name).collect();
            assert_eq!(names, ["absolute", "class", "devices", "loop", "out", "shadow"]);
        }
    }

    #[test]
    fn a_fifo_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        mknodat(CWD, dir.path().join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        for tree in both(dir.path()) {
            assert_eq!(
                tree.read("/fifo").unwrap_err().reason,
                "is not a regular file or directory"
            );
        }
    }
}
