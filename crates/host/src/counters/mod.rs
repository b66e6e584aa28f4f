//! Kernel counters: per CPU those of `/proc/softirqs`, `/proc/net/softnet_stat` and `/proc/stat`, per interface
//! those of `/proc/net/dev`, host-wide some protocol and memory counters.
//!
//! Input: a root. Output: plain values. Each file has its own parser from bytes to values.

mod conntrack;
mod cpu_time;
mod drops;
mod named;
mod neighbours;
mod net_dev;
mod nstat;
mod per_cpu_table;
mod reading;
mod socket_memory;
mod softirqs;
mod softnet;

pub use cpu_time::parse_cpu_time;
pub use drops::{DropCounters, QdiscDrops};
pub use named::{parse_protocols, parse_snmp6, parse_vmstat};
pub use net_dev::parse_net_dev;
pub use net_dev::read_device_counts;
pub use nstat::read_nstat;
pub use reading::read_counters;
pub(crate) use socket_memory::socket_pages;
pub use softirqs::parse_softirqs;
pub use softnet::parse_softnet;

use crate::cpu_table::Malformed;
use crate::{Notes, ReadError, Root};
use nearpath_model::{CpuSet, CpuTime, SoftirqCounts, SoftnetCpu};
use std::collections::BTreeMap;

/// Reads `/proc/softirqs`.
pub(crate) fn softirqs(root: &Root, notes: &mut Notes) -> Vec<SoftirqCounts> {
    read(root, notes, "softirqs", "/proc/softirqs", parse_softirqs)
}

/// Reads `/proc/net/softnet_stat`; `online` has the CPUs of the lines on kernels that do not print them.
pub(crate) fn softnet(root: &Root, notes: &mut Notes, online: &CpuSet) -> Vec<SoftnetCpu> {
    read(root, notes, "softnet", "/proc/net/softnet_stat", |bytes| parse_softnet(bytes, online))
}

/// The current counters of all CPUs.
///
/// # Errors
/// The file cannot be read, or is malformed.
pub fn read_softnet(root: &Root) -> Result<Vec<SoftnetCpu>, ReadError> {
    const PATH: &str = "/proc/net/softnet_stat";
    let online = root.text("/sys/devices/system/cpu/online")?;
    let online = CpuSet::from_list(&online)
        .map_err(|e| ReadError::new("/sys/devices/system/cpu/online", &e.to_string()))?;
    parse_softnet(&root.read(PATH)?, &online).map_err(|e| ReadError::new(PATH, &e.to_string()))
}

/// Packets dropped because the backlog of their CPU was full, on all CPUs.
fn softnet_drops(root: &Root) -> Result<u64, ReadError> {
    let cpus = crate::read_softnet(root)?;
    Ok(cpus.iter().fold(0, |sum: u64, cpu| sum.saturating_add(cpu.dropped)))
}

/// The current times of all CPUs; empty if not available.
pub fn read_cpu_time(root: &Root) -> Vec<CpuTime> {
    cpu_time(root, &mut Notes::default())
}

/// Reads the CPU lines of `/proc/stat`.
pub(crate) fn cpu_time(root: &Root, notes: &mut Notes) -> Vec<CpuTime> {
    read(root, notes, "cpu_time", "/proc/stat", parse_cpu_time)
}

/// Reads host-wide counters by name.
pub(crate) fn named(root: &Root, notes: &mut Notes) -> BTreeMap<String, u64> {
    type Parse = fn(&[u8]) -> BTreeMap<String, u64>;
    const FILES: [(&str, Parse); 4] = [
        ("/proc/net/snmp", parse_protocols),
        ("/proc/net/snmp6", parse_snmp6),
        ("/proc/net/netstat", parse_protocols),
        ("/proc/vmstat", parse_vmstat),
    ];
    let mut all = conntrack::read(root);
    all.extend(neighbours::read(root));
    all.extend(socket_memory::read(root));
    for (path, parse) in FILES {
        match root.read(path) {
            Ok(bytes) => all.extend(parse(&bytes)),
            // A kernel without IPv6.
            Err(error) if error.absent && path.ends_with('6') => {}
            Err(error) => notes.add("host", "counters", &error.to_string()),
        }
    }
    all
}

fn read<T>(
    root: &Root,
    notes: &mut Notes,
    fact: &str,
    path: &str,
    parse: impl FnOnce(&[u8]) -> Result<Vec<T>, Malformed>,
) -> Vec<T> {
    let values = root
        .read(path)
        .and_then(|bytes| parse(&bytes).map_err(|e| ReadError::new(path, &e.to_string())));
    notes.take("host", fact, values).unwrap_or_default()
}
