//! Any text as the target of a plan, and as what a file of configuration is to have.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nearpath_tune::fuzzing_targets(bytes));
