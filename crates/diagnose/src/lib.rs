//! Checks: facts and measurements in, ranked findings out. Nothing here reads the machine or
//! writes to it.

mod finding;

pub use finding::*;
