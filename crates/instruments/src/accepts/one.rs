//! One accept, or one datagram that is read, as it is told when each is asked for.

use super::load::{Key, NO_CPU};
use crate::Protocol;
use std::fmt;

/// One accept, or one datagram. Shown in the form of document 004:
/// `cpu=#12 pid=29333 accept(3) -> fd=30 rxcpu=#12`; of io_uring, which has no descriptor of the
/// listener, `accept(io_uring)`. What is not known is `-`. Of a datagram:
/// `cpu=#12 pid=29333 recv(10.0.0.1:53) -> length=40 rxcpu=#12`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct One {
    pub(super) key: Key,
    pub(super) protocol: Protocol,
    /// The listener's descriptor; `None` for an accept of io_uring, and for a datagram.
    pub listener_fd: Option<i32>,
    /// The descriptor of the connection, `None` where it is in io_uring's own table; or the length of the
    /// datagram.
    pub fd: Option<i32>,
    /// The thread's name.
    pub comm: String,
}

impl One {
    /// The CPU on which it was received, if that is known, and the one on which it was accepted.
    pub fn cpus(&self) -> (Option<u32>, u32) {
        let received_on = self.key.received_on;
        ((received_on != NO_CPU).then_some(received_on), self.key.accepted_on)
    }
}

impl fmt::Display for One {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (received_on, accepted_on) = self.cpus();
        let of = |number: Option<i32>, other: &str| {
            number.map_or_else(|| other.to_owned(), |number| number.to_string())
        };
        let (listener, fd) = (of(self.listener_fd, "io_uring"), of(self.fd, "-"));
        let rxcpu = received_on.map_or_else(|| "-".to_owned(), |cpu| format!("#{cpu}"));
        let pid = self.key.pid;
        if self.protocol == Protocol::Udp {
            let local = self.key.local;
            return write!(
                f,
                "cpu=#{accepted_on} pid={pid} recv({local}) -> length={fd} rxcpu={rxcpu}"
            );
        }
        write!(f, "cpu=#{accepted_on} pid={pid} accept({listener}) -> fd={fd} rxcpu={rxcpu}")
    }
}
