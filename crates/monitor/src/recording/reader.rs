//! Reads a recording, also while it is written, and one that was cut anywhere: what cannot be read is left out, and
//! reported.

use super::file::{self, FILE_MAX, Recorded};
use super::folder;
use super::recorder::{read_log, recorded};
use super::table::{TABLES, Table};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most rows that a reader returns.
const ROWS_MAX: usize = 20_000_000;
/// Longest time that a segment is open: rows of it are at most so much later than its start.
const SEGMENT_MAX_US: i64 = 3600 * 1_000_000;
/// Most folders of hosts that are read.
const FOLDERS_MAX: usize = 10_000;
/// Reports about files that are kept.
const NOTES_MAX: usize = 20;

/// A recording: of one host, or of several, whose files are in one folder or in a folder each below it.
#[derive(Debug, Clone)]
pub struct Recording {
    folders: Vec<PathBuf>,
    /// All segments, sealed and open, by time.
    segments: BTreeSet<Segment>,
    /// The host whose rows are read; `None` for all.
    host: Option<String>,
}

/// The name of a segment, and the number of its folder.
type Segment = (String, usize);

/// A boot of a host: the number of its folder, and what segments' names have of the boot.
type Boot<'a> = (usize, &'a str);

fn boot((name, folder): &Segment) -> Boot<'_> {
    // Without one, each segment may be of another.
    (*folder, folder::boot(name).unwrap_or(name))
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
        let names = |folder: &Path| -> io::Result<BTreeSet<String>> {
            let mut names: BTreeSet<String> = folder::segments(folder)?.into_keys().collect();
            names.extend(folder::logs(folder)?.into_keys());
            Ok(names)
        };
        let (mut folders, mut segments) = (vec![folder.to_owned()], BTreeSet::new());
        segments.extend(names(folder)?.into_iter().map(|name| (name, 0)));
        if segments.is_empty() {
            folders = below(folder)?;
            for (at, folder) in folders.iter().enumerate() {
                segments.extend(names(folder)?.into_iter().map(|name| (name, at)));
            }
        }
        if segments.is_empty() {
            return Err(io::Error::other("it has no segment of a recording"));
        }
        Ok(Self { folders, segments, host: None })
    }

    /// Names of the hosts, sorted. They are read from the first and the last segment of each boot: a host that was renamed
    /// twice while it was up lacks the name between. Segments that cannot be read have none.
    pub fn hosts(&self) -> Vec<String> {
        let all: BTreeSet<String> = self.hosts_by_boot().into_values().flatten().collect();
        all.into_iter().collect()
    }

    /// What is recorded of one host.
    pub fn of_host(&self, host: &str) -> Self {
        let boots = self.hosts_by_boot();
        // What cannot be read at all may be its, and is to be reported.
        let is_its =
            |segment: &&Segment| boots.get(&boot(segment)).is_none_or(|hosts| hosts.contains(host));
        Self {
            folders: self.folders.clone(),
            segments: self.segments.iter().filter(is_its).cloned().collect(),
            host: Some(host.to_owned()),
        }
    }

    fn hosts_by_boot(&self) -> BTreeMap<Boot<'_>, BTreeSet<String>> {
        let mut hosts: BTreeMap<Boot<'_>, BTreeSet<String>> = BTreeMap::new();
        let directions: [Box<dyn Iterator<Item = &Segment>>; 2] =
            [Box::new(self.segments.iter()), Box::new(self.segments.iter().rev())];
        for segments in directions {
            let mut known = BTreeSet::new();
            for segment in segments {
                if known.contains(&boot(segment)) {
                    continue;
                }
                if let Some(host) = self.host_of(segment) {
                    known.insert(boot(segment));
                    hosts.entry(boot(segment)).or_default().insert(host);
                }
            }
        }
        hosts
    }

    /// The host of a segment; `None` if nothing of it can be read.
    fn host_of(&self, segment: &Segment) -> Option<String> {
        // Small, and in almost all of them.
        let tables = [Table::Cost, Table::Softnet].into_iter();
        tables.chain(TABLES.iter().map(|spec| spec.table)).find_map(|table| {
            let rows = self.segment(table, segment).ok()?;
            rows.first().map(|row| row.host.to_string())
        })
    }

    /// Rows of a table between two times in microseconds since 1970, both included.
    pub fn rows(&self, table: Table, from_us: i64, to_us: i64) -> Rows {
        let mut rows = Rows::default();
        for segment in &self.segments {
            let began = folder::start(&segment.0).unwrap_or(i64::MIN);
            if began > to_us || began.saturating_add(2 * SEGMENT_MAX_US) < from_us {
                continue;
            }
            let found = self.segment(table, segment).unwrap_or_else(|note| {
                rows.note(note);
                Vec::new()
            });
            let is_its =
                |row: &Recorded| self.host.as_deref().is_none_or(|host| *row.host == *host);
            let wanted = |row: &Recorded| (from_us..=to_us).contains(&row.time_us) && is_its(row);
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

    fn segment(&self, table: Table, segment: &Segment) -> Result<Vec<Recorded>, String> {
        let sealed = folder::sealed(self.folder(segment), table, &segment.0);
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
    fn log(&self, table: Table, segment: &Segment) -> Option<Vec<Recorded>> {
        let log = read_log(&folder::log(self.folder(segment), &segment.0)).ok()?;
        Some(recorded(log.head.as_ref()?, &log.batches, table))
    }

    fn folder(&self, (_, folder): &Segment) -> &Path {
        &self.folders[*folder]
    }

    /// The time of the first segment's start and, as far as it is known without reading files, of the last one's.
    pub fn times(&self) -> Option<(i64, i64)> {
        let (first, last) = (self.segments.first()?, self.segments.last()?);
        Some((folder::start(&first.0)?, folder::start(&last.0)?))
    }

    /// Start of the first segment after a time.
    pub fn next_after(&self, time_us: i64) -> Option<i64> {
        self.segments
            .iter()
            .filter_map(|(name, _)| folder::start(name))
            .find(|start| *start > time_us)
    }

    /// Start of the last segment before a time.
    pub fn last_before(&self, time_us: i64) -> Option<i64> {
        let mut starts = self.segments.iter().rev().filter_map(|(name, _)| folder::start(name));
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

/// Folders below one, by name.
fn below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder)?.take(FOLDERS_MAX) {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            folders.push(entry.path());
        }
    }
    folders.sort();
    Ok(folders)
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
