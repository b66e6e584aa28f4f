//! Any bytes as the journal of a host's changes: what is read comes back the same when the journal is
//! made shorter.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nearpath_tune::fuzzing(bytes));
