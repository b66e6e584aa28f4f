//! Load of short connections, as on a web server: workers that share a port by SO_REUSEPORT, each with its own
//! socket, and clients that connect, send requests and are disconnected.
//!
//! ```text
//! Callers (threads)                        Worker (one of several, each one thread)
//!   connect ──────────── TCP ──────────►     accept
//!   N requests, each answered                answers, and closes after the last
//! ```
//! Input: a [`ConnectionLoad`]. Output: the counts of each side. The server closes first, so that clients do
//! not run out of ports. Open loop, like all load here: each connection has an intended time, and missed ones
//! are counted.

mod callers;
mod worker;

pub use callers::{Callers, CallersReport};
pub use worker::{Worker, WorkerReport};

use super::LoadError;
use serde::{Deserialize, Serialize};
use std::io;

/// The load, of all callers together unless noted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionLoad {
    /// Connecting threads.
    pub callers: u16,
    /// Connections per second of each of them.
    pub rate_hz: u32,
    /// Requests on each connection.
    pub requests: u32,
    /// Size of a request.
    pub request_bytes: u32,
    /// Size of a response.
    pub response_bytes: u32,
}

/// Maximum callers, requests per connection, and bytes of a message.
const MAX_CALLERS: u16 = 1024;
const MAX_REQUESTS: u32 = 1 << 20;
const MAX_MESSAGE_BYTES: u32 = 1 << 20;
const MAX_RATE_HZ: u32 = 100_000;

impl ConnectionLoad {
    /// A load that leaves most of this many CPUs free: two callers per CPU with 100 connections/s and 8
    /// requests each. Request and response are one packet each.
    pub fn moderate(cpus: usize) -> Self {
        let callers = u16::try_from(cpus.saturating_mul(2)).unwrap_or(MAX_CALLERS);
        Self {
            callers: callers.clamp(1, MAX_CALLERS),
            rate_hz: 100,
            requests: 8,
            request_bytes: 256,
            response_bytes: 1024,
        }
    }

    /// Validates the load.
    fn check(&self) -> Result<(), LoadError> {
        let parts = [
            ("callers", u32::from(self.callers), u32::from(MAX_CALLERS)),
            ("connections per second", self.rate_hz, MAX_RATE_HZ),
            ("requests on a connection", self.requests, MAX_REQUESTS),
            ("bytes of a request", self.request_bytes, MAX_MESSAGE_BYTES),
            ("bytes of a response", self.response_bytes, MAX_MESSAGE_BYTES),
        ];
        match parts.iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
            Some((what, value, _)) => Err(LoadError {
                what: format!("{value} {what}"),
                reason: io::Error::from(io::ErrorKind::InvalidInput),
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
