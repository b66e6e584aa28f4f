//! Instruments: ways to gather evidence from the running kernel. Input: what to observe. Output: a measurement,
//! which is plain data.
//!
//! Each instrument has a folder here and a file of the same name in `bpf/`; `kernel` has the code shared by all
//! of them. An instrument attaches when it is started and detaches when it is dropped; all of its kernel state
//! is held by file descriptors, so nothing remains after the process ends, however it ends.

pub mod accepts;
pub mod answers;
pub mod drops;
mod constants {
    include!(concat!(env!("OUT_DIR"), "/constants.rs"));
}
mod background;
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
pub mod memory;
mod process_events;
mod reuseport;
pub mod stages;
pub mod stages_into_guests;
mod stamps;
pub mod tcp;
pub mod vm;
pub mod workers;

pub use filter::{Device, Filter, LOWER_DEVICES_MAX, LowerDevice, VLANS_MAX};
pub use grouping::{GROUPS_MAX, Grouping, Sort};
pub use instrument::{Instrument, InstrumentError};
pub use kernel::{listening, reason};
pub use process_events::ProcessEvents;
pub use reuseport::{ReuseportProgram, ReuseportSocket, reuseport_sockets, reuseport_sockets_of};

/// The version of the linked libbpf, as `v1.7`.
pub fn libbpf_version() -> String {
    // SAFETY: it returns a string that lives as long as the program.
    let version = unsafe { std::ffi::CStr::from_ptr(libbpf_sys::libbpf_version_string()) };
    version.to_string_lossy().into_owned()
}
