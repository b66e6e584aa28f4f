//! A recording that is looked at again and again around the same time: rows are read from files once.

use super::file::Recorded;
use super::reader::{Recording, Rows};
use super::rows_of::Source;
use super::table::Table;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// What is read beyond the times that are wanted, on both sides.
const AROUND_US: i64 = 120 * 1_000_000;

/// Rows of a table that were read, between two times.
struct Part {
    from_us: i64,
    to_us: i64,
    rows: Vec<Recorded>,
    notes: Vec<String>,
}

/// A recording, with what was read of it last.
pub struct Cached {
    recording: Recording,
    parts: RefCell<BTreeMap<Table, Part>>,
}

impl Cached {
    /// Nothing read yet.
    pub fn new(recording: Recording) -> Self {
        Self { recording, parts: RefCell::default() }
    }

    /// The recording.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }
}

impl Source for Cached {
    fn rows(&self, table: Table, from_us: i64, to_us: i64) -> Rows {
        let mut parts = self.parts.borrow_mut();
        let has = |part: &Part| part.from_us <= from_us && to_us <= part.to_us;
        if !parts.get(&table).is_some_and(has) {
            let (from_us, to_us) =
                (from_us.saturating_sub(AROUND_US), to_us.saturating_add(AROUND_US));
            let Rows { rows, notes } = self.recording.rows(table, from_us, to_us);
            parts.insert(table, Part { from_us, to_us, rows, notes });
        }
        let Some(part) = parts.get(&table) else { return Rows::default() };
        let first = part.rows.partition_point(|row| row.time_us < from_us);
        let end = part.rows.partition_point(|row| row.time_us <= to_us);
        let rows = part.rows.get(first..end).unwrap_or_default().to_vec();
        Rows { rows, notes: part.notes.clone() }
    }
}
