//! The facts of one machine, the *host*: CPUs, cores, LLCs, NUMA nodes, NICs, queues, NAPI
//! instances, IRQs, steering settings, counters, sockets and processes.
//!
//! In goes a [`Root`]: the live machine, an unpacked tree, or a snapshot. Out comes a [`Host`]:
//! plain data. Nothing here writes to the machine. A fact that cannot be read is `None`, and
//! [`Host::unknown`] says why; it is never a made-up zero.

mod counters;
mod cpu_table;
mod daemons;
pub mod ethtool;
mod irqs;
mod kernel;
mod memory;
mod netns;
mod nics;
pub mod parse;
mod processes;
mod read;
mod root;
mod sockets;
mod sysctls;
pub mod timestamping;
mod topology;

pub use counters::{
    DropCounters, QdiscDrops, read_counters, read_cpu_time, read_device_counts, read_softnet,
};
pub use memory::must_stay as memory_must_stay;
pub use netns::{NetnsRef, current_netns, in_netns};
pub use nics::{find_irq, irq_pattern, irqs_beside_queues, locate_irq, read_nics};
pub use processes::{cgroup_of, pid_namespace, thread_cpus};
pub use read::{Notes, Wanted, read};
pub use root::*;
pub use sockets::{WorkedSocket, read as receiving_sockets, socket_workers};
