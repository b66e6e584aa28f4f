//! Devices that a process uses by itself (vfio, uio, RDMA), their nodes, and whether a device may read or write its
//! memory: then its pages must not be moved.
//!
//! Input: its mappings and its descriptors. Output: the devices, and `dma_mapped` with its reason; unknown if
//! something cannot be read, or may be DMA-mapped in a way that the kernel does not report.

use super::maps::MemoryMaps;
use super::status::MemoryStatus;
use crate::memory::is_device;
use crate::{ReadError, Root};
use nearpath_model::NodeId;
use nearpath_model::memory::{ProcessPlacement, UsedDevice};
use std::collections::BTreeSet;

/// Maximum number of descriptors read per process: each costs the kernel some microseconds.
const MAX_DESCRIPTORS: usize = 20_000;
/// Maximum number of devices listed per process.
const MAX_USED: usize = 64;

/// What the descriptors of a process say.
#[derive(Default)]
struct Descriptors {
    devices: BTreeSet<String>,
    /// An io_uring with registered buffers.
    has_fixed_buffers: bool,
    /// Why not all are known.
    unknown: Option<String>,
}

/// Sets the devices of a process and whether its memory is DMA-mapped.
pub(super) fn read(
    root: &Root,
    process: &mut ProcessPlacement,
    maps: &MemoryMaps,
    status: &MemoryStatus,
) {
    let descriptors = match descriptors(root, process.pid) {
        Ok(descriptors) => descriptors,
        Err(error) => Descriptors { unknown: Some(error.to_string()), ..Descriptors::default() },
    };
    let devices: BTreeSet<&String> = maps.devices.iter().chain(&descriptors.devices).collect();
    let mut used = BTreeSet::new();
    for device in devices.iter().take(MAX_USED) {
        used.extend(used_devices(root, device).into_iter().map(|d| (d.device, d.name, d.node)));
    }
    process.devices = used
        .into_iter()
        .take(MAX_USED)
        .map(|(device, name, node)| UsedDevice { device, name, node })
        .collect();
    let (mapped, reason) = dma_mapped(&devices, &descriptors, maps, status);
    (process.dma_mapped, process.dma_reason) = (mapped, reason);
}

fn dma_mapped(
    devices: &BTreeSet<&String>,
    descriptors: &Descriptors,
    maps: &MemoryMaps,
    status: &MemoryStatus,
) -> (Option<bool>, Option<String>) {
    if let Some(device) = devices.first() {
        return (Some(true), Some(format!("it has {device} open or mapped")));
    }
    if descriptors.has_fixed_buffers {
        return (Some(true), Some("io_uring has registered buffers".to_owned()));
    }
    match status.pinned_bytes {
        Some(0) => {}
        Some(bytes) => {
            return (Some(true), Some(format!("{} KiB are pinned (VmPin)", bytes >> 10)));
        }
        None => return (None, Some("VmPin is unknown".to_owned())),
    }
    if let Some(reason) = &descriptors.unknown {
        return (None, Some(reason.clone()));
    }
    if let Some(socket) = &maps.socket {
        let reason = format!("it maps {socket}: AF_XDP pins the memory of its packets, unreported");
        return (None, Some(reason));
    }
    if !maps.hugetlb.is_empty() {
        let reason =
            "some of it is in hugetlb pages, whose addresses DPDK and others pass to devices";
        return (None, Some(reason.to_owned()));
    }
    (Some(false), None)
}

fn descriptors(root: &Root, pid: u32) -> Result<Descriptors, ReadError> {
    let mut found = Descriptors::default();
    let folder = format!("/proc/{pid}/fd");
    let entries = root.list(&folder)?;
    if entries.len() > MAX_DESCRIPTORS {
        let reason =
            format!("only {MAX_DESCRIPTORS} of its {} descriptors were read", entries.len());
        found.unknown = Some(reason);
    }
    for entry in entries.iter().take(MAX_DESCRIPTORS) {
        match root.link(&format!("{folder}/{}", entry.name)) {
            Ok(target) if is_device(&target) => drop(found.devices.insert(target)),
            Ok(target) if target == "anon_inode:[io_uring]" => {
                match root.text(&format!("/proc/{pid}/fdinfo/{}", entry.name)) {
                    Ok(text) => found.has_fixed_buffers |= fixed_buffers(&text),
                    Err(error) if error.absent => {}
                    Err(error) => found.unknown = Some(error.to_string()),
                }
            }
            Ok(_) => {}
            // It was closed in the meantime.
            Err(error) if error.absent => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Whether the ring has registered buffers (io_uring/fdinfo.c, `UserBufs`).
fn fixed_buffers(fdinfo: &str) -> bool {
    let count = fdinfo.lines().find_map(|line| line.strip_prefix("UserBufs:"));
    count.is_some_and(|count| count.trim().parse::<u64>().is_ok_and(|count| count > 0))
}

/// The devices behind a file of /dev, or the register region of a PCI device; without a name if unknown.
pub(crate) fn used_devices(root: &Root, device: &str) -> Vec<UsedDevice> {
    let of = |folder: &str| {
        let path = root.resolve(folder).ok()?;
        let name = path.rsplit('/').next()?.to_owned();
        let node = node_of_device(root, &path);
        Some(UsedDevice { device: device.to_owned(), name: Some(name), node })
    };
    let one = |folder: String| of(&folder).into_iter().collect::<Vec<_>>();
    let number = |prefix: &str| {
        let rest = device.strip_prefix(prefix)?;
        rest.bytes().all(|b| b.is_ascii_digit()).then_some(rest).filter(|rest| !rest.is_empty())
    };
    let found = if let Some(group) = number("/dev/vfio/") {
        let folder = format!("/sys/kernel/iommu_groups/{group}/devices");
        let entries = root.list(&folder).unwrap_or_default();
        let devices = entries.iter().take(MAX_USED);
        devices.filter_map(|entry| of(&format!("{folder}/{}", entry.name))).collect()
    } else if let Some(number) = number("/dev/vfio/devices/vfio") {
        one(format!("/sys/class/vfio-dev/vfio{number}/device"))
    } else if let Some(number) = number("/dev/uio") {
        one(format!("/sys/class/uio/uio{number}/device"))
    } else if let Some(number) = number("/dev/infiniband/uverbs") {
        one(format!("/sys/class/infiniband_verbs/uverbs{number}/device"))
    } else if let (true, Some((folder, _))) = (device.starts_with("/sys/"), device.rsplit_once('/'))
    {
        one(folder.to_owned())
    } else {
        Vec::new()
    };
    if found.is_empty() {
        return vec![UsedDevice { device: device.to_owned(), name: None, node: None }];
    }
    found
}

/// The node of a device, or of the nearest one above that has one (virtio).
fn node_of_device(root: &Root, path: &str) -> Option<NodeId> {
    let parent = path.rsplit_once('/').map(|(parent, _)| parent)?;
    // -1 means that the firmware reports none.
    let node = |at: &&str| root.text(&format!("{at}/numa_node")).ok()?.parse().ok().map(NodeId);
    [path, parent].iter().find_map(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn read_process(tree: &Path, maps: &str, pinned: Option<u64>) -> ProcessPlacement {
        let maps = super::super::maps::parse_memory_maps(maps.as_bytes()).unwrap();
        let status = MemoryStatus { pinned_bytes: pinned, ..MemoryStatus::default() };
        let mut process = ProcessPlacement { pid: 70, ..ProcessPlacement::default() };
        read(&Root::tree(tree).unwrap(), &mut process, &maps, &status);
        process
    }

    #[test]
    fn a_vfio_device_has_a_name_and_a_node() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path();
        let device = tree.join("sys/devices/pci0000:80/0000:80:00.0/0000:81:00.0");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("numa_node"), "1\n").unwrap();
        let group = tree.join("sys/kernel/iommu_groups/12/devices");
        fs::create_dir_all(&group).unwrap();
        symlink(
            "../../../../devices/pci0000:80/0000:80:00.0/0000:81:00.0",
            group.join("0000:81:00.0"),
        )
        .unwrap();
        let fd = tree.join("proc/70/fd");
        fs::create_dir_all(&fd).unwrap();
        symlink("/dev/vfio/12", fd.join("9")).unwrap();
        let process = read_process(tree, "", Some(0));
        let used = UsedDevice {
            device: "/dev/vfio/12".to_owned(),
            name: Some("0000:81:00.0".to_owned()),
            node: Some(NodeId(1)),
        };
        assert_eq!(process.devices, [used]);
        assert_eq!(process.dma_mapped, Some(true));
    }

    #[test]
    fn dma_is_false_only_if_nothing_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let fd = dir.path().join("proc/70/fd");
        let info = dir.path().join("proc/70/fdinfo");
        fs::create_dir_all(&info).unwrap();
        let mapped = |maps: &str, pinned| read_process(dir.path(), maps, pinned).dma_mapped;
        assert_eq!(mapped("", Some(0)), None, "descriptors are not accessible");
        fs::create_dir_all(&fd).unwrap();
        assert_eq!(mapped("", Some(0)), Some(false));
        assert_eq!(mapped("", None), None);
        assert_eq!(mapped("", Some(4096)), Some(true));
        assert_eq!(mapped("7f0 default file=socket:[7]\n", Some(0)), None);
        assert_eq!(mapped("7f0 default file=/dev/uio0\n", Some(0)), Some(true));
        let huge = "7f0 default huge anon=1 N0=1 kernelpagesize_kB=2048\n";
        assert_eq!(mapped(huge, Some(0)), None);
        symlink("anon_inode:[io_uring]", fd.join("5")).unwrap();
        fs::write(info.join("5"), "pos:\t0\nUserFiles:\t3\nUserBufs:\t0\n").unwrap();
        assert_eq!(mapped("", Some(0)), Some(false));
        fs::write(info.join("5"), "pos:\t0\nUserBufs:\t2\n").unwrap();
        assert_eq!(mapped("", Some(0)), Some(true));
    }
}
