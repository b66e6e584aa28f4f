//! The memory of a process according to `/proc/PID/status` (fs/proc/task_mmu.c, `task_mem`).

use crate::cpu_table::number;
use nearpath_model::{CpuSet, NodeId};

/// What `/proc/PID/status` says; `None` where the kernel does not report it. A kernel thread has no memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryStatus {
    /// Resident (`VmRSS`), without hugetlb pages.
    pub resident_bytes: Option<u64>,
    /// `HugetlbPages`.
    pub hugetlb_bytes: Option<u64>,
    /// `VmPTE`.
    pub page_table_bytes: Option<u64>,
    /// `VmPin`.
    pub pinned_bytes: Option<u64>,
    /// `VmLck`.
    pub locked_bytes: Option<u64>,
    /// `VmSwap`.
    pub swap_bytes: Option<u64>,
    /// `Cpus_allowed_list`.
    pub cpus: Option<CpuSet>,
    /// `Mems_allowed_list`.
    pub mems: Vec<NodeId>,
}

/// Parses `/proc/PID/status`. Lines that are malformed are left out.
pub fn parse_memory_status(bytes: &[u8]) -> MemoryStatus {
    let mut status = MemoryStatus::default();
    for line in bytes.split(|&b| b == b'\n') {
        let Some(at) = line.iter().position(|&b| b == b':') else { continue };
        let (name, value) = line.split_at(at);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        let kib = || number(value.strip_suffix(b" kB")?)?.checked_mul(1024);
        let list = || CpuSet::from_list(&String::from_utf8_lossy(value)).ok();
        match name {
            b"VmRSS" => status.resident_bytes = kib(),
            b"HugetlbPages" => status.hugetlb_bytes = kib(),
            b"VmPTE" => status.page_table_bytes = kib(),
            b"VmPin" => status.pinned_bytes = kib(),
            b"VmLck" => status.locked_bytes = kib(),
            b"VmSwap" => status.swap_bytes = kib(),
            b"Cpus_allowed_list" => status.cpus = list(),
            // Nodes are numbered like CPUs.
            b"Mems_allowed_list" => {
                status.mems = list()
                    .map(|nodes| nodes.iter().map(|n| NodeId(n.0)).collect())
                    .unwrap_or_default();
            }
            _ => {}
        }
    }
    status
}

impl MemoryStatus {
    /// Resident, with hugetlb pages.
    pub(super) fn all_bytes(&self) -> u64 {
        self.resident_bytes.unwrap_or(0).saturating_add(self.hugetlb_bytes.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_in_bytes() {
        let text =
            b"Name:\tVmRSS: 7 kB\nVmLck:\t       0 kB\nVmPin:\t       8 kB\nVmRSS:\t    5184 kB\n\
            VmPTE:\t      60 kB\nVmSwap:\t       0 kB\nHugetlbPages:\t    2048 kB\n\
            Cpus_allowed_list:\t0-1\nMems_allowed_list:\t0,2\n";
        let status = parse_memory_status(text);
        assert_eq!(status.all_bytes(), (5184 + 2048) << 10);
        assert_eq!((status.pinned_bytes, status.page_table_bytes), (Some(8192), Some(61_440)));
        assert_eq!(status.mems, [NodeId(0), NodeId(2)]);
        assert_eq!(parse_memory_status(b"Name:\tkthreadd\n"), MemoryStatus::default());
        assert_eq!(
            parse_memory_status(b"VmRSS: 99999999999999999999 kB\n"),
            MemoryStatus::default()
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse_memory_status(&bytes);
            parse_memory_status(&[b"Mems_allowed_list:", &bytes[..]].concat());
        }
    }
}
