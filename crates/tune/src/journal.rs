//! The journal: which changes this host has from us, on disk before they are made.
//!
//! A file of lines, each a JSON record that is synced before the write that it tells of: a change
//! begins, is done, is undone. A line that a power loss cut short tells of nothing that was done yet
//! and is dropped. One process writes at a time; reading needs no lock.

use crate::{Change, TuneError};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Version of the records; an older nearpath refuses a newer journal.
pub const JOURNAL_VERSION: u32 = 1;

/// Where the journal is kept.
const FOLDER: &str = "/var/lib/nearpath";
/// Names another folder, for tests and for images that are made elsewhere.
const FOLDER_VARIABLE: &str = "NEARPATH_STATE_DIR";
const FILE: &str = "journal.jsonl";

/// How far a change has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It was about to be made when the last record was written: it may be there or not.
    Begun,
    /// It was made.
    Done,
}

/// A change that has not been undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number in the journal.
    pub id: u64,
    /// When it began, in seconds since 1970.
    pub time_s: u64,
    /// The boot that it belongs to (`/proc/sys/kernel/random/boot_id`).
    pub boot: String,
    /// How far it came.
    pub state: State,
    /// The change.
    pub change: Change,
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    version: u32,
    id: u64,
    time_s: u64,
    boot: String,
    event: Event,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Event {
    Begin(Box<Change>),
    Done,
    Undone,
}

/// The journal, open for writing.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    boot: String,
    next: u64,
    /// Bytes of whole lines.
    length: u64,
    entries: Vec<Entry>,
}

impl Journal {
    /// The folder that it is kept in: that of `NEARPATH_STATE_DIR`, else `/var/lib/nearpath`.
    pub fn folder() -> PathBuf {
        std::env::var_os(FOLDER_VARIABLE).map_or_else(|| FOLDER.into(), PathBuf::from)
    }

    /// Reads the changes that have not been undone; none where there is no journal yet.
    ///
    /// # Errors
    /// The file cannot be read or is not understood.
    pub fn read(folder: &Path) -> Result<Vec<Entry>, TuneError> {
        let path = folder.join(FILE);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(parse(&bytes, &path)?.entries),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(failed(&path, &error)),
        }
    }

    /// Opens it for writing, for changes of this boot.
    ///
    /// # Errors
    /// Another process writes, or the file cannot be opened, or is not understood.
    pub fn open(folder: &Path, boot: &str) -> Result<Self, TuneError> {
        let path = folder.join(FILE);
        let opened = open(folder, &path).map_err(|error| failed(&path, &error));
        let mut file = opened?.ok_or_else(|| TuneError::Journal {
            file: path.display().to_string(),
            reason: "another nearpath is changing this host; try again when it is done".to_owned(),
        })?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| failed(&path, &error))?;
        let Parsed { entries, last, whole } = parse(&bytes, &path)?;
        let length = whole as u64;
        file.set_len(length).map_err(|error| failed(&path, &error))?;
        Ok(Self { path, file, boot: boot.to_owned(), next: last + 1, length, entries })
    }

    /// The changes that have not been undone, in the order in which they were made.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// A change is about to be made; its number. It is on disk when this returns.
    pub(crate) fn begin(&mut self, change: &Change) -> Result<u64, TuneError> {
        let id = self.next;
        let time_s = self.append(id, Event::Begin(Box::new(change.clone())))?;
        self.next += 1;
        let (boot, state) = (self.boot.clone(), State::Begun);
        self.entries.push(Entry { id, time_s, boot, state, change: change.clone() });
        Ok(id)
    }

    /// It was made.
    pub(crate) fn done(&mut self, id: u64) -> Result<(), TuneError> {
        self.append(id, Event::Done)?;
        self.entries.iter_mut().filter(|e| e.id == id).for_each(|e| e.state = State::Done);
        Ok(())
    }

    /// It is not there any more.
    pub(crate) fn undone(&mut self, id: u64) -> Result<(), TuneError> {
        self.append(id, Event::Undone)?;
        self.entries.retain(|entry| entry.id != id);
        Ok(())
    }

    fn append(&mut self, id: u64, event: Event) -> Result<u64, TuneError> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (version, time_s) = (JOURNAL_VERSION, time.as_secs());
        let record = Record { version, id, time_s, boot: self.boot.clone(), event };
        let line = serde_json::to_vec(&record).map_err(io::Error::from);
        let written = line.and_then(|mut line| {
            line.push(b'\n');
            self.file.write_all(&line)?;
            self.file.sync_all()?;
            Ok(line.len() as u64)
        });
        match written {
            Ok(bytes) => self.length += bytes,
            Err(error) => {
                // Half a line in the middle would make all of it unreadable.
                let _ = self.file.set_len(self.length);
                return Err(failed(&self.path, &error));
            }
        }
        Ok(time_s)
    }
}

/// Opens and locks the file; `None` when another process has the lock.
fn open(folder: &Path, path: &Path) -> io::Result<Option<File>> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    // Not through a link, should the folder be one that others can write to.
    let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    // The name of a new file is on disk only when its folder is.
    File::open(folder)?.sync_all()?;
    Ok(Some(file))
}

struct Parsed {
    entries: Vec<Entry>,
    /// The highest number that was given.
    last: u64,
    /// Bytes of the lines that are whole.
    whole: usize,
}

fn parse(bytes: &[u8], path: &Path) -> Result<Parsed, TuneError> {
    let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |end| end + 1);
    let mut parsed = Parsed { entries: Vec::new(), last: 0, whole };
    let lines = bytes.get(..whole).unwrap_or_default().split(|&b| b == b'\n');
    for (number, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
        let refuse = |reason: String| TuneError::Journal {
            file: path.display().to_string(),
            reason: format!("line {} {reason}", number + 1),
        };
        // The version first: a newer one may have events that are not known here.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let version: Result<Version, _> = serde_json::from_slice(line);
        if let Ok(Version { version }) = version
            && version > JOURNAL_VERSION
        {
            return Err(refuse(format!("is of a newer nearpath (version {version})")));
        }
        let record: Record = serde_json::from_slice(line)
            .map_err(|error| refuse(format!("is not understood: {error}")))?;
        let Record { id, time_s, boot, event, .. } = record;
        parsed.last = parsed.last.max(id);
        match event {
            Event::Begin(change) => {
                let change = *change;
                parsed.entries.push(Entry { id, time_s, boot, state: State::Begun, change });
            }
            Event::Done => {
                let entries = parsed.entries.iter_mut();
                entries.filter(|e| e.id == id).for_each(|e| e.state = State::Done);
            }
            Event::Undone => parsed.entries.retain(|entry| entry.id != id),
        }
    }
    Ok(parsed)
}

fn failed(path: &Path, error: &io::Error) -> TuneError {
    TuneError::Journal { file: path.display().to_string(), reason: error.to_string() }
}

#[cfg(test)]
pub(crate) mod tests;
