//! Experiments: the load that is put on a path, and whether a change makes a difference to it.
//!
//! In goes a plan of load, out comes what was sent and what arrived. The load is real: sockets,
//! threads, the kernel's own network path. In goes a host that can be switched between two states
//! ([`experiment`]) with a metric of it ([`live`]), out comes a verdict ([`comparison`]). Latency of a path
//! is measured by probes ([`latency`]).

pub mod affinity;
mod clock;
pub mod comparison;
pub mod experiment;
pub mod latency;
pub mod live;
pub mod load;
mod report;

pub use report::{Moved, TRIAL_SCHEMA, TrialReport};
