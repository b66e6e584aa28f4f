//! The journal: which changes this host has from us, on disk before they are made.
//!
//! A file of lines (`records`), each a JSON record that is synced before the write that it tells of: a
//! change begins, is done, is undone. A line that a power loss cut short tells of nothing that was done
//! yet and is dropped; so is a last line whose checksum is wrong. A damaged line before others hides a change:
//! the others can be undone, but nothing more is changed. When most of the file tells of what was undone it is replaced by a shorter one
//! (`file`). One process writes at a time; reading needs no lock.

mod file;
mod records;

use crate::TuneError;
use file::{FILE, JournalFile, LONGEST};
use nearpath_model::{Change, Entry, State};
pub use records::Damage;
use records::{Event, Parsed, Record, compacted, parse};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Version of the records; an older nearpath refuses a newer journal.
pub const JOURNAL_VERSION: u32 = 1;

/// Where the journal is kept.
const FOLDER: &str = "/var/lib/nearpath";
/// Names another folder, for tests and for images that are made elsewhere.
const FOLDER_VARIABLE: &str = "NEARPATH_STATE_DIR";
/// A journal of fewer bytes is left as it is; some hundred changes.
const SHORT: u64 = 64 << 10;

/// The journal, open for writing.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: JournalFile,
    boot: String,
    next: u64,
    /// From how many bytes on it is looked at whether a shorter file would do.
    long: u64,
    entries: Vec<Entry>,
    damaged: Vec<Damage>,
}

/// What a journal has.
#[derive(Debug, Default, PartialEq)]
pub struct JournalContents {
    /// The changes that have not been undone, in the order in which they were made.
    pub entries: Vec<Entry>,
    /// Lines that are damaged: a change that one of them tells of is not among the entries.
    pub damaged: Vec<Damage>,
    /// The last line, if it is damaged: the change that it tells of was not made yet.
    pub torn: Option<Damage>,
}

impl JournalContents {
    /// What there is to say of damaged lines.
    pub fn warnings(&self) -> Vec<String> {
        let file = Journal::folder().join(FILE);
        let torn = self.torn.iter().map(|Damage { line, reason }| {
            format!(
                "{}: the last line ({line}) is damaged ({reason}), as after a power loss while it \
                 was written; it is left out",
                file.display()
            )
        });
        let damaged = (!self.damaged.is_empty()).then(|| hidden(&self.damaged));
        torn.chain(damaged.map(|said| format!("{}: {said}", file.display()))).collect()
    }
}

/// What damaged lines before others mean.
fn hidden(damaged: &[Damage]) -> String {
    let lines: Vec<String> = damaged.iter().map(|damage| damage.line.to_string()).collect();
    let reason = damaged.first().map_or("", |damage| damage.reason.as_str());
    format!(
        "line {} damaged ({reason}): a change that was written there is not known, and not undone; \
         'nearpath tune rollback' undoes the others, then move the file away",
        match lines.len() {
            1 => format!("{} is", lines.concat()),
            n if n > 8 => format!("{} and {} others are", lines[..8].join(", "), n - 8),
            _ => format!("{} are", lines.join(", ")),
        }
    )
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
        Ok(Self::contents(folder)?.entries)
    }

    /// The same with what is damaged.
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

    /// Whether changes may be added to it, as far as that can be known without writing.
    ///
    /// # Errors
    /// It cannot be read, is of a newer nearpath, or a line of it is damaged.
    pub fn check(folder: &Path) -> Result<(), TuneError> {
        match Self::contents(folder)?.damaged.as_slice() {
            [] => Ok(()),
            damaged => Err(failed(&folder.join(FILE), hidden(damaged))),
        }
    }

    /// Opens it for writing, for changes of this boot.
    ///
    /// # Errors
    /// Another process writes, or the file cannot be opened, or is not understood.
    pub fn open(folder: &Path, boot: &str) -> Result<Self, TuneError> {
        const BUSY: &str = "another nearpath is changing this host; try again when it is done";
        let path = folder.join(FILE);
        let opened = JournalFile::open(&path).map_err(|error| failed(&path, error))?;
        let (mut file, bytes) = opened.ok_or_else(|| failed(&path, BUSY))?;
        let Parsed { entries, last, whole, damaged, .. } =
            parse(&bytes).map_err(|reason| failed(&path, reason))?;
        let next = last.checked_add(1).ok_or_else(|| failed(&path, "no number is left"))?;
        file.cut(whole as u64).map_err(|error| failed(&path, error))?;
        Ok(Self { path, file, boot: boot.to_owned(), next, long: SHORT, entries, damaged })
    }

    /// The changes that have not been undone, in the order in which they were made.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// A change is about to be made; its number. It is on disk when this returns.
    pub(crate) fn begin(&mut self, change: &Change) -> Result<u64, TuneError> {
        self.begin_of(change, None)
    }

    /// The same of a change that takes the place of one that is lost.
    pub(crate) fn begin_again(&mut self, change: &Change, lost: u64) -> Result<u64, TuneError> {
        self.begin_of(change, Some(lost))
    }

    fn begin_of(&mut self, change: &Change, replaces: Option<u64>) -> Result<u64, TuneError> {
        if !self.damaged.is_empty() {
            return Err(failed(&self.path, hidden(&self.damaged)));
        }
        self.keep_short();
        // Half of what can be read, so that there is room to tell that changes are undone.
        if self.file.length() > LONGEST / 2 {
            return Err(failed(&self.path, "it is full: undo changes that it holds"));
        }
        let id = self.next;
        let time_s = self.append_of(id, replaces, Event::Begin(Box::new(change.clone())))?;
        self.next += 1;
        let (boot, state) = (self.boot.clone(), State::Begun);
        self.entries.push(Entry { id, time_s, boot, state, change: change.clone(), replaces });
        Ok(id)
    }

    /// It was made.
    pub(crate) fn done(&mut self, id: u64) -> Result<(), TuneError> {
        self.append(id, Event::Done)?;
        records::done(&mut self.entries, id);
        Ok(())
    }

    /// It is not there any more.
    pub(crate) fn undone(&mut self, id: u64) -> Result<(), TuneError> {
        self.append(id, Event::Undone)?;
        self.entries.retain(|entry| entry.id != id);
        Ok(())
    }

    fn append(&mut self, id: u64, event: Event) -> Result<u64, TuneError> {
        self.append_of(id, None, event)
    }

    fn append_of(
        &mut self,
        id: u64,
        replaces: Option<u64>,
        event: Event,
    ) -> Result<u64, TuneError> {
        let (version, time_s, boot) = (JOURNAL_VERSION, now_s(), self.boot.clone());
        let line = Record { version, id, time_s, boot, replaces, event }.line();
        line.map_err(io::Error::from)
            .and_then(|line| self.file.append(&line))
            .map_err(|error| failed(&self.path, error))?;
        Ok(time_s)
    }

    /// Forgets what was undone, when that is half of the file or more. It need not succeed: a long
    /// journal is as good as a short one, and the next change tries again.
    fn keep_short(&mut self) {
        if self.file.length() < self.long {
            return;
        }
        let last = self.next - 1;
        let Ok(lines) = compacted(&self.entries, last, &self.boot, now_s()) else { return };
        let length = lines.len() as u64;
        self.long = length.saturating_mul(2).max(SHORT);
        // What replaces the only record of these changes is looked at first.
        let same = |read: Parsed| {
            let whole = read.damaged.is_empty() && read.torn.is_none();
            whole && (read.last, read.entries == self.entries) == (last, true)
        };
        if self.file.length() >= self.long && parse(&lines).is_ok_and(same) {
            let _ = self.file.replace(&lines);
        }
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn failed(path: &Path, reason: impl ToString) -> TuneError {
    TuneError::Journal { file: path.display().to_string(), reason: reason.to_string() }
}

/// For fuzz targets: any bytes as a journal. What is read must come back the same from fewer lines.
#[doc(hidden)]
pub fn fuzzing(bytes: &[u8]) {
    let Ok(read) = parse(bytes) else { return };
    let lines = compacted(&read.entries, read.last, "boot", 0).unwrap_or_default();
    let again = parse(&lines).unwrap_or_default();
    assert_eq!((again.entries, again.last), (read.entries, read.last));
}

#[cfg(test)]
pub(crate) mod tests;
