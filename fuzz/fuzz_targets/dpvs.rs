//! Fuzzes the check of DPVS configurations: the first line is taken for `--lcores`, the rest for the file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_tune::dpvs::{DpvsOptions, check};

fuzz_target!(|bytes: &[u8]| {
    let (first, file) = bytes.split_at(bytes.iter().position(|b| *b == b'\n').unwrap_or(0));
    let lcores = Some(String::from_utf8_lossy(first).into_owned()).filter(|text| !text.is_empty());
    let found = check(file, &DpvsOptions { lcores, ..DpvsOptions::default() });
    assert!(found.problems.len() <= 1000 && found.workers.len() <= 129);
});
