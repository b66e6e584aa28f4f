//! Sockets that receive, and the processes behind them.

use crate::{CpuSet, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A listening TCP socket or a bound UDP socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// `tcp` or `udp`.
    pub protocol: SocketProtocol,
    /// The local address.
    pub address: IpAddr,
    /// The local port.
    pub port: u16,
    /// Whether it receives from one peer only: a UDP socket that is connected.
    #[serde(default)]
    pub connected: bool,
    /// Inode of the socket, by which processes are found; 0 when it has none any more.
    pub inode: u64,
    /// Process ids of those that hold it open, ascending; empty when none is known.
    pub pids: Vec<u32>,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A process that holds a receiving socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOwner {
    /// Process id.
    pub pid: u32,
    /// `comm`.
    pub comm: String,
    /// The CPUs that its main thread may run on.
    pub affinity: Option<CpuSet>,
    /// The CPUs that each thread may run on, by thread id.
    pub threads: BTreeMap<u32, CpuSet>,
    /// How often the scheduler has moved its threads to another CPU, of as many threads as are in
    /// `threads` (`se.nr_migrations` of `/proc/PID/task/TID/sched`); `None` without
    /// CONFIG_SCHED_DEBUG.
    #[serde(default)]
    pub migrations: Option<u64>,
    /// The nodes that it may take memory from (`Mems_allowed_list`), as a list like a cpulist.
    pub mems_allowed: Option<String>,
    /// Its cgroup: the v2 path, else that of the cpuset or cpu controller.
    pub cgroup: Option<String>,
}

/// Memory of one process by node, from `numa_maps`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMemory {
    /// Process id.
    pub pid: u32,
    /// `comm`.
    pub comm: Option<String>,
    /// Bytes by node.
    pub bytes: BTreeMap<NodeId, u64>,
    /// Bytes in hugetlb pages by node, part of the above.
    pub huge_bytes: BTreeMap<NodeId, u64>,
    /// Bytes in mappings of files by node, part of `bytes`; the rest is anonymous.
    pub file_bytes: BTreeMap<NodeId, u64>,
    /// Devices that it has open or mapped and that may write into its memory by DMA: `/dev/vfio/12`. `None`
    /// when that is unknown.
    #[serde(default)]
    pub devices: Option<Vec<String>>,
}

/// A thread, or a process of which any thread may do, that reads from a socket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SocketWorker {
    /// Process id.
    pub pid: u32,
    /// Thread id; `None` when any of the process's threads may read.
    pub tid: Option<u32>,
    /// `comm` of the thread, or of the process.
    pub comm: String,
    /// The CPUs that it may run on; `None` when that is unknown.
    pub cpus: Option<CpuSet>,
}
