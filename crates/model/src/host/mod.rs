//! The types of host facts: plain data, the same from a live machine, a directory tree or a snapshot.

mod cgroup;
mod clocks;
mod coalesce;
mod counters;
mod driver_counters;
mod irq;
mod kubelet;
mod net_thread;
mod nfqueue;
mod nic;
mod pci_function;
mod power;
mod socket;
mod topology;
mod vm;
mod whole;

pub use cgroup::*;
pub use clocks::*;
pub use coalesce::{ADAPTIVE_RX, RX_USECS};
pub use counters::*;
pub use driver_counters::*;
pub use irq::*;
pub use kubelet::*;
pub use net_thread::*;
pub use nfqueue::*;
pub use nic::*;
pub use pci_function::*;
pub use power::*;
pub use socket::*;
pub use topology::*;
pub use vm::*;
pub use whole::*;
