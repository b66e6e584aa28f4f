//! The journal: the changes that nearpath has made on this host, on disk before they are applied.
//!
//! A file of lines (`records`), each a JSON record that is synced before the write that it describes: a change starts, is
//! done, or is undone. A line that a power loss cut short describes nothing that has happened yet and is dropped; so is
//! a last line with a wrong checksum. A damaged line before others hides a change: the others can be undone, but no new
//! changes are made. When most of the file is about undone changes, it is compacted (`file`). One process writes at a
//! time; reading needs no lock.

mod file;
mod records;

use crate::TuneError;
use file::{FILE, JournalFile, LONGEST};
use nearpath_model::{Change, Entry, Pending, State};
pub use records::Damage;
use records::{Event, Parsed, Record, compacted, parse};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Version of the records. An older nearpath refuses a newer journal.
pub const JOURNAL_VERSION: u32 = 2;

/// Where the journal is kept.
const FOLDER: &str = "/var/lib/nearpath";
/// Selects another directory, for tests and for image builds.
const FOLDER_VARIABLE: &str = "NEARPATH_STATE_DIR";
/// A journal below this size, some hundred changes, is not compacted.
const SHORT: u64 = 64 << 10;

/// The journal, open for writing.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: JournalFile,
    boot: String,
    next: u64,
    /// The size in bytes above which compaction is considered.
    long: u64,
    entries: Vec<Entry>,
    damaged: Vec<Damage>,
}

/// The contents of a journal.
#[derive(Debug, Default, PartialEq)]
pub struct JournalContents {
    /// The changes that have not been undone, in the order in which they were applied.
    pub entries: Vec<Entry>,
    /// Damaged lines; their changes are not among the entries.
    pub damaged: Vec<Damage>,
    /// The last line, if it is damaged; its change was not applied yet.
    pub torn: Option<Damage>,
}

impl JournalContents {
    /// Warnings about damaged lines.
    pub fn warnings(&self) -> Vec<String> {
        let file = Journal::folder().join(FILE);
        let torn = self.torn.iter().map(|Damage { line, reason }| {
            format!(
                "{}: ignoring the damaged last line ({line}: {reason}), probably cut short by a \
                 power loss",
                file.display()
            )
        });
        let damaged = (!self.damaged.is_empty()).then(|| hidden(&self.damaged));
        torn.chain(damaged.map(|said| format!("{}: {said}", file.display()))).collect()
    }
}

/// The warning about damaged lines before others.
fn hidden(damaged: &[Damage]) -> String {
    let lines: Vec<String> = damaged.iter().map(|damage| damage.line.to_string()).collect();
    let reason = damaged.first().map_or("", |damage| damage.reason.as_str());
    format!(
        "line {} damaged ({reason}): its change is unknown and cannot be undone; run \
         'nearpath tune rollback' to undo the others, then move the file away",
        match lines.len() {
            1 => format!("{} is", lines.concat()),
            n if n > 8 => format!("{} and {} others are", lines[..8].join(", "), n - 8),
            _ => format!("{} are", lines.join(", ")),
        }
    )
}

impl Journal {
    /// Its directory: `NEARPATH_STATE_DIR`, else `/var/lib/nearpath`.
    pub fn folder() -> PathBuf {
        std::env::var_os(FOLDER_VARIABLE).map_or_else(|| FOLDER.into(), PathBuf::from)
    }

    /// Reads the changes that have not been undone; none if there is no journal yet.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub fn read(folder: &Path) -> Result<Vec<Entry>, TuneError> {
        Ok(Self::contents(folder)?.entries)
    }

    /// The same, with damaged lines.
    ///
    /// # Errors
    /// As [`Journal::read`].
    pub fn contents(folder: &Path) -> Result<JournalContents, TuneError> {
        let path = folder.join(FILE);
        let bytes = file::read(&path).map_err(|error| failed(&path, error))?;
        let parsed = parse(&bytes).map_err(|reason| failed(&path, reason))?;
        let Parsed { entries, damaged, torn, .. } = parsed;
        Ok(JournalContents { entries, damaged, torn })
    }

    /// Checks whether changes may be added, as far as possible without writing.
    ///
    /// # Errors
    /// It cannot be read, was written by a newer nearpath, or has a damaged line.
    pub fn check(folder: &Path) -> Result<(), TuneError> {
        match Self::contents(folder)?.damaged.as_slice() {
            [] => Ok(()),
            damaged => Err(failed(&folder.join(FILE), hidden(damaged))),
        }
    }

    /// Opens it for writing changes of this boot.
    ///
    /// # Errors
    /// Another process has it open for writing, or the file cannot be opened or parsed.
    pub fn open(folder: &Path, boot: &str) -> Result<Self, TuneError> {
        let journal = Self::open_to_undo(folder, boot)?;
        journal.file.writable().map_err(|error| failed(&journal.path, error))?;
        Ok(journal)
    }

    /// The same, to undo its changes, for which it need not be writable: what is undone is then still in it.
    ///
    /// # Errors
    /// Another process has it open, or the file cannot be read or parsed.
    pub fn open_to_undo(folder: &Path, boot: &str) -> Result<Self, TuneError> {
        Self::open_or_wait(folder, boot, false)
    }

    /// The same, waiting until no other process has it open.
    ///
    /// # Errors
    /// The file cannot be read or parsed.
    pub fn wait(folder: &Path, boot: &str) -> Result<Self, TuneError> {
        Self::open_or_wait(folder, boot, true)
    }

    fn open_or_wait(folder: &Path, boot: &str, waits: bool) -> Result<Self, TuneError> {
        const BUSY: &str = "another nearpath is changing this host; try again when it is done";
        let path = folder.join(FILE);
        let opened = JournalFile::open(&path, waits).map_err(|error| failed(&path, error))?;
        let (mut file, bytes) = opened.ok_or_else(|| failed(&path, BUSY))?;
        let Parsed { entries, last, whole, damaged, .. } =
            parse(&bytes).map_err(|reason| failed(&path, reason))?;
        let next = last.checked_add(1).ok_or_else(|| failed(&path, "no change numbers left"))?;
        file.cut(whole as u64).map_err(|error| failed(&path, error))?;
        Ok(Self { path, file, boot: boot.to_owned(), next, long: SHORT, entries, damaged })
    }

    /// The changes that have not been undone, in the order in which they were applied.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Records a change that is about to be applied and returns its number. It is on disk when this returns.
    pub(crate) fn begin(
        &mut self,
        change: &Change,
        pending: Option<Pending>,
    ) -> Result<u64, TuneError> {
        self.begin_of(change, None, pending)
    }

    /// The same for a change that replaces a lost one.
    pub(crate) fn begin_again(&mut self, change: &Change, lost: &Entry) -> Result<u64, TuneError> {
        self.begin_of(change, Some(lost.id), lost.pending)
    }

    fn begin_of(
        &mut self,
        change: &Change,
        replaces: Option<u64>,
        pending: Option<Pending>,
    ) -> Result<u64, TuneError> {
        if !self.damaged.is_empty() {
            return Err(failed(&self.path, hidden(&self.damaged)));
        }
        self.keep_short();
        // Half of the maximum size, so that there is room to record undone changes.
        if self.file.length() > LONGEST / 2 {
            return Err(failed(&self.path, "it is full; undo some changes"));
        }
        let id = self.next;
        let event = Event::Begin(Box::new(change.clone()));
        let time_s = self.append_of(id, replaces, pending, event)?;
        self.next += 1;
        let (boot, state) = (self.boot.clone(), State::Begun);
        let change = change.clone();
        self.entries.push(Entry { id, time_s, boot, state, change, replaces, pending });
        Ok(id)
    }

    /// Records that a change was applied.
    pub(crate) fn done(&mut self, id: u64) -> Result<(), TuneError> {
        self.append(id, Event::Done)?;
        records::done(&mut self.entries, id);
        Ok(())
    }

    /// Records that a change was undone.
    pub(crate) fn undone(&mut self, id: u64) -> Result<(), TuneError> {
        self.append(id, Event::Undone)?;
        self.entries.retain(|entry| entry.id != id);
        Ok(())
    }

    /// Records that the changes later than `after` stay, or are pending from now on.
    pub(crate) fn decide(&mut self, after: u64, pending: Option<Pending>) -> Result<(), TuneError> {
        let Some(id) = self.entries.last().map(|entry| entry.id).filter(|id| *id > after) else {
            return Ok(());
        };
        self.append(id, Event::Decided { after, pending })?;
        records::decided(&mut self.entries, after, id, pending);
        Ok(())
    }

    fn append(&mut self, id: u64, event: Event) -> Result<u64, TuneError> {
        self.append_of(id, None, None, event)
    }

    fn append_of(
        &mut self,
        id: u64,
        replaces: Option<u64>,
        pending: Option<Pending>,
        event: Event,
    ) -> Result<u64, TuneError> {
        let (version, time_s, boot) = (JOURNAL_VERSION, now_s(), self.boot.clone());
        let line = Record { version, id, time_s, boot, replaces, pending, event }.line();
        line.map_err(io::Error::from)
            .and_then(|line| self.file.append(&line))
            .map_err(|error| failed(&self.path, error))?;
        Ok(time_s)
    }

    /// Drops undone changes if they are half of the file or more. Failure is harmless: a long journal works as well, and
    /// the next change tries again.
    fn keep_short(&mut self) {
        if self.file.length() < self.long {
            return;
        }
        let last = self.next - 1;
        let Ok(lines) = compacted(&self.entries, last, &self.boot, now_s()) else { return };
        let length = lines.len() as u64;
        self.long = length.saturating_mul(2).max(SHORT);
        // Verify the replacement of the only record of these changes first.
        let same = |read: Parsed| {
            let whole = read.damaged.is_empty() && read.torn.is_none();
            whole && (read.last, read.entries == self.entries) == (last, true)
        };
        if self.file.length() >= self.long && parse(&lines).is_ok_and(same) {
            let _ = self.file.replace(&lines);
        }
    }
}

/// The time in seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn failed(path: &Path, reason: impl ToString) -> TuneError {
    TuneError::Journal { file: path.display().to_string(), reason: reason.to_string() }
}

/// For fuzz targets: parses any bytes as a journal. Entries must survive compaction unchanged.
#[doc(hidden)]
pub fn fuzzing(bytes: &[u8]) {
    let Ok(read) = parse(bytes) else { return };
    let lines = compacted(&read.entries, read.last, "boot", 0).unwrap_or_default();
    let again = parse(&lines).unwrap_or_default();
    assert_eq!((again.entries, again.last), (read.entries, read.last));
}

#[cfg(test)]
pub(crate) mod tests;
