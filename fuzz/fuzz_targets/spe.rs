//! Fuzzes areas of ARM's SPE: packets, and where loads found their data. The first bytes choose the CPU's model.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_instruments::memory::loads::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::spe(bytes));
