//! Counts calls of a tracepoint with perf_event_open(2): an independent count, without
//! BPF, which distinguishes a fault of nearpath from a machine that hides tracepoints.
//!
//! Input: a tracepoint and a filter on its fields (Documentation/trace/events.rst). Output: the calls
//! on all CPUs since the start.

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

const PERF_TYPE_TRACEPOINT: u32 = 2;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_EVENT_IOC_SET_FILTER: libc::c_ulong = 0x4008_2406;

/// The first version of `struct perf_event_attr` (include/uapi/linux/perf_event.h).
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

/// A counter on each CPU.
#[derive(Debug)]
pub struct Calls(Vec<File>);

impl Calls {
    /// Starts counting a tracepoint such as `net/net_dev_queue`; all of its calls, if the filter is empty.
    ///
    /// # Errors
    /// There is no such tracepoint, or the kernel refuses.
    pub fn begin(tracepoint: &str, filter: &str) -> io::Result<Self> {
        let id = id_of(tracepoint)?;
        let filter = CString::new(filter)?;
        online_cpus()?
            .into_iter()
            .map(|cpu| counter(id, cpu, &filter))
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Calls until now.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn count(&mut self) -> io::Result<u64> {
        self.0.iter_mut().try_fold(0, |sum, counter| {
            let mut count = [0; 8];
            counter.read_exact(&mut count)?;
            Ok(sum + u64::from_ne_bytes(count))
        })
    }
}

/// Online CPUs, regardless of those that this thread may run on: the lines of /proc/stat.
fn online_cpus() -> io::Result<Vec<libc::c_int>> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let number = |line: &str| line.strip_prefix("cpu")?.split(' ').next()?.parse().ok();
    Ok(stat.lines().filter_map(number).collect())
}

/// The tracepoint's id, from a tracefs that is mounted nowhere.
fn id_of(tracepoint: &str) -> io::Result<u64> {
    let tracefs = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(tracefs.as_fd())?;
    let root = fsmount(tracefs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let file = format!("events/{tracepoint}/id");
    let file = openat(&root, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    io::read_to_string(File::from(file))?.trim().parse().map_err(io::Error::other)
}

fn counter(id: u64, cpu: libc::c_int, filter: &CString) -> io::Result<File> {
    let size = size_of::<Attr>() as u32;
    let attr = Attr { kind: PERF_TYPE_TRACEPOINT, size, config: id, ..Attr::default() };
    let (everyone, no_group) = (-1, -1);
    // SAFETY: the attributes are valid during the call, and contain their size.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            everyone,
            cpu,
            no_group,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created and has no other owner.
    let counter = unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) };
    if filter.is_empty() {
        return Ok(File::from(counter));
    }
    // SAFETY: the kernel copies the text.
    let set =
        unsafe { libc::ioctl(counter.as_raw_fd(), PERF_EVENT_IOC_SET_FILTER, filter.as_ptr()) };
    if set == 0 { Ok(File::from(counter)) } else { Err(io::Error::last_os_error()) }
}
