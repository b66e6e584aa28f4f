//! Counts a CPU's events in all threads of a process, and in those that they start, with perf_event_open(2)
//! (include/uapi/linux/perf_event.h).

use crate::memory::loads::open_event;
use libbpf_rs::libbpf_sys::perf_event_attr;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};

/// `PERF_TYPE_HARDWARE`, `PERF_COUNT_HW_CACHE_MISSES`.
const CACHE_MISSES: (u32, u64) = (0, 3);
/// `PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING`
const WITH_TIMES: u64 = 1 | 2;
/// Threads that are started while others are found: after so many rounds without an end, the rest is left out.
const ROUNDS: usize = 10;

/// Events of a process since the start of counting.
#[derive(Debug)]
pub struct ProcessEvents(Vec<File>);

impl ProcessEvents {
    /// Starts to count cache misses: the generic event, which CPUs have for the last-level cache, in the kernel and in
    /// user space.
    ///
    /// # Errors
    /// There is no PMU that counts them, or the kernel does not permit it.
    pub fn cache_misses(pid: u32) -> io::Result<Self> {
        Self::of(pid, CACHE_MISSES).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => {
                io::Error::other("no PMU counts them here")
            }
            _ => error,
        })
    }

    fn of(pid: u32, event: (u32, u64)) -> io::Result<Self> {
        let (mut counters, mut known) = (Vec::new(), BTreeSet::new());
        // A thread that is counted has all that it starts counted; one that is not may start another meanwhile.
        for _ in 0..ROUNDS {
            let threads = threads(pid)?;
            let new: Vec<u32> = threads.into_iter().filter(|tid| known.insert(*tid)).collect();
            if new.is_empty() {
                break;
            }
            for tid in new {
                match counter(tid, event) {
                    Ok(counter) => counters.push(counter),
                    // It has exited.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(Self(counters))
    }

    /// Events until now. Where the PMU has fewer counters than are wanted, the kernel lets them take turns, and the rest
    /// is extrapolated.
    ///
    /// # Errors
    /// The kernel cannot read them, or a counter was never its turn.
    pub fn count(&mut self) -> io::Result<u64> {
        self.0.iter_mut().try_fold(0u64, |sum, counter| {
            let mut value = [[0; 8]; 3];
            counter.read_exact(value.as_flattened_mut())?;
            let [count, enabled, running] = value.map(u64::from_ne_bytes);
            Ok(sum.saturating_add(extrapolated(count, enabled, running)?))
        })
    }
}

fn threads(pid: u32) -> io::Result<Vec<u32>> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect())
}

fn counter(tid: u32, (kind, config): (u32, u64)) -> io::Result<File> {
    let size = size_of::<perf_event_attr>() as u32;
    let mut attributes =
        perf_event_attr { type_: kind, size, config, ..perf_event_attr::default() };
    attributes.read_format = WITH_TIMES;
    attributes.set_inherit(1);
    attributes.set_exclude_hv(1);
    let tid = i32::try_from(tid).map_err(io::Error::other)?;
    open_event(&mut attributes, tid, -1, None).map(File::from)
}

/// A count for all of the time that it was enabled.
fn extrapolated(count: u64, enabled: u64, running: u64) -> io::Result<u64> {
    match (enabled, running) {
        // A thread that did not run.
        (0, _) => Ok(0),
        (_, 0) => Err(io::Error::other("the PMU's counters were in use by others all the time")),
        _ => {
            let scaled = u128::from(count) * u128::from(enabled) / u128::from(running);
            Ok(u64::try_from(scaled).unwrap_or(u64::MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::sync::Barrier;
    use std::thread;

    /// `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_PAGE_FAULTS`: each machine has them.
    const PAGE_FAULTS: (u32, u64) = (1, 2);

    #[test]
    fn a_count_is_extrapolated_to_the_whole_time() {
        assert_eq!(extrapolated(10, 400, 100).unwrap(), 40);
        assert_eq!(extrapolated(7, 100, 100).unwrap(), 7);
        assert_eq!(extrapolated(0, 0, 0).unwrap(), 0);
        assert_eq!(extrapolated(u64::MAX, u64::MAX, 1).unwrap(), u64::MAX);
        assert!(extrapolated(0, 100, 0).is_err());
    }

    /// Faults of this process, as the kernel counts them.
    fn faults() -> u64 {
        // SAFETY: the kernel fills the structure, which is plain numbers.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
            usage
        };
        u64::try_from(usage.ru_minflt + usage.ru_majflt).unwrap()
    }

    /// Takes a fault for each of 1,000 pages.
    fn touch() {
        const LENGTH: usize = 1000 * 4096;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice, which is written within its length and unmapped.
        unsafe {
            let start = mmap_anonymous(std::ptr::null_mut(), LENGTH, protection, flags).unwrap();
            madvise(start, LENGTH, Advice::LinuxNoHugepage).unwrap();
            for at in (0..LENGTH).step_by(4096) {
                start.cast::<u8>().add(at).write_volatile(1);
            }
            munmap(start, LENGTH).unwrap();
        }
    }

    /// Of threads that ran already and of those that are started later, in this process with all its other tests.
    #[test]
    fn events_of_all_threads_are_counted() {
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            let earlier = scope.spawn(|| {
                barrier.wait();
                barrier.wait();
                touch();
            });
            barrier.wait();
            let outer = faults();
            let events = ProcessEvents::of(std::process::id(), PAGE_FAULTS);
            let inner = faults();
            barrier.wait();
            scope.spawn(touch).join().unwrap();
            earlier.join().unwrap();
            let mut events = match events {
                Ok(events) => events,
                Err(error) => return nearpath_testing::skip(&format!("perf_event_open: {error}")),
            };
            let inner = faults() - inner;
            let counted = events.count().unwrap();
            let outer = faults() - outer;
            assert!(
                inner >= 2000 && inner <= counted && counted <= outer,
                "{inner} {counted} {outer}"
            );
        });
    }
}
