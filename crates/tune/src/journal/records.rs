//! The lines of the journal: records as JSON with a checksum, what they come to, and the fewest lines
//! that come to the same. In go bytes that may be anybody's, out come entries, and which lines are damaged.

use super::{Entry, JOURNAL_VERSION, State};
use nearpath_model::Change;
use serde::{Deserialize, Serialize};

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    pub version: u32,
    pub id: u64,
    pub time_s: u64,
    pub boot: String,
    /// Of a change that begins: the one whose place it takes when it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<u64>,
    pub event: Event,
}

/// What a line tells.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    Begin(Box<Change>),
    Done,
    Undone,
}

impl Record {
    /// Its line: the checksum is the last field, of all before it.
    pub fn line(&self) -> serde_json::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.truncate(line.len().saturating_sub(1));
        let checksum = crc32fast::hash(&line);
        line.extend_from_slice(CHECKSUM);
        line.extend_from_slice(format!("{checksum:08x}\"}}\n").as_bytes());
        Ok(line)
    }
}

/// What is before the checksum (CRC-32) of a line: eight hexadecimal digits.
const CHECKSUM: &[u8] = b",\"crc32\":\"";

/// Whether a line has the checksum that it says; also one without, as older versions wrote.
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

/// What the lines come to.
#[derive(Debug, Default, PartialEq)]
pub struct Parsed {
    /// The changes that have not been undone, in the order in which they were made.
    pub entries: Vec<Entry>,
    /// The highest number that was given.
    pub last: u64,
    /// Bytes up to the end of the last line that is whole.
    pub whole: usize,
    /// Lines that are damaged, with others behind them.
    pub damaged: Vec<Damage>,
    /// The last line, if it ends as one, but is damaged: a power loss may leave that of a record that
    /// was being written, so nothing was done yet of what it tells.
    pub torn: Option<Damage>,
}

/// A line that does not have what was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// Its number in the file, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}

/// Reads the whole lines; what is after the last of them was cut short and is left out.
///
/// # Errors
/// A line is of a newer nearpath.
pub fn parse(bytes: &[u8]) -> Result<Parsed, String> {
    let mut parsed = Parsed::default();
    let mut end = 0;
    for (number, line) in bytes.split_inclusive(|&b| b == b'\n').enumerate() {
        let Some(line) = line.strip_suffix(b"\n") else { break };
        end += line.len() + 1;
        if line.is_empty() {
            continue;
        }
        // There is one behind it.
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

/// Why a line is not taken.
enum Refusal {
    Newer(String),
    Damaged(String),
}

impl Parsed {
    fn take(&mut self, line: &[u8]) -> Result<(), Refusal> {
        if !is_whole(line) {
            return Err(Refusal::Damaged("its checksum is another".to_owned()));
        }
        // The version first: a newer one may have events that are not known here.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let version: Result<Version, _> = serde_json::from_slice(line);
        if let Ok(Version { version }) = version
            && version > JOURNAL_VERSION
        {
            return Err(Refusal::Newer(format!("is of a newer nearpath (version {version})")));
        }
        let record: Record = serde_json::from_slice(line)
            .map_err(|error| Refusal::Damaged(format!("it is not understood: {error}")))?;
        let Record { id, time_s, boot, replaces, event, .. } = record;
        self.last = self.last.max(id);
        match event {
            Event::Begin(change) => {
                let change = change.with_snapshot_apart();
                let state = State::Begun;
                self.entries.push(Entry { id, time_s, boot, state, change, replaces });
            }
            Event::Done => done(&mut self.entries, id),
            Event::Undone => self.entries.retain(|entry| entry.id != id),
        }
        Ok(())
    }
}

/// A change was made: the one whose place it takes is not there any more.
pub fn done(entries: &mut Vec<Entry>, id: u64) {
    let mut replaced = None;
    for entry in entries.iter_mut().filter(|entry| entry.id == id) {
        entry.state = State::Done;
        replaced = replaced.or(entry.replaces.take());
    }
    entries.retain(|entry| entry.id == id || Some(entry.id) != replaced);
}

/// The fewest lines that come to the same: no trace of what was undone, but that its number was
/// given.
///
/// # Errors
/// An entry has no form in JSON.
pub fn compacted(
    entries: &[Entry],
    last: u64,
    boot: &str,
    now_s: u64,
) -> serde_json::Result<Vec<u8>> {
    let version = JOURNAL_VERSION;
    let mut bytes = Vec::new();
    if entries.iter().all(|entry| entry.id != last) && last > 0 {
        // Before the others, as it would end them.
        let boot = boot.to_owned();
        let event = Event::Undone;
        let number = Record { version, id: last, time_s: now_s, boot, replaces: None, event };
        bytes.extend(number.line()?);
    }
    for entry in entries {
        let Entry { id, time_s, ref boot, state, ref change, replaces } = *entry;
        let record = |event| Record { version, id, time_s, boot: boot.clone(), replaces, event };
        bytes.extend(record(Event::Begin(Box::new(change.clone()))).line()?);
        if state == State::Done {
            bytes.extend(record(Event::Done).line()?);
        }
    }
    Ok(bytes)
}
