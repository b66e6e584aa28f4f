//! Reads a recording, also while it is written, and one that was cut anywhere: what cannot be read is left out, and
//! reported.

use super::file::{self, FILE_MAX, Recorded};
use super::folder;
use super::recorder::{read_log, recorded};
use super::table::Table;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most rows that a reader returns.
const ROWS_MAX: usize = 20_000_000;
/// Longest time that a segment is open: rows of it are at most so much later than its start.
const SEGMENT_MAX_US: i64 = 3600 * 1_000_000;
/// Reports about files that are kept.
const NOTES_MAX: usize = 20;

/// A recording.
#[derive(Debug, Clone)]
pub struct Recording {
    folder: PathBuf,
    /// Names of all segments, sealed and open, by time.
    segments: BTreeSet<String>,
}

/// Rows of a table.
#[derive(Debug, Default)]
pub struct Rows {
    /// By time.
    pub rows: Vec<Recorded>,
    /// What could not be read: a line for each file, at most 20.
    pub notes: Vec<String>,
}

impl Recording {
    /// Lists a recording.
    ///
    /// # Errors
    /// It is no folder, cannot be read, or has no segment.
    pub fn open(folder: &Path) -> io::Result<Self> {
        if !folder.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no such folder"));
        }
        let mut segments: BTreeSet<String> = folder::segments(folder)?.into_keys().collect();
        segments.extend(folder::logs(folder)?.into_keys());
        if segments.is_empty() {
            return Err(io::Error::other("it has no segment of a recording"));
        }
        Ok(Self { folder: folder.to_owned(), segments })
    }

    /// Rows of a table between two times in microseconds since 1970, both included.
    pub fn rows(&self, table: Table, from_us: i64, to_us: i64) -> Rows {
        let mut rows = Rows::default();
        for segment in &self.segments {
            let began = folder::start(segment).unwrap_or(i64::MIN);
            if began > to_us || began.saturating_add(2 * SEGMENT_MAX_US) < from_us {
                continue;
            }
            let found = self.segment(table, segment).unwrap_or_else(|note| {
                rows.note(note);
                Vec::new()
            });
            let wanted = |row: &Recorded| (from_us..=to_us).contains(&row.time_us);
            rows.rows.extend(found.into_iter().filter(wanted));
            if rows.rows.len() > ROWS_MAX {
                rows.note(format!("more than {ROWS_MAX} rows: ask for less time"));
                rows.rows.truncate(ROWS_MAX);
                break;
            }
        }
        rows.rows.sort_by_key(|row| row.time_us);
        rows
    }

    fn segment(&self, table: Table, segment: &str) -> Result<Vec<Recorded>, String> {
        let sealed = folder::sealed(&self.folder, table, segment);
        let said = |path: &Path, why: String| format!("{}: {why}", path.display());
        match bytes(&sealed) {
            Ok(bytes) => match file::read(bytes, table) {
                Ok(rows) => Ok(rows),
                // The log may still have the rows.
                Err(error) => {
                    self.log(table, segment).ok_or_else(|| said(&sealed, error.to_string()))
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(self.log(table, segment).unwrap_or_default())
            }
            Err(error) => Err(said(&sealed, error.to_string())),
        }
    }

    /// Rows of a segment's log; `None` if it is sealed.
    fn log(&self, table: Table, segment: &str) -> Option<Vec<Recorded>> {
        let log = read_log(&folder::log(&self.folder, segment)).ok()?;
        Some(recorded(log.head.as_ref()?, &log.batches, table))
    }

    /// The time of the first segment's start and, as far as it is known without reading files, of the last one's.
    pub fn times(&self) -> Option<(i64, i64)> {
        let (first, last) = (self.segments.first()?, self.segments.last()?);
        Some((folder::start(first)?, folder::start(last)?))
    }

    /// Start of the first segment after a time.
    pub fn next_after(&self, time_us: i64) -> Option<i64> {
        self.segments.iter().filter_map(|name| folder::start(name)).find(|start| *start > time_us)
    }

    /// Start of the last segment before a time.
    pub fn last_before(&self, time_us: i64) -> Option<i64> {
        let mut starts = self.segments.iter().rev().filter_map(|name| folder::start(name));
        starts.find(|start| *start < time_us)
    }

    /// Number of segments.
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }
}

impl Rows {
    fn note(&mut self, note: String) {
        if self.notes.len() < NOTES_MAX {
            self.notes.push(note);
        }
    }
}

fn bytes(path: &Path) -> io::Result<Bytes> {
    let mut options = OpenOptions::new();
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(io::Error::other(format!("it is longer than {} MiB", FILE_MAX >> 20)));
    }
    Ok(bytes.into())
}
