//! The JSON of `steer status`: which REUSEPORT groups are steered, and by whom.

use crate::{CpuSet, SocketProtocol};
use serde::Serialize;

/// `steer status --json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    /// Version of this form.
    pub schema: u32,
    /// The REUSEPORT groups with several sockets, and those with a program.
    pub groups: Vec<GroupStatus>,
    /// Changes of the journal that are no longer in effect, or cannot be seen from here.
    pub gone: Vec<Gone>,
}

/// A group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GroupStatus {
    /// Address and port.
    pub local: String,
    /// TCP or UDP.
    pub protocol: SocketProtocol,
    /// Its sockets, in the group's order.
    pub sockets: Vec<SocketStatus>,
    /// Whose program selects among them; `None`: the kernel selects by a hash.
    pub program: Option<ProgramOwner>,
    /// Description of the program.
    pub detail: Option<String>,
    /// When it was attached, in seconds since 1970; only for nearpath's own programs.
    pub since_s: Option<u64>,
}

/// Owner of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgramOwner {
    /// nearpath, according to the journal.
    Nearpath,
    /// Another program.
    Other,
}

/// A socket of a group with its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SocketStatus {
    /// Its inode.
    pub inode: u64,
    /// The worker's process; `None` (like all below) if the worker is unknown.
    pub pid: Option<u32>,
    /// Its thread, if only one reads.
    pub tid: Option<u32>,
    /// Its name.
    pub comm: Option<String>,
    /// The CPUs that it may run on.
    pub cpus: Option<CpuSet>,
}

/// A change that is not in effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gone {
    /// Address and port.
    pub local: String,
    /// TCP or UDP.
    pub protocol: SocketProtocol,
    /// When it was made, in seconds since 1970.
    pub since_s: u64,
    /// Why it is not in effect.
    pub reason: String,
}
