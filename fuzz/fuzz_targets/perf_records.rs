//! Fuzzes records of a perf ring, and the symbols of ELF files. The first byte selects.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nearpath_instruments::memory::loads::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    match bytes.split_first() {
        Some((0, rest)) => fuzzing::records(rest),
        Some((_, rest)) => fuzzing::elf(rest),
        None => {}
    }
});
