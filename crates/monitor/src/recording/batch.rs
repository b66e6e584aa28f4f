//! Rows of one reading. A batch is the unit of the log: it is there as a whole or not at all.

use super::table::{Kind, Table};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest text of a cell in bytes; a document that is longer is left out, other text is cut.
pub const TEXT_MAX: usize = 64 * 1024;
/// Most rows of one table in a batch; the others are left out, and counted.
pub const ROWS_MAX: usize = 50_000;

/// A value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// Unknown.
    Null,
    /// Of a column of [`Kind::Count`].
    Count(i64),
    /// Of a column of [`Kind::Real`]; finite.
    Real(f64),
    /// Of a column of [`Kind::Text`].
    Text(String),
}

impl Cell {
    /// Whether it may be in a column of this kind.
    pub fn fits(&self, kind: Kind) -> bool {
        match self {
            Self::Null => true,
            Self::Count(_) => kind == Kind::Count,
            Self::Real(_) => kind == Kind::Real,
            Self::Text(_) => kind == Kind::Text,
        }
    }

    /// The count.
    pub fn count(&self) -> Option<i64> {
        if let Self::Count(count) = self { Some(*count) } else { None }
    }

    /// The number.
    pub fn real(&self) -> Option<f64> {
        if let Self::Real(number) = self { Some(*number) } else { None }
    }

    /// The text.
    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// A JSON document; null if it is longer than a cell may be.
    pub fn document(document: &impl Serialize) -> Self {
        match serde_json::to_string(document) {
            Ok(text) if text.len() <= TEXT_MAX => Self::Text(text),
            _ => Self::Null,
        }
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Self {
        Self::Count(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

impl From<u32> for Cell {
    fn from(count: u32) -> Self {
        Self::Count(count.into())
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        if number.is_finite() { Self::Real(number) } else { Self::Null }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        let mut end = text.len().min(TEXT_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        Self::Text(text[..end].to_owned())
    }
}

impl From<&String> for Cell {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Values of a table's own columns.
pub type Row = Vec<Cell>;

/// Rows of one reading, of one instrument.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// End of the interval in microseconds since 1970.
    pub time_us: i64,
    /// Length of the interval in seconds; 0 of a still picture.
    pub interval_s: f64,
    /// By name of the table, so that a log of another version can be read.
    pub rows: BTreeMap<String, Vec<Row>>,
    /// Rows that were too many.
    #[serde(default)]
    pub left_out: u64,
}

impl Batch {
    /// Without rows, of an interval that ends now.
    pub fn now(interval_s: f64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        let interval_s = if interval_s.is_finite() { interval_s.max(0.0) } else { 0.0 };
        Self { time_us: i64::try_from(now).unwrap_or(0), interval_s, ..Self::default() }
    }

    /// Adds a row: the values of the table's own columns, in their order.
    pub fn push<const N: usize>(&mut self, table: Table, row: [Cell; N]) {
        let spec = table.spec();
        debug_assert_eq!(N, spec.columns.len(), "{}", spec.name);
        debug_assert!(
            spec.columns.iter().zip(&row).all(|(column, cell)| cell.fits(column.kind)),
            "{}: {row:?}",
            spec.name
        );
        let rows = self.rows.entry(spec.name.to_owned()).or_default();
        if rows.len() < ROWS_MAX {
            rows.push(row.into());
        } else {
            self.left_out = self.left_out.saturating_add(1);
        }
    }

    /// Rows of a table that have the form of this version.
    pub fn of(&self, table: Table) -> impl Iterator<Item = &Row> {
        let spec = table.spec();
        let fits = |row: &&Row| {
            let cells = || spec.columns.iter().zip(row.iter());
            row.len() == spec.columns.len() && cells().all(|(column, cell)| cell.fits(column.kind))
        };
        self.rows.get(spec.name).into_iter().flatten().filter(fits)
    }

    /// Whether it has no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_from_the_log_with_their_kinds() {
        let mut batch = Batch { time_us: 7, interval_s: 1.5, ..Batch::default() };
        batch.push(Table::TcpLimits, [Cell::from("reader\n\"x\""), Cell::from(5.0)]);
        batch.push(Table::Packets, [Cell::Null, Cell::from(u64::MAX)]);
        let line = serde_json::to_string(&batch).unwrap();
        let back: Batch = serde_json::from_str(&line).unwrap();
        assert_eq!(back, batch);
        assert_eq!(back.of(Table::TcpLimits).next().unwrap()[1], Cell::Real(5.0));
        assert_eq!(back.of(Table::Packets).next().unwrap()[1], Cell::Count(i64::MAX));
    }

    #[test]
    fn rows_of_another_form_are_left_out() {
        let line = r#"{"time_us":1,"interval_s":1,"rows":{"packets":[["x"],["x","y"],["x",2],[3,2]],"new":[[1]]}}"#;
        let batch: Batch = serde_json::from_str(line).unwrap();
        assert_eq!(batch.of(Table::Packets).count(), 1);
    }

    #[test]
    fn text_is_cut_between_characters_and_documents_are_whole() {
        let long = "ä".repeat(TEXT_MAX);
        let Cell::Text(cut) = Cell::from(long.as_str()) else { panic!() };
        assert_eq!(cut.len(), TEXT_MAX);
        assert_eq!(Cell::document(&long), Cell::Null);
        assert_eq!(Cell::from(f64::NAN), Cell::Null);
    }
}
