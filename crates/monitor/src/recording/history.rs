//! What was seen in the last minutes, in memory. Input: batches as a recorder takes them. Output: rows, as of a recording.

use super::batch::Batch;
use super::log::Head;
use super::reader::Rows;
use super::recorder::recorded;
use super::rows_of::Source;
use super::table::{SCHEMA, Table};
use std::collections::VecDeque;

/// Most rows that are kept, of all tables; the oldest are forgotten.
const ROWS_MAX: usize = 100_000;

/// The last batches.
#[derive(Debug)]
pub struct History {
    head: Head,
    batches: VecDeque<Batch>,
    rows: usize,
}

impl History {
    /// Nothing seen yet of a host.
    pub fn new(host: &str) -> Self {
        let head = Head { schema: SCHEMA, host: host.to_owned(), boot: String::new() };
        Self { head, batches: VecDeque::new(), rows: 0 }
    }

    /// Adds a batch.
    pub fn add(&mut self, batch: Batch) {
        self.rows += size(&batch);
        self.batches.push_back(batch);
        while self.rows > ROWS_MAX && self.batches.len() > 1 {
            let Some(oldest) = self.batches.pop_front() else { break };
            self.rows -= size(&oldest);
        }
    }

    /// End of the oldest interval that is kept, and of the last one, in microseconds since 1970.
    pub fn times(&self) -> Option<(i64, i64)> {
        let times = || self.batches.iter().map(|batch| batch.time_us);
        Some((times().min()?, times().max()?))
    }
}

fn size(batch: &Batch) -> usize {
    // An empty one takes room too.
    1 + batch.rows.values().map(Vec::len).sum::<usize>()
}

impl Source for History {
    fn rows(&self, table: Table, from_us: i64, to_us: i64) -> Rows {
        let batches = self.batches.iter();
        let wanted = batches.filter(|batch| (from_us..=to_us).contains(&batch.time_us));
        let mut rows: Vec<_> = wanted
            .flat_map(|batch| recorded(&self.head, std::slice::from_ref(batch), table))
            .collect();
        rows.sort_by_key(|row| row.time_us);
        Rows { rows, notes: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::batch::Cell;
    use super::*;

    #[test]
    fn it_has_the_rows_of_a_time_and_forgets_the_oldest() {
        let mut history = History::new("h");
        let batch = |time_us, rows: u64| {
            let mut batch = Batch { time_us, interval_s: 1.0, ..Batch::default() };
            (0..rows).for_each(|n| batch.push(Table::Packets, [Cell::from("started"), n.into()]));
            batch
        };
        assert_eq!(history.times(), None);
        (1..=10).for_each(|time| history.add(batch(time, 2)));
        let rows = history.rows(Table::Packets, 3, 5).rows;
        assert_eq!(rows.iter().map(|row| row.time_us).collect::<Vec<_>>(), [3, 3, 4, 4, 5, 5]);
        assert_eq!(&*rows[0].host, "h");
        (11..=13).for_each(|time| history.add(batch(time, 40_000)));
        assert_eq!(history.times(), Some((12, 13)));
        assert!(history.rows <= ROWS_MAX);
    }
}
