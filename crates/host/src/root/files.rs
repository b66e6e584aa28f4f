//! Reading what a descriptor stands for: a whole file, the names in a folder, a link. Bounded,
//! and it never waits: FIFOs and devices are refused.

use super::fault::Fault;
use super::{Entry, EntryKind, order};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, Stat, fstat, readlinkat, statat};
use rustix::io::Errno;
use std::mem::MaybeUninit;

/// Largest file that is read. `/proc/interrupts` of 1,024 CPUs and 600 interrupts has about 7 MB.
pub(super) const MAX_FILE: usize = 64 << 20;
/// Most names of one folder that are read; `/proc` of a busy host has some 100,000.
pub(super) const MAX_NAMES: usize = 1 << 20;

/// How files and folders are opened. O_NONBLOCK, so that a FIFO in a tree cannot stop us.
pub(super) const READ: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// How something is opened to look at it only.
pub(super) const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// What stands at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Look {
    /// A file, or something that is neither of the below.
    File,
    /// A folder.
    Dir,
    /// A symbolic link, with its text.
    Link(String),
}

/// The size of a file, as the file system tells it; refuses what is no regular file.
pub(super) fn regular(fd: impl AsFd) -> Result<u64, Fault> {
    regular_size(&fstat(fd)?)
}

/// As [`regular`], of what was found about a file.
pub(super) fn regular_size(stat: &Stat) -> Result<u64, Fault> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(u64::try_from(stat.st_size).unwrap_or(0)),
        FileType::Directory => Err(Errno::ISDIR.into()),
        _ => Err(Fault::new("is neither a file nor a folder")),
    }
}

/// The whole content. Files of /proc (size 0) and /sys (a page) do not tell their true size and
/// may give less than asked for, so reading goes on until nothing comes, or `size` is reached:
/// a file that has exactly that much ends there.
pub(super) fn content(fd: OwnedFd, size: u64, most: usize) -> Result<Vec<u8>, Fault> {
    // Nearly all are small: these cost one allocation, of the right size.
    let mut first = [0u8; 8192];
    let mut filled = 0;
    while filled < first.len() {
        match retry(|| rustix::io::read(&fd, &mut first[filled..]))? {
            0 => return Ok(first[..filled].to_vec()),
            read => filled += read,
        }
        if filled as u64 == size {
            return Ok(first[..filled].to_vec());
        }
    }
    let mut bytes = first.to_vec();
    loop {
        bytes.reserve(bytes.len().max(1 << 16));
        if retry(|| rustix::io::read(&fd, rustix::buffer::spare_capacity(&mut bytes)))? == 0 {
            return Ok(bytes);
        }
        if bytes.len() > most {
            return Err(Fault::new(format!("is larger than {} MiB", most >> 20)));
        }
    }
}

/// The names in a folder, in natural order.
pub(super) fn names(fd: OwnedFd) -> Result<Vec<Entry>, Fault> {
    let mut buffer = [MaybeUninit::<u8>::uninit(); 16384];
    let mut names = Vec::new();
    let mut dir = RawDir::new(&fd, &mut buffer);
    while let Some(entry) = dir.next() {
        let entry = entry?;
        let raw = entry.file_name();
        if matches!(raw.to_bytes(), b"." | b"..") {
            continue;
        }
        if names.len() == MAX_NAMES {
            return Err(Fault::new("holds more than a million names"));
        }
        let file_type = match entry.file_type() {
            FileType::Unknown => match statat(&fd, raw, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                // Gone since it was listed.
                Err(_) => continue,
            },
            known => known,
        };
        let kind = match file_type {
            FileType::Directory => EntryKind::Dir,
            FileType::Symlink => EntryKind::Link,
            _ => EntryKind::File,
        };
        names.push(Entry { name: raw.to_string_lossy().into_owned(), kind });
    }
    names.sort_by(|a, b| order::natural(&a.name, &b.name));
    Ok(names)
}

/// What stands at a path that was opened with [`LOOK`] and O_NOFOLLOW.
pub(super) fn look(fd: OwnedFd) -> Result<Look, Fault> {
    Ok(match FileType::from_raw_mode(fstat(&fd)?.st_mode) {
        FileType::Symlink => {
            let text = readlinkat(&fd, "", Vec::with_capacity(256))?;
            Look::Link(text.to_string_lossy().into_owned())
        }
        FileType::Directory => Look::Dir,
        _ => Look::File,
    })
}

/// Runs a call again that a signal has interrupted.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}
