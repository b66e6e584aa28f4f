//! Experiments: load on a path, and whether a change makes a difference to it.
//!
//! Input: a plan of the load. Output: what was sent and what arrived. The load is real: sockets, threads, the
//! kernel's network path. A trial takes a host that can be switched between two states ([`experiment`]) and a
//! metric of it ([`live`]), and returns a verdict ([`comparison`]). Latency of a path is measured by probes
//! ([`latency`]), optionally with the load of other programs ([`background`]); packets per second, and the cost
//! of each, by [`packets`].

pub mod affinity;
pub mod background;
mod clock;
pub mod comparison;
mod connections;
pub mod dpdk;
pub mod experiment;
pub mod latency;
pub mod live;
pub mod load;
mod pacer;
pub mod packets;
pub mod paths;
pub mod process;
pub mod requests;
pub mod scenarios;
pub mod sequential;
pub mod settling;
