//! Fuzzes ethtool settings and their values, as in plans and journals: accepted text must
//! survive a round trip.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| nearpath_tune::fuzzing_ethtool(text));
