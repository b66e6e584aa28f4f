//! Writes a recording: each batch to the log, and the segment's tables when its time is over.
//!
//! A batch is written to the log as soon as it comes: it outlives the process. What takes a disk's time is apart, for
//! another thread: [`Sealer`] makes the log durable and writes the tables. A sealed file is written under a temporary
//! name, made durable, and renamed; when all files of the segment are there, its log is removed. A log that is found at
//! the start is sealed under the same name: files that were there already are replaced by the same rows.

use super::batch::Batch;
use super::file::{self, FILE_MAX, Recorded};
use super::folder::{self, Segment, TEMPORARY};
use super::log::{self, Head, LOG_MAX};
use super::table::{SCHEMA, TABLES, Table, TableSpec};
use rustix::fs::{FlockOperation, flock};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// A segment is sealed early when its log has this length.
const LOG_FULL: u64 = LOG_MAX / 8;
/// The file that a recorder locks.
const LOCK: &str = "lock";

/// Where and how to record.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The folder; created if its parent exists.
    pub folder: PathBuf,
    /// Time that a segment is open.
    pub segment: Duration,
    /// Room on the disk; the oldest segments are removed.
    pub keep_bytes: u64,
    /// Age at which a segment is removed.
    pub keep_age: Duration,
}

/// Why nothing can be recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A folder or a file.
    #[error("{path}: {1}", path = .0.display())]
    File(PathBuf, io::Error),
    /// Another recorder is at work.
    #[error("{path}: another process records there", path = .0.display())]
    Locked(PathBuf),
    /// The log of a segment: it was removed or replaced, or the disk cannot read it.
    #[error("{path}: segment skipped: {1}", path = .0.display())]
    Log(PathBuf, io::Error),
    /// A file was not written.
    #[error("{path}: {1}", path = .0.display())]
    Table(PathBuf, parquet::errors::ParquetError),
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, RecordError> {
    result.map_err(|error| RecordError::File(path.to_owned(), error))
}

/// A segment that is open.
#[derive(Debug)]
struct Open {
    name: String,
    log: Arc<File>,
    began: Instant,
    /// Bytes of the log's whole lines.
    length: u64,
}

/// Writes logs to a folder that is locked.
#[derive(Debug)]
pub struct Recorder {
    settings: Settings,
    head: Head,
    open: Option<Open>,
}

/// Makes durable, and seals, what the recorder has written.
#[derive(Debug)]
pub struct Sealer {
    settings: Settings,
    segments: BTreeMap<String, Segment>,
    /// Segments whose log is to be sealed.
    waiting: BTreeSet<String>,
    /// Those whose log cannot be read. They take room, too, and are removed with the oldest segments.
    unreadable: BTreeSet<String>,
    /// Why the last of them was skipped, to be reported.
    skipped: Option<RecordError>,
    /// Here, as it works last.
    _lock: File,
}

impl Recorder {
    /// Locks the folder, and seals what an earlier recorder has left open.
    ///
    /// # Errors
    /// The folder cannot be written, or another recorder has it.
    pub fn new(settings: Settings, host: &str, boot: &str) -> Result<(Self, Sealer), RecordError> {
        let folder = &settings.folder;
        make_folder(folder)?;
        let lock = lock(folder)?;
        folder::remove_temporary(folder);
        let head = Head { schema: SCHEMA, host: host.to_owned(), boot: boot.to_owned() };
        let waiting = at(folder, folder::logs(folder))?.into_keys().collect();
        let segments = at(folder, folder::segments(folder))?;
        let mut sealer = Sealer {
            settings: settings.clone(),
            segments,
            waiting,
            unreadable: BTreeSet::new(),
            skipped: None,
            _lock: lock,
        };
        sealer.seal_waiting()?;
        Ok((Self { settings, head, open: None }, sealer))
    }

    /// Writes a batch to the log, which is returned to be made durable.
    ///
    /// # Errors
    /// The disk is full or refuses: the batch is lost, and what was in the log before is not.
    pub fn append(&mut self, batch: &Batch) -> Result<Option<Arc<File>>, RecordError> {
        if batch.is_empty() {
            return Ok(None);
        }
        let line = log::line(batch);
        if self.open.is_none() {
            self.open = Some(self.begin()?);
        }
        let Some(open) = &mut self.open else { return Ok(None) };
        if let Err(error) = (&*open.log).write_all(&line) {
            // The next line must not continue a half one.
            let _ = open.log.set_len(open.length);
            return at(&folder::log(&self.settings.folder, &open.name), Err(error));
        }
        open.length += line.len() as u64;
        Ok(Some(Arc::clone(&open.log)))
    }

    /// How long the segment may stay open; `None` if there is none.
    pub fn due_in(&self) -> Option<Duration> {
        let open = self.open.as_ref()?;
        if open.length >= LOG_FULL {
            return Some(Duration::ZERO);
        }
        Some(self.settings.segment.saturating_sub(open.began.elapsed()))
    }

    /// Ends the segment: its name, to be sealed; `None` if there is none.
    pub fn close(&mut self) -> Option<String> {
        self.open.take().map(|open| open.name)
    }

    fn begin(&self) -> Result<Open, RecordError> {
        let folder = &self.settings.folder;
        let base = folder::name(&self.head.boot, SystemTime::now());
        let taken = |name: &String| {
            let sealed = |spec: &TableSpec| folder::sealed(folder, spec.table, name).exists();
            folder::log(folder, name).exists() || TABLES.iter().any(sealed)
        };
        let numbered = (2..).map(|n: u32| format!("{base}-{n}"));
        let name = std::iter::once(base.clone()).chain(numbered).find(|name| !taken(name));
        let name = name.unwrap_or(base);
        let path = folder::log(folder, &name);
        let mut options = OpenOptions::new();
        options.append(true).create_new(true).mode(0o640);
        let log = at(&path, options.open(&path))?;
        let head = log::line(&self.head);
        let written = (&log).write_all(&head);
        if written.is_err() {
            let _ = fs::remove_file(&path);
        }
        at(&path, written)?;
        let length = head.len() as u64;
        Ok(Open { name, log: Arc::new(log), began: Instant::now(), length })
    }
}

impl Sealer {
    /// Makes a log durable, with its name.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn sync(&self, log: &File) -> Result<(), RecordError> {
        let folder = &self.settings.folder;
        at(folder, log.sync_data())?;
        at(folder, folder::sync(folder))
    }

    /// Seals a segment that was closed, and those that could not be sealed before; removes those that are too old.
    ///
    /// # Errors
    /// The disk is full or refuses: the log stays, and is sealed with the next segment. Or a log cannot be read: its
    /// segment is skipped, and the others are sealed.
    pub fn seal(&mut self, closed: Option<String>) -> Result<(), RecordError> {
        self.waiting.extend(closed);
        self.seal_waiting()?;
        self.skipped.take().map_or(Ok(()), Err)
    }

    fn seal_waiting(&mut self) -> Result<(), RecordError> {
        // Room first, so that a disk that is full of old segments is not full for ever.
        self.expire()?;
        while let Some(name) = self.waiting.first().cloned() {
            self.seal_log(&name)?;
            self.waiting.remove(&name);
        }
        self.expire()
    }

    fn seal_log(&mut self, name: &str) -> Result<(), RecordError> {
        let folder = self.settings.folder.clone();
        let path = folder::log(&folder, name);
        let log = match read_log(&path) {
            Ok(log) => log,
            Err(error) => {
                if let Ok(segment) = folder::log_of(&path) {
                    self.segments.insert(name.to_owned(), segment);
                    self.unreadable.insert(name.to_owned());
                }
                self.skipped = Some(RecordError::Log(path, error));
                return Ok(());
            }
        };
        if let Some(head) = &log.head {
            let segment = write_tables(&folder, name, head, &log.batches)?;
            if segment.bytes > 0 {
                self.segments.insert(name.to_owned(), segment);
            }
        }
        at(&path, fs::remove_file(&path))?;
        at(&folder, folder::sync(&folder))
    }

    fn expire(&mut self) -> Result<(), RecordError> {
        let Settings { folder, keep_bytes, keep_age, .. } = &self.settings;
        let expired = folder::expired(&self.segments, *keep_bytes, *keep_age, SystemTime::now());
        for name in expired {
            at(folder, folder::remove(folder, &name))?;
            if self.unreadable.remove(&name) {
                // A link itself, not what it leads to; a directory stays.
                let _ = fs::remove_file(folder::log(folder, &name));
            }
            self.segments.remove(&name);
        }
        Ok(())
    }
}

/// What flows and processes did is not for everybody.
fn make_folder(folder: &Path) -> Result<(), RecordError> {
    match DirBuilder::new().mode(0o750).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
        result => at(folder, result),
    }
}

fn lock(folder: &Path) -> Result<File, RecordError> {
    let path = folder.join(LOCK);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o640).custom_flags(libc::O_NOFOLLOW);
    let lock = at(&path, options.open(&path))?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(RecordError::Locked(folder.to_owned())),
        Err(error) => at(&path, Err(error.into())),
    }
}

/// Reads a log.
///
/// # Errors
/// It cannot be read.
pub(super) fn read_log(path: &Path) -> io::Result<log::Log> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let mut bytes = Vec::new();
    BufReader::new(file).take(LOG_MAX).read_to_end(&mut bytes)?;
    Ok(log::read(&bytes))
}

/// Rows of a table, as they are in a file.
pub(super) fn recorded(head: &Head, batches: &[Batch], table: Table) -> Vec<Recorded> {
    let (host, boot): (Arc<str>, Arc<str>) = (head.host.as_str().into(), head.boot.as_str().into());
    let of = |batch: &Batch| {
        let with = |row: &Vec<_>| Recorded {
            time_us: batch.time_us,
            interval_s: batch.interval_s,
            host: Arc::clone(&host),
            boot: Arc::clone(&boot),
            row: row.clone(),
        };
        batch.of(table).map(with).collect::<Vec<_>>()
    };
    batches.iter().flat_map(of).collect()
}

/// Writes the tables of a segment that have rows.
fn write_tables(
    folder: &Path,
    segment: &str,
    head: &Head,
    batches: &[Batch],
) -> Result<Segment, RecordError> {
    for spec in TABLES {
        let rows = recorded(head, batches, spec.table);
        if !rows.is_empty() {
            write_table(folder, segment, spec.table, &rows)?;
        }
    }
    let mut written = Segment { bytes: 0, written: SystemTime::now() };
    for spec in TABLES {
        use std::os::unix::fs::MetadataExt;
        if let Ok(metadata) = fs::symlink_metadata(folder::sealed(folder, spec.table, segment)) {
            written.bytes += metadata.blocks() * 512;
        }
    }
    Ok(written)
}

fn write_table(
    folder: &Path,
    segment: &str,
    table: Table,
    rows: &[Recorded],
) -> Result<(), RecordError> {
    let tables = folder.join(table.spec().name);
    make_folder(&tables)?;
    let path = folder::sealed(folder, table, segment);
    let temporary = tables.join(format!("{segment}.{TEMPORARY}"));
    let written = write_durably(&temporary, table, rows);
    if written.is_err() {
        // A full disk must not stay full because of us.
        let _ = fs::remove_file(&temporary);
    }
    written?;
    at(&path, fs::rename(&temporary, &path))?;
    at(&tables, folder::sync(&tables))
}

fn write_durably(path: &Path, table: Table, rows: &[Recorded]) -> Result<(), RecordError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o640).custom_flags(libc::O_NOFOLLOW);
    let file = at(path, options.open(path))?;
    let written = file::write(file, table, rows);
    let file = written.map_err(|error| RecordError::Table(path.to_owned(), error))?;
    debug_assert!(file.metadata().is_ok_and(|metadata| metadata.len() <= FILE_MAX));
    at(path, file.sync_all())
}

#[cfg(test)]
#[path = "recorder_tests.rs"]
mod tests;
