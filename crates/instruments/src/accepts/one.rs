//! One accept, as it is told when each is asked for.

use super::load::Key;
use std::fmt;

/// One accept. Shown in the form of document 004:
/// `cpu=#12 pid=29333 accept(3) -> fd=30 rxcpu=#12`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct One {
    pub(super) key: Key,
    /// The listener's descriptor.
    pub listener_fd: i32,
    /// The descriptor of the connection.
    pub fd: i32,
    /// The thread's name.
    pub comm: String,
}

impl One {
    /// The CPU on which it was received, and the one on which it was accepted.
    pub fn cpus(&self) -> (u32, u32) {
        (self.key.received_on, self.key.accepted_on)
    }
}

impl fmt::Display for One {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Key { pid, received_on, accepted_on, .. } = self.key;
        let (listener, fd) = (self.listener_fd, self.fd);
        write!(f, "cpu=#{accepted_on} pid={pid} accept({listener}) -> fd={fd} rxcpu=#{received_on}")
    }
}
