//! Fuzzes targets of a plan, and contents of configuration files.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nearpath_tune::fuzzing_targets(bytes));
