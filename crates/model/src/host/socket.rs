//! Receiving sockets and the processes that own them.

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
    /// Whether it receives from one peer only (a connected UDP socket).
    #[serde(default)]
    pub connected: bool,
    /// Inode of the socket, used to find its processes; 0 if it no longer has one.
    pub inode: u64,
    /// Ids of the processes that have it open, ascending; empty if none is known.
    pub pids: Vec<u32>,
    /// Datagrams that it dropped, nearly all because its receive buffer was full; `None` of TCP, or if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drops: Option<u64>,
    /// Bytes of memory that its unread datagrams take; `None` of TCP, or if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_queue_bytes: Option<u64>,
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

/// A process that owns a receiving socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketOwner {
    /// Process id.
    pub pid: u32,
    /// `comm`.
    pub comm: String,
    /// The CPUs that its main thread may run on.
    pub affinity: Option<CpuSet>,
    /// The CPUs that each thread may run on, by thread id.
    pub threads: BTreeMap<u32, CpuSet>,
    /// How often the scheduler has migrated its threads to another CPU, summed over as many threads as are in
    /// `threads` (`se.nr_migrations` of `/proc/PID/task/TID/sched`); `None` without CONFIG_SCHED_DEBUG.
    #[serde(default)]
    pub migrations: Option<u64>,
    /// CPU time used by its threads, in ticks of 10ms (`USER_HZ`).
    #[serde(default)]
    pub cpu_ticks: Option<u64>,
    /// The CPUs of its cpuset (`cpuset.cpus.effective`), which limit every affinity; `None` if no cpuset
    /// is known.
    #[serde(default)]
    pub cpuset: Option<CpuSet>,
    /// The nodes that it may allocate memory on (`Mems_allowed_list`), in cpulist format.
    pub mems_allowed: Option<String>,
    /// Its cgroup: the v2 path, or that of the cpuset or cpu controller.
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
    /// Bytes in hugetlb pages by node, included in the above.
    pub huge_bytes: BTreeMap<NodeId, u64>,
    /// Bytes of files, shared memory and hugetlb pages by node, part of `bytes`; the rest is anonymous.
    pub file_bytes: BTreeMap<NodeId, u64>,
    /// Devices that it has open or mapped and that may write to its memory by DMA: `/dev/vfio/12`. `None` if
    /// unknown.
    #[serde(default)]
    pub devices: Option<Vec<String>>,
}

/// A thread that reads from a socket, or a process if any of its threads may.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SocketWorker {
    /// Process id.
    pub pid: u32,
    /// Thread id; `None` if any of the process's threads may read.
    pub tid: Option<u32>,
    /// `comm` of the thread, or of the process.
    pub comm: String,
    /// The CPUs that it may run on; `None` if unknown.
    pub cpus: Option<CpuSet>,
}
