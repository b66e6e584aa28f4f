//! Rows by the names of their columns, from wherever they are kept.

use super::file::Recorded;
use super::reader::{Recording, Rows};
use super::table::Table;
use nearpath_model::{Direction, PathKind};

/// Where rows come from: a recording, or what a daemon has seen in the last minutes.
pub trait Source {
    /// Rows of a table between two times in microseconds since 1970, both included, by time.
    fn rows(&self, table: Table, from_us: i64, to_us: i64) -> Rows;
}

impl Source for Recording {
    fn rows(&self, table: Table, from_us: i64, to_us: i64) -> Rows {
        Recording::rows(self, table, from_us, to_us)
    }
}

/// Columns of a table by their names.
pub(super) struct Row<'a>(pub Table, pub &'a Recorded);

impl<'a> Row<'a> {
    pub fn text(&self, name: &str) -> &'a str {
        let at = self.0.spec().column(name);
        at.and_then(|at| self.1.row.get(at)?.text()).unwrap_or_default()
    }

    pub fn count(&self, name: &str) -> Option<u64> {
        let at = self.0.spec().column(name)?;
        u64::try_from(self.1.row.get(at)?.count()?).ok()
    }

    pub fn real(&self, name: &str) -> Option<f64> {
        let at = self.0.spec().column(name)?;
        self.1.row.get(at)?.real()
    }

    pub fn number(&self, name: &str) -> Option<u32> {
        u32::try_from(self.count(name)?).ok()
    }

    /// The column `direction`.
    pub fn direction(&self) -> Option<Direction> {
        match self.text("direction") {
            "rx" => Some(Direction::Rx),
            "tx" => Some(Direction::Tx),
            _ => None,
        }
    }

    /// The column `path`.
    pub fn path(&self) -> Option<PathKind> {
        let name = self.text("path");
        PathKind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// Rows of one host between two times.
pub(super) struct Reading<'a> {
    source: &'a dyn Source,
    from_us: i64,
    to_us: i64,
    host: Option<String>,
    /// All hosts; the rows are of the first.
    pub hosts: Vec<String>,
    /// What could not be read.
    pub notes: Vec<String>,
    /// Ends of the first and the last interval.
    pub times: Option<(i64, i64)>,
}

impl<'a> Reading<'a> {
    pub fn new(source: &'a dyn Source, from_us: i64, to_us: i64) -> Self {
        let (hosts, notes) = (Vec::new(), Vec::new());
        Self { source, from_us, to_us, host: None, hosts, notes, times: None }
    }

    pub fn rows(&mut self, table: Table) -> Vec<Recorded> {
        let mut rows = self.rows_between(table, self.from_us, self.to_us);
        self.notes.append(&mut rows.notes);
        for row in &rows.rows {
            let (first, last) = self.times.unwrap_or((row.time_us, row.time_us));
            self.times = Some((first.min(row.time_us), last.max(row.time_us)));
        }
        rows.rows
    }

    /// Rows of the same host between other times.
    pub fn rows_between(&mut self, table: Table, from_us: i64, to_us: i64) -> Rows {
        let mut read = self.source.rows(table, from_us, to_us);
        for row in &read.rows {
            if self.hosts.iter().all(|host| **host != *row.host) {
                self.hosts.push(row.host.to_string());
            }
        }
        let host = self.host.get_or_insert_with(|| {
            read.rows.first().map_or_else(String::new, |row| row.host.to_string())
        });
        if host.is_empty() {
            self.host = None;
        } else {
            read.rows.retain(|row| *row.host == **host);
        }
        read
    }
}
