//! Instruments: ways to gather evidence from the running kernel. In goes what to look at, out
//! comes a measurement: plain data.
//!
//! Each instrument has a folder here and a file of the same name in `bpf/`; `kernel` has what all
//! of them need of the kernel. It attaches when it is started and detaches when it is dropped; all
//! that it holds in the kernel hangs on file descriptors, so nothing stays after the process ends,
//! however it ends.

pub mod accepts;
pub mod drops;
mod filter;
mod governor;
mod grouping;
#[cfg(test)]
mod histogram;
mod instrument;
pub mod irqs;
mod kernel;
mod layout;
mod limited;
pub mod locality;
mod reuseport;
pub mod stages;

pub use filter::{Device, Filter, LOWER_DEVICES_MAX, LowerDevice, VLANS_MAX};
pub use grouping::{GROUPS_MAX, Grouping, Sort};
pub use instrument::{Instrument, InstrumentError};
pub use reuseport::{ReuseportProgram, ReuseportSocket, reuseport_sockets, reuseport_sockets_of};
