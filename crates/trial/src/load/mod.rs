//! Load for a network path: TCP requests with responses, TCP streams and UDP datagrams, over
//! IPv4 and IPv6, between a [`Server`] and a [`Client`].
//!
//! ```text
//! Client                                   Server (the readers)
//!   one thread per connection ── TCP ──►     one thread per connection
//!   one thread per UDP flow   ── UDP ──►     one thread per address
//! ```
//! Besides connections that come and go, for servers whose workers share a port ([`Worker`],
//! [`Callers`]).
//!
//! In goes a [`LoadPlan`], out comes a [`LoadReport`] of each side, which add up ([`LoadReport::with`]). Both sides make their sockets in the
//! calling thread or in threads that it starts, so that a caller within another network namespace
//! puts them there. The load is open loop: each message has an intended send time, and those that
//! were missed are counted.

mod client;
mod connections;
mod pacer;
mod plan;
mod report;
mod server;

pub use client::Client;
pub use connections::{Callers, CallersReport, ConnectionLoad, Worker, WorkerReport};
pub use plan::{DatagramLoad, LoadPlan, RequestLoad, StreamLoad};
pub use report::{LoadCount, LoadKind, LoadReport};
pub use server::{Endpoint, Server};

use std::io;

/// Load that cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct LoadError {
    /// What was tried: `connecting to 10.0.0.1:4711`.
    what: String,
    /// What the kernel said.
    reason: io::Error,
}

impl LoadError {
    /// For `map_err`: names what was tried.
    fn of(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |reason| Self { what, reason }
    }
}

#[cfg(test)]
mod tests;
