//! The load: number of connections, rates, sizes. Plain data, validated before use.

use super::LoadError;
use serde::{Deserialize, Serialize};
use std::io;

/// The load per server address. A part with no connections is omitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadPlan {
    /// TCP requests with responses.
    pub requests: RequestLoad,
    /// TCP streams in one direction, from client to server.
    pub streams: StreamLoad,
    /// UDP datagrams in one direction, from client to server.
    pub datagrams: DatagramLoad,
}

/// TCP requests and responses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestLoad {
    /// Connections to each address.
    pub connections: u16,
    /// Requests per second on each connection.
    pub rate_hz: u32,
    /// Size of a request.
    pub request_bytes: u32,
    /// Size of a response.
    pub response_bytes: u32,
}

/// TCP streams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamLoad {
    /// Connections to each address.
    pub connections: u16,
    /// Writes per second on each connection.
    pub rate_hz: u32,
    /// Size of a write.
    pub write_bytes: u32,
}

/// UDP datagrams.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatagramLoad {
    /// Flows (source ports) to each address.
    pub flows: u16,
    /// Datagrams per second of each flow.
    pub rate_hz: u32,
    /// Payload sizes, taken in turn.
    pub sizes_bytes: Vec<u32>,
}

/// Upper bound, as each connection needs a thread.
const MAX_CONNECTIONS: u16 = 1024;
/// Maximum rate at which sleeping until each send time is accurate enough.
const MAX_RATE_HZ: u32 = 1_000_000;
/// Largest message over TCP.
const MAX_MESSAGE_BYTES: u32 = 16 << 20;
/// Largest UDP payload over IPv4 (RFC 768: 65,535 less both headers).
const MAX_DATAGRAM_BYTES: u32 = 65_507;

impl LoadPlan {
    /// A load that shows a path at work and leaves most of two CPUs free: per address 4 connections with 2,000
    /// requests/s, a stream of 100 Mbit/s, and 2 flows of 5,000 datagrams/s.
    pub fn moderate() -> Self {
        Self {
            requests: RequestLoad {
                connections: 4,
                rate_hz: 2_000,
                request_bytes: 128,
                response_bytes: 1024,
            },
            streams: StreamLoad { connections: 1, rate_hz: 400, write_bytes: 32 << 10 },
            datagrams: DatagramLoad {
                flows: 2,
                rate_hz: 5_000,
                sizes_bytes: vec![64, 512, 64, 1400],
            },
        }
    }

    /// A load for a single CPU that sends, receives and reads it: a quarter of the moderate one.
    pub fn light() -> Self {
        let mut light = Self::moderate();
        light.requests.rate_hz /= 4;
        light.streams.rate_hz /= 4;
        light.datagrams.rate_hz /= 4;
        light
    }

    /// Validates the plan.
    ///
    /// # Errors
    /// A rate or a size of 0, or beyond the limits of the load generator.
    pub(super) fn check(&self) -> Result<(), LoadError> {
        let wrong = |what: String| {
            Err(LoadError { what, reason: io::Error::from(io::ErrorKind::InvalidInput) })
        };
        let parts = [
            ("requests", self.requests.connections, self.requests.rate_hz),
            ("streams", self.streams.connections, self.streams.rate_hz),
            ("datagrams", self.datagrams.flows, self.datagrams.rate_hz),
        ];
        for (part, connections, rate_hz) in parts {
            if connections > MAX_CONNECTIONS {
                return wrong(format!("{connections} connections of {part}"));
            }
            if connections > 0 && !(1..=MAX_RATE_HZ).contains(&rate_hz) {
                return wrong(format!("{rate_hz} {part} per second"));
            }
        }
        let tcp = [self.requests.request_bytes, self.requests.response_bytes];
        for bytes in tcp.into_iter().chain([self.streams.write_bytes]) {
            if !(1..=MAX_MESSAGE_BYTES).contains(&bytes) {
                return wrong(format!("TCP messages of {bytes} bytes"));
            }
        }
        let sizes = &self.datagrams.sizes_bytes;
        if sizes.is_empty() && self.datagrams.flows > 0 {
            return wrong("datagrams need a size".to_owned());
        }
        match sizes.iter().find(|bytes| !(1..=MAX_DATAGRAM_BYTES).contains(*bytes)) {
            Some(bytes) => wrong(format!("datagrams of {bytes} bytes")),
            None => Ok(()),
        }
    }
}
