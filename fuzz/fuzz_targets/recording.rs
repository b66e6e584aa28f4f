//! Recordings: a Parquet file of each table, and the log of an open segment.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_monitor::recording::{TABLES, file, log};

fuzz_target!(|data: &[u8]| {
    let _ = log::read(data);
    let Some((&first, rest)) = data.split_first() else { return };
    let table = TABLES[usize::from(first) % TABLES.len()].table;
    let _ = file::read(rest.to_vec().into(), table);
});
