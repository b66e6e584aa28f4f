//! The pure parsers: from the bytes of a file to plain values, without a root. Public for the fuzz targets, and
//! for callers that have the text from another source.

pub use crate::counters::{
    parse_cpu_time, parse_net_dev, parse_protocols, parse_snmp6, parse_softirqs, parse_softnet,
    parse_vmstat,
};
pub use crate::cpu_table::Malformed;
pub use crate::irqs::{Interrupts, parse_interrupts};
#[doc(hidden)]
pub use crate::nics::fuzzing;
pub use crate::pci::msix_vectors;
pub use crate::placement::{
    Mapping, MemoryMaps, MemoryStatus, ThreadStat, each_mapping, parse_memory_maps,
    parse_memory_status, parse_schedstat, parse_thread_stat,
};
pub use crate::processes::{Allowed, parse_cgroup, parse_status};
pub use crate::sockets::{ByteOrder, SocketTable, parse_sockets};
