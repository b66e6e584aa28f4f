//! The facts of one machine, the *host*: CPUs, cores, LLCs, NUMA nodes, NICs, queues, NAPI
//! instances, IRQs, steering settings, counters, sockets and processes.
//!
//! In goes a [`Root`]: the live machine, an unpacked tree, or a snapshot. Out comes a [`Host`]:
//! plain data. Nothing here writes to the machine. A fact that cannot be read is `None`, and
//! [`Host::unknown`] says why; it is never a made-up zero.

mod counters;
mod cpu_table;
mod cpuset;
mod daemons;
pub mod ethtool;
mod ids;
mod irqs;
mod kernel;
mod memory;
mod model;
mod netns;
mod nics;
pub mod parse;
mod processes;
mod read;
mod root;
mod sockets;
mod sysctls;
mod topology;

pub use counters::{DropCounters, QdiscDrops};
pub use cpuset::{CpuSet, MAX_CPUS, ParseCpuSetError};
pub use ids::{CpuId, IfIndex, IrqNumber, LlcId, NodeId, QueueId};
pub use model::*;
pub use netns::{NetnsRef, current_netns, in_netns};
pub use processes::{cgroup_of, pid_namespace, thread_cpus};
pub use read::{Notes, Wanted};
pub use root::*;
pub use sockets::{SocketWorker, WorkedSocket, read as receiving_sockets, socket_workers};
