//! The journal file: opened, locked, appended to, and replaced by a shorter one. No link is followed, and after a
//! crash there is always a complete file under its name.
//!
//! The lock is on the file itself, as readers need none. A new file is locked before it is renamed, and a process that
//! opened the old one in between notices that the name belongs to another file.

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, flock, fstat, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// Its name in its directory.
pub const FILE: &str = "journal.jsonl";
/// The name of its replacement until it is renamed.
pub const NEW: &str = "journal.jsonl.new";
/// More than any journal of ours: longer files are not read.
pub const LONGEST: u64 = 64 << 20;
/// How often it may be replaced while being opened; more than twice is malicious.
const TRIES: usize = 16;

/// The file, open and locked for writing.
#[derive(Debug)]
pub struct JournalFile {
    folder: File,
    file: File,
    /// Size of the complete lines in bytes.
    length: u64,
    /// Whether the rename may not be on disk yet: its contents are durable only after that.
    unnamed: bool,
    /// Why it could be opened for reading only.
    read_only: Option<Errno>,
}

/// Reads the whole file; empty if it does not exist.
///
/// # Errors
/// It is not a regular file, too long, or cannot be read.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    match options.read(true).custom_flags(flags).open(path) {
        Ok(mut file) => contents(&mut file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn contents(file: &mut File) -> io::Result<Vec<u8>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST {
        return Err(io::Error::other(format!("it is longer than {} MiB", LONGEST >> 20)));
    }
    Ok(bytes)
}

impl JournalFile {
    /// Opens, locks and reads it; `None` if another process has the lock, unless it `waits` until it is free.
    ///
    /// # Errors
    /// It cannot be created, opened or read.
    pub fn open(path: &Path, waits: bool) -> io::Result<Option<(Self, Vec<u8>)>> {
        let lock = if waits {
            FlockOperation::LockExclusive
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        let path = path.parent().unwrap_or(path);
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let folder = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open(path)?;
        for _ in 0..TRIES {
            let (mut file, read_only) = open_or_read_only(&folder)?;
            match flock(&file, lock) {
                Ok(()) => {}
                Err(Errno::INTR) => continue,
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
            if is_named(&folder, &file)? {
                let bytes = contents(&mut file)?;
                let length = bytes.len() as u64;
                let unnamed = read_only.is_none();
                return Ok(Some((Self { folder, file, length, unnamed, read_only }, bytes)));
            }
        }
        Ok(None)
    }

    /// Fails if it could be opened for reading only.
    ///
    /// # Errors
    /// The reason.
    pub fn writable(&self) -> io::Result<()> {
        self.read_only.map_or(Ok(()), |errno| Err(errno.into()))
    }

    /// Size of its lines in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Truncates it after the complete lines.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn cut(&mut self, length: u64) -> io::Result<()> {
        if self.read_only.is_none() {
            self.file.set_len(length)?;
        }
        self.length = length;
        Ok(())
    }

    /// Appends a line. It is on disk when this returns.
    ///
    /// # Errors
    /// It cannot be written; the file is unchanged.
    pub fn append(&mut self, line: &[u8]) -> io::Result<()> {
        self.writable()?;
        if self.unnamed {
            self.folder.sync_all()?;
            self.unnamed = false;
        }
        let written = self.file.write_all(line).and_then(|()| self.file.sync_all());
        if written.is_ok() {
            self.length += line.len() as u64;
        } else {
            // A partial line in the middle would make the file unreadable.
            let _ = self.file.set_len(self.length);
        }
        written
    }

    /// Replaces the file by one with these lines.
    ///
    /// # Errors
    /// It cannot be written; the file is unchanged.
    pub fn replace(&mut self, lines: &[u8]) -> io::Result<()> {
        let new = self.write_new(lines).and_then(|new| {
            renameat(&self.folder, NEW, &self.folder, FILE)?;
            Ok(new)
        });
        match new {
            Ok(new) => {
                // Until the directory is synced, a power loss may restore the old file.
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
        // Left by a crash, or put there by someone else. Only the lock holder creates it.
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

/// What no file of the directory is opened without.
const SAFE: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);

/// Opens or creates a file of the directory.
fn open_in(folder: &File, name: &str, more: OFlags) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | SAFE;
    Ok(openat(folder, name, flags | more, Mode::from_raw_mode(0o600))?.into())
}

/// Opens the journal, or opens it for reading if it cannot be written, with the reason.
fn open_or_read_only(folder: &File) -> Result<(File, Option<Errno>), Errno> {
    open_in(folder, FILE, OFlags::empty()).map(|file| (file, None)).or_else(|errno| {
        let file = openat(folder, FILE, OFlags::RDONLY | SAFE, Mode::empty());
        file.map(|file| (file.into(), Some(errno))).map_err(|_| errno)
    })
}

/// Whether the file is the one with the journal's name.
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
    /// A file that cannot be written.
    pub fn full() -> Self {
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        Self {
            folder: File::open("/dev").unwrap(),
            file,
            length: 0,
            unnamed: false,
            read_only: None,
        }
    }
}
