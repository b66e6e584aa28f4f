//! Instruments: ways to gather evidence from the running kernel. In goes what to look at, out
//! comes a measurement: plain data.

mod measurement;

pub use measurement::*;
