//! The lines of the journal: records as JSON, what they come to, and the fewest lines that come to
//! the same. In go bytes that may be anybody's, out come entries or the reason why not.

use super::{Entry, JOURNAL_VERSION, State};
use crate::Change;
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
    /// Its line.
    pub fn line(&self) -> serde_json::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        Ok(line)
    }
}

/// What the lines come to.
#[derive(Debug, Default, PartialEq)]
pub struct Parsed {
    /// The changes that have not been undone, in the order in which they were made.
    pub entries: Vec<Entry>,
    /// The highest number that was given.
    pub last: u64,
    /// Bytes of the lines that are whole.
    pub whole: usize,
}

/// Reads the whole lines; what is after the last of them was cut short and is left out.
///
/// # Errors
/// Which line is not understood, and why.
pub fn parse(bytes: &[u8]) -> Result<Parsed, String> {
    let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |end| end + 1);
    let mut parsed = Parsed { whole, ..Parsed::default() };
    let lines = bytes.get(..whole).unwrap_or_default().split(|&b| b == b'\n');
    for (number, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
        parsed.take(line).map_err(|reason| format!("line {} {reason}", number + 1))?;
    }
    Ok(parsed)
}

impl Parsed {
    fn take(&mut self, line: &[u8]) -> Result<(), String> {
        // The version first: a newer one may have events that are not known here.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let version: Result<Version, _> = serde_json::from_slice(line);
        if let Ok(Version { version }) = version
            && version > JOURNAL_VERSION
        {
            return Err(format!("is of a newer nearpath (version {version})"));
        }
        let record: Record =
            serde_json::from_slice(line).map_err(|error| format!("is not understood: {error}"))?;
        let Record { id, time_s, boot, replaces, event, .. } = record;
        self.last = self.last.max(id);
        match event {
            Event::Begin(change) => {
                let change = *change;
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
