//! Samples of events on all CPUs: perf_event_open(2), and the rings that the kernel writes records to
//! (include/uapi/linux/perf_event.h, `struct perf_event_mmap_page`).

use super::pmu::Event;
use super::record::{ADDR, CPU, DATA_SRC, IP, PHYS_ADDR, Record, TID, TIME, WEIGHT, parse};
use libbpf_rs::libbpf_sys::{perf_event_attr, perf_event_mmap_page};
use nearpath_model::CpuSet;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Fields of each sample.
pub const SAMPLE_TYPE: u64 = IP | TID | TIME | ADDR | CPU | WEIGHT | DATA_SRC | PHYS_ADDR;
/// Pages of a ring's data: 2,048 samples.
const PAGES: usize = 32;

/// How often an event is sampled.
#[derive(Debug, Clone, Copy)]
pub enum Rate {
    /// Samples per second and CPU, about.
    Frequency(u64),
    /// Each so many events.
    Period(u64),
}

/// Events that are sampled on all CPUs, until it is dropped.
#[derive(Debug)]
pub struct Perf {
    rings: Vec<Ring>,
    /// Those that lead a group.
    _leaders: Vec<OwnedFd>,
}

impl Perf {
    /// Starts to sample.
    ///
    /// # Errors
    /// The kernel refused: the first reason.
    pub fn open(events: &[Event], cpus: &CpuSet, rate: Rate) -> io::Result<Self> {
        let (mut rings, mut leaders) = (Vec::new(), Vec::new());
        for cpu in cpus.iter() {
            let cpu = libc::c_int::try_from(cpu.0).map_err(io::Error::other)?;
            for event in events {
                let leader = event.leader.map(|config| {
                    let leader = Event { config, precise: false, leader: None, ..event.clone() };
                    open(&mut attributes(&leader, None, 0), cpu, None)
                });
                let leader = leader.transpose()?;
                rings.push(Ring::map(sampling(event, cpu, rate, leader.as_ref())?)?);
                leaders.extend(leader);
            }
        }
        Ok(Self { rings, _leaders: leaders })
    }

    /// Takes what was recorded since the last time.
    pub fn take(&mut self, mut each: impl FnMut(Record)) {
        for ring in &mut self.rings {
            ring.take(&mut each);
        }
    }
}

/// Opens an event with the most exact samples that it can have.
fn sampling(event: &Event, cpu: i32, rate: Rate, leader: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    let levels: &[u64] = if event.precise { &[3, 2, 1] } else { &[0] };
    let mut result = Err(io::Error::from_raw_os_error(libc::EINVAL));
    for level in levels {
        result = open(&mut attributes(event, Some(rate), *level), cpu, leader);
        let is_level = |error: &io::Error| {
            matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL))
        };
        if !result.as_ref().is_err_and(is_level) {
            break;
        }
    }
    result
}

pub(super) fn attributes(event: &Event, rate: Option<Rate>, precise: u64) -> perf_event_attr {
    let [config, config1, config2] = event.config;
    let size = size_of::<perf_event_attr>() as u32;
    let mut attributes =
        perf_event_attr { type_: event.kind, size, config, ..perf_event_attr::default() };
    attributes.__bindgen_anon_3.config1 = config1;
    attributes.__bindgen_anon_4.config2 = config2;
    match rate {
        Some(Rate::Frequency(hz)) => {
            attributes.set_freq(1);
            attributes.__bindgen_anon_1.sample_freq = hz;
        }
        Some(Rate::Period(count)) => attributes.__bindgen_anon_1.sample_period = count,
        None => {}
    }
    if rate.is_some() {
        attributes.sample_type = SAMPLE_TYPE;
    }
    attributes.set_precise_ip(precise);
    attributes
}

/// Opens an event of all tasks on a CPU.
pub(super) fn open(
    attributes: &mut perf_event_attr,
    cpu: i32,
    leader: Option<&OwnedFd>,
) -> io::Result<OwnedFd> {
    open_event(attributes, -1, cpu, leader)
}

/// Opens an event of a thread, or of all if that is -1, on a CPU, or on all.
///
/// # Errors
/// The kernel refused.
pub(crate) fn open_event(
    attributes: &mut perf_event_attr,
    tid: i32,
    cpu: i32,
    leader: Option<&OwnedFd>,
) -> io::Result<OwnedFd> {
    /// `PERF_FLAG_FD_CLOEXEC`.
    const CLOEXEC: libc::c_ulong = 1 << 3;
    let group = leader.map_or(-1, |leader| leader.as_fd().as_raw_fd());
    // SAFETY: the kernel reads `size` bytes of the attributes, and may write the size that it knows into them.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_mut(attributes),
            tid,
            cpu,
            group,
            CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A mapped ring.
#[derive(Debug)]
pub(super) struct Ring {
    event: OwnedFd,
    start: *mut libc::c_void,
    page: usize,
}

// SAFETY: the mapping belongs to the ring alone, and is valid in each thread.
unsafe impl Send for Ring {}

impl Ring {
    pub(super) fn map(event: OwnedFd) -> io::Result<Self> {
        let page = rustix::param::page_size();
        let (read, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { mmap(std::ptr::null_mut(), (PAGES + 1) * page, read, shared, &event, 0)? };
        Ok(Self { event, start, page })
    }

    /// The event that it is of.
    pub(super) fn event(&self) -> &OwnedFd {
        &self.event
    }

    /// Says where an area of the event's own will be mapped; returns its offset.
    pub(super) fn announce_area(&mut self, size: usize) -> u64 {
        let header = self.start.cast::<perf_event_mmap_page>();
        let offset = ((PAGES + 1) * self.page) as u64;
        // SAFETY: the first page of the mapping; the kernel reads both fields when the area is mapped.
        unsafe {
            (&raw mut (*header).aux_offset).write_volatile(offset);
            (&raw mut (*header).aux_size).write_volatile(size as u64);
        }
        offset
    }

    /// What is before this offset of the area may be written again.
    pub(super) fn release_area(&mut self, until: u64) {
        let header = self.start.cast::<perf_event_mmap_page>();
        // SAFETY: the first page of the mapping; this program writes the tail.
        let tail = unsafe { AtomicU64::from_ptr(&raw mut (*header).aux_tail) };
        tail.store(until, Ordering::Release);
    }

    /// Lets an event that the kernel has stopped go on.
    pub(super) fn enable(&self) {
        /// `PERF_EVENT_IOC_ENABLE`: `_IO('$', 0)`.
        const ENABLE: libc::Ioctl = 0x2400;
        // SAFETY: an ioctl without a pointer; one that fails leaves the event stopped, and nothing is counted.
        unsafe { libc::ioctl(self.event.as_raw_fd(), ENABLE, 0) };
    }

    pub(super) fn take(&mut self, each: &mut impl FnMut(Record)) {
        let header = self.start.cast::<perf_event_mmap_page>();
        // SAFETY: the first page of the mapping, which lives as long as this. The kernel writes the head, this program
        // the tail.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*header).data_head),
                AtomicU64::from_ptr(&raw mut (*header).data_tail),
            )
        };
        let (from, to) = (tail.load(Ordering::Relaxed), head.load(Ordering::Acquire));
        let size = PAGES * self.page;
        let count = usize::try_from(to.wrapping_sub(from)).unwrap_or(0).min(size);
        let mut bytes = vec![0u8; count];
        let begin = usize::try_from(from % size as u64).unwrap_or(0);
        let first = count.min(size - begin);
        // SAFETY: both parts are within the data, which the kernel does not write to until the tail has passed them.
        unsafe {
            let data = self.start.cast::<u8>().add(self.page);
            std::ptr::copy_nonoverlapping(data.add(begin), bytes.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(data, bytes.as_mut_ptr().add(first), count - first);
        }
        // Records are complete once the head has passed them.
        if let Ok((records, _)) = parse(&bytes, SAMPLE_TYPE) {
            records.into_iter().for_each(each);
        }
        tail.store(to, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped with this size; nothing uses it any more.
        let _ = unsafe { munmap(self.start, (PAGES + 1) * self.page) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Page faults are events of every kernel, whose samples have the address of the data.
    #[test]
    fn samples_of_this_kernel_are_read() {
        if !nearpath_testing::require_root() {
            return;
        }
        let faults = Event { kind: 1, config: [2, 0, 0], ..Event::default() };
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
        let cpus = CpuSet::from_list(online.trim()).unwrap();
        let mut perf = Perf::open(&[faults], &cpus, Rate::Period(1)).unwrap();
        // More than an allocator keeps for later (mallopt(3), M_MMAP_THRESHOLD): no page of it has been touched.
        let size = 64 << 20;
        let memory = vec![0u8; size];
        let start = memory.as_ptr() as u64;
        let touched: u64 = memory
            .chunks(4096)
            .take(300)
            .map(|page| u64::from(std::hint::black_box(page)[0]))
            .sum();
        assert_eq!(touched, 0);
        let mut pages = BTreeSet::new();
        perf.take(|record| {
            if let Record::Sample(sample) = record
                && sample.pid == std::process::id()
                && (start..start + size as u64).contains(&sample.address)
            {
                assert!(
                    sample.ip != 0 && cpus.contains(nearpath_model::CpuId(sample.cpu)),
                    "{sample:?}"
                );
                pages.insert(sample.address / 4096);
            }
        });
        // Hugepages take fewer faults.
        assert!(!pages.is_empty());
        let mut again = 0;
        perf.take(|_| again += 1);
        assert!(again < 100_000, "what was taken is not read again");
        let wrong = Event { kind: u32::MAX, ..Event::default() };
        assert!(Perf::open(&[wrong], &cpus, Rate::Frequency(100)).is_err());
    }
}
