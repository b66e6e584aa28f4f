//! The lines of the journal: JSON records with a checksum, their replay, and the fewest lines with the same result.
//! Input: untrusted bytes. Output: entries and damaged lines.

use super::{Entry, JOURNAL_VERSION, State};
use nearpath_model::{Change, Pending};
use serde::{Deserialize, Serialize};

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    pub version: u32,
    pub id: u64,
    pub time_s: u64,
    pub boot: String,
    /// For the start of a change: the change that it replaces when done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<u64>,
    /// For the start of a change: if it is not decided yet whether it stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<Pending>,
    pub event: Event,
}

/// The event of a line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    Begin(Box<Change>),
    Done,
    Undone,
    /// The changes up to this one that are later than `after` stay, or are pending from now on.
    Decided {
        after: u64,
        pending: Option<Pending>,
    },
}

impl Record {
    /// Its line. The checksum is the last field, over everything before it.
    pub fn line(&self) -> serde_json::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.truncate(line.len().saturating_sub(1));
        let checksum = crc32fast::hash(&line);
        line.extend_from_slice(CHECKSUM);
        line.extend_from_slice(format!("{checksum:08x}\"}}\n").as_bytes());
        Ok(line)
    }
}

/// The text before the checksum of a line (CRC-32, eight hexadecimal digits).
const CHECKSUM: &[u8] = b",\"crc32\":\"";

/// Whether the checksum of a line is correct; lines without one, from older versions, are accepted.
fn is_whole(line: &[u8]) -> bool {
    let Some((rest, said)) = line
        .strip_suffix(b"\"}")
        .and_then(|line| line.split_at_checked(line.len().checked_sub(8)?))
    else {
        return true;
    };
    let Some(record) = rest.strip_suffix(CHECKSUM) else { return true };
    format!("{:08x}", crc32fast::hash(record)).as_bytes() == said
}

/// The result of replaying the lines.
#[derive(Debug, Default, PartialEq)]
pub struct Parsed {
    /// The changes that have not been undone, in the order in which they were made.
    pub entries: Vec<Entry>,
    /// The highest change number used.
    pub last: u64,
    /// Number of bytes up to the end of the last complete line.
    pub whole: usize,
    /// Damaged lines that are followed by others.
    pub damaged: Vec<Damage>,
    /// The last line, if it is terminated but damaged: a power loss can leave that of a record that was being
    /// written, so its event had not happened yet.
    pub torn: Option<Damage>,
}

/// A damaged line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Its number in the file, from 1.
    pub line: usize,
    /// The reason.
    pub reason: String,
}

/// Parses the complete lines; a partial line at the end was cut short and is ignored.
///
/// # Errors
/// A line was written by a newer nearpath.
pub fn parse(bytes: &[u8]) -> Result<Parsed, String> {
    let mut parsed = Parsed::default();
    let mut end = 0;
    for (number, line) in bytes.split_inclusive(|&b| b == b'\n').enumerate() {
        let Some(line) = line.strip_suffix(b"\n") else { break };
        end += line.len() + 1;
        if line.is_empty() {
            continue;
        }
        // It is followed by another.
        parsed.damaged.extend(parsed.torn.take());
        match parsed.take(line) {
            Ok(()) => parsed.whole = end,
            Err(Refusal::Newer(reason)) => return Err(format!("line {} {reason}", number + 1)),
            Err(Refusal::Damaged(reason)) => {
                parsed.torn = Some(Damage { line: number + 1, reason });
            }
        }
    }
    Ok(parsed)
}

/// Why a line is rejected.
enum Refusal {
    Newer(String),
    Damaged(String),
}

impl Parsed {
    fn take(&mut self, line: &[u8]) -> Result<(), Refusal> {
        if !is_whole(line) {
            return Err(Refusal::Damaged("wrong checksum".to_owned()));
        }
        // The version first: a newer one may have unknown events.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let version: Result<Version, _> = serde_json::from_slice(line);
        if let Ok(Version { version }) = version
            && version > JOURNAL_VERSION
        {
            return Err(Refusal::Newer(format!(
                "was written by a newer nearpath (version {version})"
            )));
        }
        let record: Record = serde_json::from_slice(line)
            .map_err(|error| Refusal::Damaged(format!("cannot parse it: {error}")))?;
        let Record { id, time_s, boot, replaces, pending, event, .. } = record;
        self.last = self.last.max(id);
        match event {
            Event::Begin(change) => {
                let change = change.with_snapshot_separated();
                let state = State::Begun;
                self.entries.push(Entry { id, time_s, boot, state, change, replaces, pending });
            }
            Event::Done => done(&mut self.entries, id),
            Event::Undone => self.entries.retain(|entry| entry.id != id),
            Event::Decided { after, pending } => decided(&mut self.entries, after, id, pending),
        }
        Ok(())
    }
}

/// Marks a change as applied, and removes the one that it replaces.
pub fn done(entries: &mut Vec<Entry>, id: u64) {
    let mut replaced = None;
    for entry in entries.iter_mut().filter(|entry| entry.id == id) {
        entry.state = State::Done;
        replaced = replaced.or(entry.replaces.take());
    }
    entries.retain(|entry| entry.id == id || Some(entry.id) != replaced);
}

/// Decides about the changes later than one and up to another.
pub fn decided(entries: &mut [Entry], after: u64, id: u64, pending: Option<Pending>) {
    for entry in entries.iter_mut().filter(|entry| entry.id > after && entry.id <= id) {
        entry.pending = pending;
    }
}

/// The fewest lines with the same result: undone changes are dropped, except that their numbers stay used.
///
/// # Errors
/// An entry cannot be serialized.
pub fn compacted(
    entries: &[Entry],
    last: u64,
    boot: &str,
    now_s: u64,
) -> serde_json::Result<Vec<u8>> {
    let version = JOURNAL_VERSION;
    let mut bytes = Vec::new();
    if entries.iter().all(|entry| entry.id != last) && last > 0 {
        // Before the others, as it would terminate them.
        let boot = boot.to_owned();
        let event = Event::Undone;
        let (replaces, pending) = (None, None);
        let number = Record { version, id: last, time_s: now_s, boot, replaces, pending, event };
        bytes.extend(number.line()?);
    }
    for entry in entries {
        let Entry { id, time_s, ref boot, state, ref change, replaces, pending } = *entry;
        let record = |event| {
            let boot = boot.clone();
            Record { version, id, time_s, boot, replaces, pending, event }
        };
        bytes.extend(record(Event::Begin(Box::new(change.clone()))).line()?);
        if state == State::Done {
            bytes.extend(record(Event::Done).line()?);
        }
    }
    Ok(bytes)
}
