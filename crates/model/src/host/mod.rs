//! The types that facts come in: plain data, the same from a live machine, a tree or a snapshot.

mod counters;
mod host;
mod irq;
mod nic;
mod socket;
mod topology;

pub use counters::*;
pub use host::*;
pub use irq::*;
pub use nic::*;
pub use socket::*;
pub use topology::*;
