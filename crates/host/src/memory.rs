//! Memory of processes by node, for the host: from `/proc/PID/numa_maps` (`placement/maps.rs` parses it). The kernel
//! walks the process's page tables for it and holds the lock of its mappings meanwhile, so it is read only for requested
//! processes, for a limited time, and not if a process has too many pages.

use crate::placement::{MemoryMaps, parse_memory_maps};
use crate::{Notes, ReadError, Root, processes};
use nearpath_model::memory::NodeBytes;
use nearpath_model::{NodeId, ProcessMemory};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Files through which a process lets a device write to its memory: uio and vfio
/// (Documentation/driver-api/uio-howto.rst, vfio.rst), iommufd, RDMA, and physical memory.
const DEVICES: [&str; 6] =
    ["/dev/uio", "/dev/vfio/", "/dev/iommu", "/dev/infiniband/", "/dev/mem", "anon_inode:[vfio"];
/// Maximum number of devices listed per process.
pub(crate) const MAX_DEVICES: usize = 64;

/// Whether a file, named by its descriptor or mapping, is such a device, or a PCI register region of one.
pub(crate) fn is_device(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or_default();
    let registers =
        file.starts_with("/sys/") && file.contains("/pci") && name.starts_with("resource");
    DEVICES.iter().any(|prefix| file.starts_with(prefix)) || registers
}

/// Time limit for reading the mappings of one process.
const TIME: Duration = Duration::from_millis(50);
/// A process with more pages than this is not read: the kernel walks a mapping in one go, some 10 ns
/// per page, and the time limit has no effect within that. 16 GiB in pages of 4 KiB; hugetlb pages are
/// not included (fs/proc/task_mmu.c `task_statm`).
pub(crate) const MOST_PAGES: u64 = 4 << 20;

/// The text of `numa_maps`, unless the process is so large that reading it would stall it.
fn numa_maps(root: &Root, pid: u32) -> Result<Vec<u8>, ReadError> {
    let path = format!("/proc/{pid}/numa_maps");
    let statm = root.text(&format!("/proc/{pid}/statm"));
    let resident = statm.ok().and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    if let Some(pages) = resident.filter(|pages| *pages > MOST_PAGES) {
        let reason = format!("not read: the kernel would walk {pages} resident pages for it");
        return Err(ReadError::new(&path, &reason));
    }
    root.read_within(&path, TIME)
}

/// Why the memory of a process must not be moved, if a device may write to it.
///
/// # Errors
/// Its descriptors or its mappings cannot be read.
pub fn must_stay(root: &Root, pid: u32) -> Result<Option<String>, ReadError> {
    let path = format!("/proc/{pid}/numa_maps");
    let mapped = parse(&path, &root.read(&path)?)?;
    Ok(match with_open(root, pid, mapped.devices)?.first() {
        Some(device) => Some(format!("it has {device} open, and a device may write to its memory")),
        None if !mapped.hugetlb.is_empty() => Some(
            "some of it is in hugetlb pages, whose addresses DPDK and others pass to devices"
                .to_owned(),
        ),
        None => None,
    })
}

fn parse(path: &str, bytes: &[u8]) -> Result<MemoryMaps, ReadError> {
    parse_memory_maps(bytes).map_err(|malformed| ReadError::new(path, &malformed.to_string()))
}

/// The devices that a process has open or mapped and that may write to its memory; the mapped ones are given.
fn with_open(root: &Root, pid: u32, mapped: BTreeSet<String>) -> Result<Vec<String>, ReadError> {
    let mut all = mapped;
    let folder = format!("/proc/{pid}/fd");
    for entry in root.list(&folder)? {
        let path = format!("{folder}/{}", entry.name);
        match root.link(&path) {
            Ok(target) if is_device(&target) => drop(all.insert(target)),
            Ok(_) => {}
            // It was closed in the meantime.
            Err(error) if error.absent => {}
            Err(error) => return Err(error),
        }
    }
    Ok(all.into_iter().take(MAX_DEVICES).collect())
}

/// Reads the memory of these processes.
pub(crate) fn read(root: &Root, notes: &mut Notes, pids: &[u32]) -> Vec<ProcessMemory> {
    let mut pids = pids.to_vec();
    pids.sort_unstable();
    pids.dedup();
    pids.into_iter()
        .filter_map(|pid| {
            let subject = format!("process {pid}");
            let path = format!("/proc/{pid}/numa_maps");
            let maps = numa_maps(root, pid).and_then(|bytes| parse(&path, &bytes));
            let mapped = notes.take(&subject, "memory", maps)?;
            let comm = notes.take(&subject, "comm", processes::comm(root, pid));
            let by_node = |bytes: fn(&NodeBytes) -> u64| -> BTreeMap<NodeId, u64> {
                let all = mapped.nodes.iter().map(|(node, of)| (*node, bytes(of)));
                all.filter(|(_, bytes)| *bytes > 0).collect()
            };
            let (bytes, huge_bytes) = (by_node(NodeBytes::total), by_node(|of| of.hugetlb_bytes));
            let file_bytes = by_node(|of| of.total().saturating_sub(of.anon_bytes));
            let devices = notes.take(&subject, "devices", with_open(root, pid, mapped.devices));
            Some(ProcessMemory { pid, devices, comm, bytes, huge_bytes, file_bytes })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_pages_are_those_without_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("proc/70");
        std::fs::create_dir_all(folder.join("fd")).unwrap();
        let maps = "55d0c8a00000 default file=/x anon=2 dirty=2 mapped=6 N0=6 kernelpagesize_kB=4\n\
            7f2a40000000 bind:0 file=/dev/hugepages/map huge dirty=4 N0=3 N1=1 kernelpagesize_kB=2048\n\
            7ffd3a1b2000 default stack anon=12 dirty=12 N1=12 kernelpagesize_kB=4\n";
        std::fs::write(folder.join("numa_maps"), maps).unwrap();
        let root = Root::tree(dir.path()).unwrap();
        let memory = read(&root, &mut Notes::default(), &[70, 70]).remove(0);
        let bytes = |of: &[(u32, u64)]| -> BTreeMap<NodeId, u64> {
            of.iter().map(|&(node, bytes)| (NodeId(node), bytes)).collect()
        };
        let huge = 2 << 20;
        assert_eq!(memory.bytes, bytes(&[(0, 6 * 4096 + 3 * huge), (1, huge + 12 * 4096)]));
        assert_eq!(memory.huge_bytes, bytes(&[(0, 3 * huge), (1, huge)]));
        assert_eq!(memory.file_bytes, bytes(&[(0, 4 * 4096 + 3 * huge), (1, huge)]));
    }

    #[test]
    fn a_process_of_many_pages_is_not_walked() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("proc/70");
        std::fs::create_dir_all(folder.join("fd")).unwrap();
        std::fs::write(folder.join("comm"), "postgres\n").unwrap();
        let maps = "7f2 default anon=1 N1=1 kernelpagesize_kB=4\n";
        std::fs::write(folder.join("numa_maps"), maps).unwrap();
        let read = |statm: &str| {
            std::fs::write(folder.join("statm"), statm).unwrap();
            let mut notes = Notes::default();
            let memory = read(&Root::tree(dir.path()).unwrap(), &mut notes, &[70]);
            (memory.len(), notes.unknown().first().map(|note| note.reason.clone()))
        };
        assert_eq!(read("9000 1000 10 1 0 5 0\n"), (1, None));
        let (known, reason) = read("99999999 67108864 10 1 0 5 0\n");
        assert_eq!(known, 0);
        assert!(reason.unwrap().contains("would walk 67108864 resident pages"));
    }

    #[test]
    fn reading_stops_when_the_time_is_over() {
        let root = Root::live();
        let error = root.read_within("/proc/self/status", Duration::ZERO).unwrap_err();
        assert_eq!(error.reason, "takes too long to read");
        assert!(root.read_within("/proc/self/status", Duration::from_secs(60)).is_ok());
    }

    #[test]
    fn devices_are_found_among_mappings_and_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("proc/70/fd");
        std::fs::create_dir_all(&folder).unwrap();
        let registers = "/sys/devices/pci0000:00/0000:00:02.0/resource0";
        let maps = format!("7f0 default file={registers}\n7f1 default file=/usr/lib/resource0\n");
        std::fs::write(dir.path().join("proc/70/numa_maps"), maps).unwrap();
        let root = Root::tree(dir.path()).unwrap();
        let devices = |root: &Root| {
            let maps = parse("", &root.read("/proc/70/numa_maps").unwrap()).unwrap();
            with_open(root, 70, maps.devices)
        };
        assert_eq!(devices(&root).unwrap(), [registers]);
        for (fd, target) in
            ["/dev/null", "/dev/vfio/12", "socket:[5]", "/dev/uio0"].iter().enumerate()
        {
            std::os::unix::fs::symlink(target, folder.join(fd.to_string())).unwrap();
        }
        assert_eq!(devices(&root).unwrap(), ["/dev/uio0", "/dev/vfio/12", registers]);
        for other in [
            "/dev/urandom",
            "/devices/uio",
            "/sys/class/net/x",
            "/x/dev/uio0",
            "anon_inode:[eventfd]",
        ] {
            assert!(!is_device(other), "{other}");
        }
        for device in
            ["/dev/infiniband/uverbs0", "anon_inode:[vfio-device]", "/dev/vfio/vfio", "/dev/iommu"]
        {
            assert!(is_device(device), "{device}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(devices(&root).is_err() && must_stay(&root, 70).is_err(), "unknown is not empty");
        std::fs::create_dir_all(&folder).unwrap();
        let huge = "7f2 default file=/x huge N0=1 kernelpagesize_kB=2048\n";
        for (maps, reason) in [
            ("7f1 default file=/dev/uio0\n", Some("it has /dev/uio0 open")),
            (huge, Some("hugetlb pages")),
            ("7f2 default stack N0=1 kernelpagesize_kB=4\n", None),
        ] {
            std::fs::write(dir.path().join("proc/70/numa_maps"), maps).unwrap();
            let said = must_stay(&root, 70).unwrap();
            assert!(said.is_some() == reason.is_some(), "{said:?}");
            assert!(reason.is_none_or(|reason| said.unwrap().contains(reason)));
        }
        // This process has none.
        if Root::live().read("/proc/self/numa_maps").is_ok() {
            assert_eq!(must_stay(&Root::live(), std::process::id()).unwrap(), None);
        }
    }
}
