//! Experiments. In goes a plan of load, out comes what was sent and what arrived. The load is
//! real: sockets, threads, the kernel's own network path.

pub mod affinity;
pub mod comparison;
pub mod load;
