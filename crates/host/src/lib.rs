//! The facts of one machine, the *host*: CPUs, cores, LLCs, NUMA nodes, NICs, queues, NAPI
//! instances, IRQs, steering settings, counters, sockets and processes.
//!
//! Input: a [`Root`]: the live machine, an unpacked tree, or a snapshot. Output: a [`Host`], which is plain
//! data. Nothing here writes to the machine. A fact that cannot be read is `None`, with the reason in
//! [`Host::unknown`]; it is never reported as zero.

mod cgroups;
mod clocks;
mod counters;
mod cpu_table;
mod daemons;
mod dma;
pub mod ethtool;
mod irqs;
mod kernel;
mod kubelet;
mod memory;
mod net_threads;
mod netns;
mod nfqueues;
mod nics;
pub mod parse;
mod pci;
mod placement;
mod power;
mod processes;
mod read;
mod root;
mod sockets;
mod sysctls;
pub mod timestamping;
mod topology;
mod traffic;
pub mod vms;
pub mod workers;

pub use counters::{
    DropCounters, QdiscDrops, read_counters, read_cpu_time, read_device_counts, read_nstat,
    read_softnet,
};
pub use dma::{memory_is_for_devices, memory_must_stay};
pub use net_threads::{RunDelay, run_delay, run_delays, softirq_threads, vhost_threads};
pub use netns::{
    NetnsRef, current_netns, entered_netns, find_in_netns, in_initial_netns, in_netns, netns_names,
};
pub use nics::named::{
    has_interface, interface_device, interface_index, interface_qdiscs, interface_vlan_egress,
};
pub use nics::napi::{NapiInstances, napi_parameter};
pub use nics::{
    find_irq, irq_pattern, irqs_beside_queues, locate_irq, read_nics, serve_same_queue,
};
pub use pci::{is_pci_address, network_function, read_devices};
pub use placement::{MemoryReader, MemorySelection, NoProcess, RanOn, unit_of_cgroup};
pub use power::cpu_frequency;
pub use processes::{cgroup_of, is_bound, is_own, pid_namespace, thread_cpus};
pub use read::{Notes, Wanted, read, read_interfaces};
pub use root::*;
pub use sockets::{
    ConnectionOwner, SocketMemory, TcpDiag, TcpFilter, TcpInfo, TcpSocket, WorkedSocket,
    connection_owners, parse_tcp_socket, read as receiving_sockets, socket_workers,
};
pub use traffic::TrafficReader;
