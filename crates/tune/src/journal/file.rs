//! The journal's file: opened, locked, added to, and replaced by a shorter one. No link is followed,
//! and whatever crashes when, there is a whole file under its name.
//!
//! The lock is on the file itself, as its readers need none. A new file is locked before it gets the
//! name, and who opened the old one in between finds that the name is no longer that file's.

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, flock, fstat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Its name in its folder.
pub const FILE: &str = "journal.jsonl";
/// The name of the one that is to replace it, until it does.
pub const NEW: &str = "journal.jsonl.new";
/// More than any journal of ours has: what is longer is not read.
pub const LONGEST: u64 = 64 << 20;
/// How often it may be replaced while it is opened; more than twice takes malice.
const TRIES: usize = 16;

/// The file, open and locked for writing.
#[derive(Debug)]
pub struct JournalFile {
    folder: File,
    file: File,
    /// Bytes of whole lines.
    length: u64,
    /// Whether its name may not be on disk yet: only then is what it has.
    unnamed: bool,
}

/// All that the file has; nothing where there is none.
///
/// # Errors
/// It is no file, too long, or cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    // O_NONBLOCK: to open a FIFO must not wait for who writes into it.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    match options.read(true).custom_flags(flags).open(path) {
        Ok(mut file) => contents(&mut file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn contents(file: &mut File) -> io::Result<Vec<u8>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::other(format!("it is longer than {} MiB", LONGEST >> 20)));
    }
    Ok(bytes)
}

impl JournalFile {
    /// Opens and locks it, and reads what it has; `None` when another process has the lock.
    ///
    /// # Errors
    /// It cannot be made, opened or read.
    pub fn open(path: &Path) -> io::Result<Option<(Self, Vec<u8>)>> {
        let path = path.parent().unwrap_or(path);
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let folder = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)?;
        for _ in 0..TRIES {
            let mut file = open_in(&folder, FILE, OFlags::empty())?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
            if is_named(&folder, &file)? {
                let bytes = contents(&mut file)?;
                let length = bytes.len() as u64;
                return Ok(Some((Self { folder, file, length, unnamed: true }, bytes)));
            }
        }
        Ok(None)
    }

    /// Bytes of its lines.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Drops what is after the whole lines.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn cut(&mut self, length: u64) -> io::Result<()> {
        self.file.set_len(length)?;
        self.length = length;
        Ok(())
    }

    /// Adds a line; it is on disk when this returns.
    ///
    /// # Errors
    /// It cannot be written; the file is as it was before.
    pub fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.unnamed {
            self.folder.sync_all()?;
            self.unnamed = false;
        }
        let written = self.file.write_all(line).and_then(|()| self.file.sync_all());
        if written.is_ok() {
            self.length += line.len() as u64;
        } else {
            // Half a line in the middle would make all of it unreadable.
            let _ = self.file.set_len(self.length);
        }
        written
    }

    /// Has a file with these lines instead.
    ///
    /// # Errors
    /// It cannot be written; the file is as it was before.
    pub fn replace(&mut self, lines: &[u8]) -> io::Result<()> {
        let new = self.write_new(lines).and_then(|new| {
            renameat(&self.folder, NEW, &self.folder, FILE)?;
            Ok(new)
        });
        match new {
            Ok(new) => {
                // Until the folder is synced a power loss may bring the old one back.
                self.unnamed = true;
                self.file = new;
                self.length = lines.len() as u64;
                Ok(())
            }
            Err(error) => {
                let _ = unlinkat(&self.folder, NEW, AtFlags::empty());
                Err(error)
            }
        }
    }

    fn write_new(&self, lines: &[u8]) -> io::Result<File> {
        // What a crash has left, or somebody else put there. Who has the lock alone makes it.
        match unlinkat(&self.folder, NEW, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut new = open_in(&self.folder, NEW, OFlags::EXCL)?;
        flock(&new, FlockOperation::NonBlockingLockExclusive)?;
        new.write_all(lines)?;
        new.sync_all()?;
        Ok(new)
    }
}

/// Opens a file of the folder, or makes it.
fn open_in(folder: &File, name: &str, more: OFlags) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::CLOEXEC;
    let safe = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(openat(folder, name, flags | safe | more, Mode::from_raw_mode(0o600))?.into())
}

/// Whether the file is the one that has the journal's name.
fn is_named(folder: &File, file: &File) -> io::Result<bool> {
    let ours = fstat(file)?;
    match statat(folder, FILE, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
impl JournalFile {
    /// One that cannot be written to.
    pub fn full() -> Self {
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        Self { folder: File::open("/dev").unwrap(), file, length: 0, unnamed: false }
    }
}
