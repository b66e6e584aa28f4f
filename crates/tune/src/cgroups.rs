//! The cpuset of a cgroup (cgroup v2): which CPUs and nodes its processes may use.
//!
//! A cgroup is identified by path and inode, so that a later one with the same name is not changed instead. It is
//! accessed through the mounted hierarchy; mounting it again would change its options for the whole host
//! (`apply_cgroup_root_flags` of kernel/cgroup/cgroup.c). Controllers are never enabled here: that is up to the
//! owner of the parent cgroup.

use crate::TuneError;
use crate::pages;
use crate::setting::Setting;
use nearpath_host::Root;
use nearpath_model::{CpuSet, Cpuset, CpusetFile};
use rustix::fs::{CWD, FsWord, Mode, OFlags, ResolveFlags, fstat, fstatfs, openat, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

/// `CGROUP2_SUPER_MAGIC` of include/uapi/linux/magic.h.
const CGROUP2: FsWord = 0x6367_7270;
/// The kinds of partitions (Documentation/admin-guide/cgroup-v2.rst).
const PARTITIONS: [&str; 3] = ["member", "root", "isolated"];
/// Maximum number of bytes read: a list of all CPUs is shorter.
const MAX_FILE: u64 = 64 << 10;

/// Mount point of the whole cgroup2 tree; `None` if it is not mounted.
pub(crate) fn mount_point(root: &Root) -> Option<String> {
    let mounts = root.text("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(mount_point_of).map(str::to_owned)
}

/// The mount point in a line of mountinfo (proc(5)), if it is of the whole cgroup2 tree. One with an escaped
/// character is ignored.
fn mount_point_of(line: &str) -> Option<&str> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut fields = mount.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let is_it = file_system.starts_with("cgroup2 ") && root == "/" && !point.contains('\\');
    is_it.then_some(point)
}

/// A setting of a cpuset on this host.
#[derive(Debug)]
pub(crate) struct CpusetSetting<'a> {
    pub root: &'a Root,
    pub cpuset: &'a Cpuset,
}

impl CpusetSetting<'_> {
    /// The cgroup's directory; `None` if it no longer exists.
    fn folder(&self) -> Result<Option<OwnedFd>, Errno> {
        let Some(point) = mount_point(self.root) else { return Ok(None) };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let tree = openat(CWD, point.as_str(), flags, Mode::empty())?;
        if fstatfs(&tree)?.f_type != CGROUP2 {
            return Err(Errno::NOTSUP);
        }
        let folder = match within(&tree, self.cpuset.cgroup.trim_start_matches('/'), flags) {
            Ok(folder) => folder,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        Ok((fstat(&folder)?.st_ino == self.cpuset.inode).then_some(folder))
    }

    fn file(&self, flags: OFlags) -> io::Result<Option<File>> {
        let Some(folder) = self.folder()? else { return Ok(None) };
        match within(&folder, self.cpuset.what.name(), flags | OFlags::CLOEXEC) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT | Errno::NODEV) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn refusal(&self, doing: &str, error: &io::Error) -> TuneError {
        let more = match Errno::from_io_error(error) {
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
                "; requires root and a writable cgroup2"
            }
            Some(Errno::NOSPC) => "; it would leave none for its processes",
            Some(Errno::INVAL) => {
                "; the parent cgroup does not have it, or another cgroup has it exclusively"
            }
            _ => "",
        };
        TuneError::kernel(format!("{doing} {}", self.cpuset), format!("{error}{more}"))
    }
}

fn within(base: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    loop {
        match openat2(base, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

impl Setting for CpusetSetting<'_> {
    fn name(&self) -> String {
        self.cpuset.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        if self.cpuset.what == CpusetFile::Partition {
            return match PARTITIONS.contains(&value) {
                true => Ok(()),
                false => Err(TuneError::Refused(format!(
                    "{}: {value:?} must be one of {}",
                    self.cpuset,
                    PARTITIONS.join(", ")
                ))),
            };
        }
        match CpuSet::from_list(value) {
            Ok(set) if !set.is_empty() => Ok(()),
            _ => Err(TuneError::Refused(format!("{}: {value:?} must be a list", self.cpuset))),
        }
    }

    fn may_be_replaced(&self, now: &str, _force: bool) -> Result<(), TuneError> {
        // validate_change() of kernel/cgroup/cpuset.c: ENOSPC.
        if now.trim().is_empty() {
            return Err(TuneError::Refused(format!(
                "{}: it is empty, and that cannot be restored: the kernel accepts an empty value only for a \
                 cgroup without processes; set it to its effective value first",
                self.cpuset
            )));
        }
        Ok(())
    }

    fn may_be_written(&self, now: &str, value: &str) -> Result<(), TuneError> {
        if self.cpuset.what != CpusetFile::Mems || !pages::moves(now, value) {
            return Ok(());
        }
        let Some(point) = mount_point(self.root) else { return Ok(()) };
        pages::check_move(self.root, &format!("{point}{}", self.cpuset.cgroup), &self.name())
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        let refused = |error: io::Error| self.refusal("reading", &error);
        let Some(file) = self.file(OFlags::RDONLY).map_err(refused)? else { return Ok(None) };
        let mut text = String::new();
        match file.take(MAX_FILE).read_to_string(&mut text) {
            Ok(_) => Ok(Some(text.trim_end().to_owned())),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(refused(error)),
        }
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        let refused = |error: io::Error| self.refusal("writing", &error);
        let file = self.file(OFlags::WRONLY).map_err(refused)?;
        let mut file = file.ok_or_else(|| refused(io::Error::other("it no longer exists")))?;
        if !value.is_empty() {
            self.check(value)?;
        }
        // An empty write does nothing; an empty line is the empty list.
        let line = format!("{value}\n");
        match file.write(line.as_bytes()) {
            Ok(length) if length == line.len() => Ok(()),
            Ok(_) => Err(refused(io::Error::other("the kernel accepted only part of it"))),
            Err(error) => Err(refused(error)),
        }
    }

    fn same(&self, a: &str, b: &str) -> bool {
        match (CpuSet::from_list(a), CpuSet::from_list(b)) {
            (Ok(a), Ok(b)) => a == b,
            _ => a.trim() == b.trim(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_round_trip_and_stay_in_the_hierarchy() {
        let cpuset =
            Cpuset { cgroup: "/a b/c.service".to_owned(), inode: 99, what: CpusetFile::Mems };
        assert_eq!(Cpuset::parse(&cpuset.to_string()), Some(cpuset));
        for text in [
            "cpuset.cpus inode 1 cgroup ",
            "cpuset.cpus inode 1 cgroup /",
            "cpuset.cpus inode 1 cgroup a",
            "cpuset.cpus inode 1 cgroup /a/../b",
            "cpuset.cpus inode 1 cgroup /a//b",
            "cpuset.cpus inode x cgroup /a",
            "cpuset.cpus.exclusive inode 1 cgroup /a",
            "memory.max inode 1 cgroup /a",
        ] {
            assert_eq!(Cpuset::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_mount_of_the_whole_tree_is_found() {
        let whole =
            "35 25 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(mount_point_of(whole), Some("/sys/fs/cgroup"));
        for line in [
            "35 25 0:30 /a /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            "35 25 0:30 / /a\\040b rw - cgroup2 cgroup2 rw",
            "35 25 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset",
            "",
        ] {
            assert_eq!(mount_point_of(line), None, "{line}");
        }
    }

    #[test]
    fn a_missing_cgroup_is_gone() {
        let cpuset = Cpuset::parse("cpuset.cpus inode 1 cgroup /nearpath-none").unwrap();
        let its = CpusetSetting { root: &Root::live(), cpuset: &cpuset };
        assert!(matches!(its.read(), Ok(None) | Err(_)));
        assert!(its.write("0").is_err() && its.check("").is_err() && its.check("0-1").is_ok());
        // The kernel does not take it back.
        assert!(its.may_be_replaced("", true).is_err() && its.may_be_replaced("0", false).is_ok());
        let cpuset = Cpuset { what: CpusetFile::Partition, ..cpuset.clone() };
        assert_eq!(Cpuset::parse(&cpuset.to_string()), Some(cpuset.clone()));
        let partition = CpusetSetting { root: &Root::live(), cpuset: &cpuset };
        assert!(partition.check("isolated").is_ok() && partition.check("0-1").is_err());
        // Accepted by the kernel, but not in effect.
        assert!(
            !partition.same("isolated invalid (Cpu list in cpuset.cpus not exclusive)", "isolated")
        );
        assert!(its.same("0,1", "0-1") && its.same("", "") && !its.same("", "0"));
    }
}
