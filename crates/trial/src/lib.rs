//! Experiments: the load that is put on a path, and whether a change makes a difference to it.
//!
//! In goes a plan of load, out comes what was sent and what arrived. The load is real: sockets,
//! threads, the kernel's own network path. In goes a host that can be switched between two states
//! ([`experiment`]) with a metric of it ([`live`]), out comes a verdict ([`comparison`]). Latency of a path
//! is measured by probes ([`latency`]), also beside the load of other programs ([`background`]);
//! packets per second, and what each costs, by [`packets`].

pub mod affinity;
pub mod background;
mod clock;
pub mod comparison;
mod connections;
pub mod experiment;
pub mod latency;
pub mod live;
pub mod load;
pub mod packets;
pub mod process;
pub mod requests;
pub mod scenarios;
