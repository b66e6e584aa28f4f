//! Any text as a setting of ethtool and its value, as plans and journals have them: what is understood
//! comes back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| nearpath_tune::fuzzing_ethtool(text));
