//! Whether a device may write to the memory of a process, from what is cheap to read: its descriptors and those of its
//! threads, its mappings, and `VmPin` and `HugetlbPages` of its status. Such memory must not be moved: with uio the NIC
//! writes to the old pages, which belong to others by then, and every packet is lost.
//!
//! Memory that it shares with a process that has a device open counts as well: the device may write to it.

use crate::memory::{self, MAX_DEVICES, is_device};
use crate::{ReadError, Root};
use std::collections::BTreeSet;

/// Maximum number of threads whose descriptors are compared.
const MAX_THREADS: usize = 65_536;
/// Maximum number of shared mappings compared with those of other processes.
const MAX_SHARED: usize = 65_536;

/// Why the memory of a process must not be moved, also by its pages by node (`numa_maps`, which the kernel walks its
/// page tables for); `None` if nothing was found that forbids it.
///
/// # Errors
/// As [`memory_is_for_devices`].
pub fn memory_must_stay(root: &Root, pid: u32) -> Result<Option<String>, ReadError> {
    if let Some(reason) = memory::must_stay(root, pid)? {
        return Ok(Some(reason));
    }
    match memory_is_for_devices(root, pid) {
        // A copy of a host may lack the status; a process that has exited lacks all.
        Err(error) if error.absent && !root.is_live() => Ok(None),
        result => result,
    }
}

/// Why the memory of a process must not be moved; `None` if nothing was found that forbids it.
///
/// # Errors
/// It has exited, or its files cannot be read.
pub fn memory_is_for_devices(root: &Root, pid: u32) -> Result<Option<String>, ReadError> {
    let status = root.text(&format!("/proc/{pid}/status"))?;
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().filter(|kib| *kib > 0)
    };
    if let Some(kib) = kib("VmPin:") {
        return Ok(Some(format!("{kib} KiB of it are pinned (VmPin) for a device")));
    }
    if let Some(kib) = kib("HugetlbPages:") {
        return Ok(Some(format!(
            "{kib} KiB of it are in hugetlb pages, whose addresses DPDK and others pass to devices"
        )));
    }
    if let Some(device) = open_devices(root, pid)?.first() {
        return Ok(Some(format!("it has {device} open, and a device may write to its memory")));
    }
    let mappings = Mappings::read(root, pid)?;
    if let Some(device) = mappings.devices.first() {
        return Ok(Some(format!("it has {device} mapped, and a device may write to its memory")));
    }
    shared_with_a_device(root, pid, &mappings)
}

/// The devices among the descriptors of a process and of those of its threads that have a table of their own.
fn open_devices(root: &Root, pid: u32) -> Result<BTreeSet<String>, ReadError> {
    let mut devices = BTreeSet::new();
    descriptors(root, &format!("/proc/{pid}/fd"), &mut devices)?;
    let threads = root.list(&format!("/proc/{pid}/task")).unwrap_or_default();
    let tids = threads.iter().filter_map(|entry| entry.name.parse::<u32>().ok());
    for tid in tids.filter(|tid| *tid != pid).take(MAX_THREADS) {
        if root.is_live() && share_descriptors(pid, tid) {
            continue;
        }
        match descriptors(root, &format!("/proc/{pid}/task/{tid}/fd"), &mut devices) {
            Ok(()) => {}
            // It has exited.
            Err(error) if error.absent => {}
            Err(error) => return Err(error),
        }
    }
    Ok(devices)
}

fn descriptors(root: &Root, folder: &str, devices: &mut BTreeSet<String>) -> Result<(), ReadError> {
    for entry in root.list(folder)? {
        match root.link(&format!("{folder}/{}", entry.name)) {
            Ok(target) if is_device(&target) && devices.len() < MAX_DEVICES => {
                devices.insert(target);
            }
            Ok(_) => {}
            // It was closed in the meantime.
            Err(error) if error.absent => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether two threads have one table of descriptors (kcmp(2), `KCMP_FILES`); false if that is unknown.
fn share_descriptors(pid: u32, tid: u32) -> bool {
    /// `KCMP_FILES` of include/uapi/linux/kcmp.h.
    const KCMP_FILES: libc::c_long = 2;
    let (pid, tid) = (libc::c_long::from(pid), libc::c_long::from(tid));
    // SAFETY: kcmp takes plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, pid, tid, KCMP_FILES, 0, 0) };
    result == 0
}

impl Mappings {
    /// Whether both map some memory that one of them may write to. Files that all programs map to read, as glibc's
    /// `gconv-modules.cache`, are not meant.
    fn overlap(&self, other: &Self) -> bool {
        !self.writable.is_disjoint(&other.shared) || !self.shared.is_disjoint(&other.writable)
    }
}

/// What `/proc/PID/maps` shows of devices and of shared memory.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mappings {
    /// Mapped devices that may write to memory.
    devices: BTreeSet<String>,
    /// Device and inode of shared mappings.
    shared: BTreeSet<String>,
    /// Of them those that it may write to, and so a device on its behalf.
    writable: BTreeSet<String>,
}

impl Mappings {
    fn read(root: &Root, pid: u32) -> Result<Self, ReadError> {
        Ok(Self::parse(&root.read(&format!("/proc/{pid}/maps"))?))
    }

    /// `7f00-7f10 rw-s 00000000 00:01 1024 /dev/shm/x`; lines in another form are skipped.
    fn parse(bytes: &[u8]) -> Self {
        let mut found = Self::default();
        for line in String::from_utf8_lossy(bytes).lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(_), Some(access), Some(_), Some(device), Some(inode)) =
                (words.next(), words.next(), words.next(), words.next(), words.next())
            else {
                continue;
            };
            let file = words.next().unwrap_or_default();
            if is_device(file) && found.devices.len() < MAX_DEVICES {
                found.devices.insert(file.to_owned());
            }
            if access.ends_with('s') && inode != "0" && found.shared.len() < MAX_SHARED {
                let memory = format!("{device} {inode}");
                if access.contains('w') {
                    found.writable.insert(memory.clone());
                }
                found.shared.insert(memory);
            }
        }
        found
    }
}

/// Whether another process that has a device open maps some of the same memory.
fn shared_with_a_device(
    root: &Root,
    pid: u32,
    own: &Mappings,
) -> Result<Option<String>, ReadError> {
    if own.shared.is_empty() {
        return Ok(None);
    }
    for entry in root.list("/proc")? {
        let Some(other) = entry.name.parse::<u32>().ok().filter(|other| *other != pid) else {
            continue;
        };
        // One that has exited, or that hides its descriptors, which only root reads.
        let Ok(theirs) = Mappings::read(root, other) else { continue };
        if !theirs.overlap(own) {
            continue;
        }
        let device = match theirs.devices.first() {
            Some(device) => Some(device.clone()),
            None => open_devices(root, other)?.pop_first(),
        };
        if let Some(device) = device {
            return Ok(Some(format!(
                "it shares memory with process {other}, which has {device} open"
            )));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn process(tree: &Path, pid: u32, status: &str, maps: &str, open: &[(&str, &str)]) {
        let folder = tree.join(format!("proc/{pid}"));
        fs::create_dir_all(folder.join("fd")).unwrap();
        fs::write(folder.join("status"), status).unwrap();
        fs::write(folder.join("maps"), maps).unwrap();
        for (fd, target) in open {
            let fd = folder.join(fd);
            fs::create_dir_all(fd.parent().unwrap()).unwrap();
            symlink(target, fd).unwrap();
        }
    }

    #[test]
    fn memory_that_devices_may_write_to_is_found() {
        const PLAIN: &str = "VmPin:\t       0 kB\nHugetlbPages:\t       0 kB\n";
        const SHM: &str = "7f00-7f10 rw-s 00000000 00:17 99 /dev/shm/ring\n";
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path();
        process(tree, 70, PLAIN, "7f00-7f10 rw-p 00000000 00:00 0\n", &[("fd/3", "/dev/null")]);
        process(tree, 71, "VmPin:\t      64 kB\n", "", &[]);
        process(tree, 72, "HugetlbPages:\t    2048 kB\n", "", &[]);
        process(tree, 73, PLAIN, "", &[("fd/9", "/dev/uio0")]);
        // Of a thread with its own table.
        process(tree, 74, PLAIN, "", &[("task/740/fd/5", "anon_inode:[vfio-device]")]);
        process(tree, 75, PLAIN, "7f00-7f10 rw-s 0 00:05 7 /dev/vfio/12\n", &[]);
        process(tree, 76, PLAIN, SHM, &[("fd/1", "/dev/null")]);
        let root = Root::tree(tree).unwrap();
        let reason = |pid: u32| memory_is_for_devices(&root, pid).unwrap();
        assert_eq!(reason(70), None);
        assert_eq!(reason(76), None, "shared with nobody");
        // Only read by both, as a file of a library.
        let cache = SHM.replace("rw-s", "r--s");
        process(tree, 78, PLAIN, &cache.replace("99", "98"), &[]);
        process(
            tree,
            77,
            PLAIN,
            &(SHM.to_owned() + &cache.replace("99", "98")),
            &[("fd/4", "/dev/vfio/3")],
        );
        assert_eq!(reason(78), None);
        // Read by one, written by the other.
        process(tree, 79, PLAIN, &cache, &[]);
        for (pid, says) in [
            (71, "pinned"),
            (72, "hugetlb"),
            (73, "/dev/uio0 open"),
            (74, "[vfio-device] open"),
            (75, "/dev/vfio/12 mapped"),
            (76, "shares memory with process 77, which has /dev/vfio/3 open"),
            (79, "shares memory with process 77"),
            (77, "/dev/vfio/3 open"),
        ] {
            let said = reason(pid).unwrap_or_default();
            assert!(said.contains(says), "{pid}: {said}");
        }
        // Unknown is not empty.
        fs::remove_file(tree.join("proc/70/status")).unwrap();
        assert!(memory_is_for_devices(&root, 70).is_err());
    }

    #[test]
    fn threads_of_this_process_share_their_descriptors() {
        let me = std::process::id();
        assert!(share_descriptors(me, me) || !Root::live().is_live());
        assert_eq!(memory_is_for_devices(&Root::live(), me).unwrap(), None);
    }
}
