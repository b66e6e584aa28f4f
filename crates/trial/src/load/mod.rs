//! Load for a network path: TCP requests with responses, TCP streams and UDP datagrams, over
//! IPv4 and IPv6, between a [`Server`] and a [`Client`].
//!
//! ```text
//! Client                                   Server (the readers)
//!   one thread per connection ── TCP ──►     one thread per connection
//!   one thread per UDP flow   ── UDP ──►     one thread per address
//! ```
//! In addition, short connections for servers whose workers share a port ([`Worker`], [`Callers`]).
//!
//! Input: a [`LoadPlan`]. Output: a [`LoadReport`] of each side, which are added up by [`LoadReport::with`].
//! Both sides create their sockets in the calling thread or its child threads, so they belong to the caller's
//! network namespace. The load is open loop: each message has an intended send time, and missed ones are
//! counted.

mod client;
mod connections;
mod plan;
mod report;
mod server;

pub use client::Client;
pub use connections::{Callers, CallersReport, ConnectionLoad, Worker, WorkerReport};
pub use plan::{DatagramLoad, LoadPlan, RequestLoad, StreamLoad};
pub use report::{LoadCount, LoadKind, LoadReport};
pub use server::{Endpoint, Server};

use std::io;

/// A load that cannot be generated.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct LoadError {
    /// The operation: `connecting to 10.0.0.1:4711`.
    what: String,
    /// The error.
    reason: io::Error,
}

impl LoadError {
    /// For `map_err`: adds the operation.
    fn of(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |reason| Self { what, reason }
    }
}

#[cfg(test)]
mod tests;
