//! Fuzzes the journal of a host's changes: its content must read back the same after
//! compaction.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nearpath_tune::fuzzing(bytes));
