//! Recordings: a Parquet file of each table, and the log of an open segment; and what is made of the rows of a log.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_monitor::recording::{History, TABLES, facts, file, frame, log, replay};
use std::time::Duration;

fuzz_target!(|data: &[u8]| {
    let mut history = History::new("host");
    log::read(data).batches.into_iter().for_each(|batch| history.add(batch));
    if let Some((first, last)) = history.times() {
        let _ = replay(&history, first, last);
        let _ = facts(&history, first, last, last);
        let _ = frame(&history, last, Duration::from_secs(10));
    }
    let Some((&first, rest)) = data.split_first() else { return };
    let table = TABLES[usize::from(first) % TABLES.len()].table;
    let _ = file::read(rest.to_vec().into(), table);
});
