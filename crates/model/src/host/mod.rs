//! The types that facts come in: plain data, the same from a live machine, a tree or a snapshot.

mod counters;
mod irq;
mod nic;
mod socket;
mod topology;
mod whole;

pub use counters::*;
pub use irq::*;
pub use nic::*;
pub use socket::*;
pub use topology::*;
pub use whole::*;
