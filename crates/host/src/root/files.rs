//! Reads files, directories and links through descriptors. Bounded, and never blocks: FIFOs and devices are
//! rejected.

use super::fault::Fault;
use super::{Entry, EntryKind, order};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, Stat, fstat, readlinkat, statat};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::time::Instant;

/// Largest file that is read. `/proc/interrupts` with 1,024 CPUs and 600 interrupts is about 7 MB.
pub(super) const MAX_FILE: usize = 64 << 20;
/// Maximum number of names read from one directory; `/proc` of a busy host has some 100,000.
pub(super) const MAX_NAMES: usize = 1 << 20;

/// Flags to open files and directories. O_NONBLOCK, so that a FIFO in a tree cannot block us.
pub(super) const READ: OFlags =
    OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);
/// Flags to open a path without reading it.
pub(super) const LOOK: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// The kind of entry at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Look {
    /// A file, or anything other than the below.
    File,
    /// A directory.
    Dir,
    /// A symbolic link, with its target.
    Link(String),
}

/// The size of a file, as reported by the file system; rejects anything but a regular file.
pub(super) fn regular(fd: impl AsFd) -> Result<u64, Fault> {
    regular_size(&fstat(fd)?)
}

/// Like [`regular`], given the result of fstat.
pub(super) fn regular_size(stat: &Stat) -> Result<u64, Fault> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(u64::try_from(stat.st_size).unwrap_or(0)),
        FileType::Directory => Err(Errno::ISDIR.into()),
        _ => Err(Fault::new("is not a regular file or directory")),
    }
}

/// Reads the whole content. Files of /proc (size 0) and /sys (one page) do not report their true size and may
/// return less than requested, so reading continues until the end of file, or until `size` is reached: a file
/// with exactly that size ends there.
pub(super) fn content(fd: OwnedFd, size: u64, most: usize) -> Result<Vec<u8>, Fault> {
    content_until(fd, size, most, None)
}

/// Like [`content`], with a deadline, for files that take the kernel long to generate. A read in progress
/// is not interrupted.
pub(super) fn content_until(
    fd: OwnedFd,
    size: u64,
    most: usize,
    until: Option<Instant>,
) -> Result<Vec<u8>, Fault> {
    // Nearly all files are small: these cost one allocation, of the right size.
    let mut first = [0u8; 8192];
    let mut filled = 0;
    while filled < first.len() {
        match retry(|| rustix::io::read(&fd, &mut first[filled..]))? {
            0 => return Ok(first[..filled].to_vec()),
            read => filled += read,
        }
        in_time(until)?;
        if filled as u64 == size {
            return Ok(first[..filled].to_vec());
        }
    }
    let mut bytes = first.to_vec();
    loop {
        in_time(until)?;
        bytes.reserve(bytes.len().max(1 << 16));
        if retry(|| rustix::io::read(&fd, rustix::buffer::spare_capacity(&mut bytes)))? == 0 {
            return Ok(bytes);
        }
        if bytes.len() > most {
            return Err(Fault::new(format!("is larger than {} MiB", most >> 20)));
        }
    }
}

fn in_time(until: Option<Instant>) -> Result<(), Fault> {
    match until.is_some_and(|until| Instant::now() >= until) {
        true => Err(Fault::new("takes too long to read")),
        false => Ok(()),
    }
}

/// The names in a directory, in natural order.
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
            return Err(Fault::new("contains more than a million names"));
        }
        let file_type = match entry.file_type() {
            FileType::Unknown => match statat(&fd, raw, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                // Removed since it was listed.
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

/// The kind of a path that was opened with [`LOOK`] and O_NOFOLLOW.
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

/// Retries a call that was interrupted by a signal.
fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}
