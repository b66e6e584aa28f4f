//! The CPUs that a thread may run on. Input: a [`CpuSet`] of any size (the masks of `rustix` and of glibc's
//! `cpu_set_t` end at CPU 1023). Output: the thread's affinity.

use nearpath_model::{CpuId, CpuSet, MAX_CPUS};
use std::io;

/// A word of the kernel's mask.
type Word = libc::c_ulong;

/// The calling thread's id.
pub fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// The CPUs that the calling thread may run on, as limited by `taskset`, a cpuset cgroup and hotplug.
///
/// # Errors
/// The kernel refused, which it does only for a mask shorter than its own.
pub fn current() -> io::Result<CpuSet> {
    of(0)
}

/// The CPUs that a thread may run on, by its id; 0 is the calling one.
///
/// # Errors
/// There is no such thread.
pub fn of(tid: u32) -> io::Result<CpuSet> {
    let pid = libc::pid_t::try_from(tid).map_err(io::Error::other)?;
    let mut mask = vec![0 as Word; (MAX_CPUS / Word::BITS) as usize];
    // SAFETY: the pointer and the length are those of `mask`, which outlives the call.
    let result = unsafe {
        libc::sched_getaffinity(pid, std::mem::size_of_val(&mask[..]), mask.as_mut_ptr().cast())
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    let words = (0u32..).step_by(Word::BITS as usize).zip(mask);
    let bits =
        words.flat_map(|(base, word)| (0..Word::BITS).map(move |bit| (base + bit, word >> bit)));
    Ok(bits.filter(|(_, word)| word & 1 == 1).map(|(cpu, _)| CpuId(cpu)).collect())
}

/// Restricts the calling thread to these CPUs; threads that it starts inherit this.
///
/// # Errors
/// None of the CPUs is online and allowed to this thread (`EINVAL`).
pub fn pin(cpus: &CpuSet) -> io::Result<()> {
    set_mask(&mask(cpus)).map_err(|reason| {
        io::Error::new(reason.kind(), format!("pinning to CPUs {cpus}: {reason}"))
    })
}

/// The kernel's mask of the numbers, as long as needed.
pub(crate) fn mask(cpus: &CpuSet) -> Vec<Word> {
    let last = cpus.iter().last().map_or(0, |cpu| cpu.0);
    let mut mask = vec![0 as Word; (last / Word::BITS) as usize + 1];
    for cpu in cpus.iter() {
        if let Some(word) = mask.get_mut((cpu.0 / Word::BITS) as usize) {
            *word |= 1 << (cpu.0 % Word::BITS);
        }
    }
    mask
}

/// Restricts the calling thread to the CPUs of this mask. Does not allocate.
pub(crate) fn set_mask(mask: &[Word]) -> io::Result<()> {
    // SAFETY: the pointer and the length are those of `mask`, which outlives the call.
    let result =
        unsafe { libc::sched_setaffinity(0, std::mem::size_of_val(mask), mask.as_ptr().cast()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_runs_on_its_cpu() {
        std::thread::spawn(|| {
            let allowed = current().unwrap();
            let last: CpuSet = allowed.iter().last().into_iter().collect();
            assert_eq!(last.len(), 1);
            pin(&last).unwrap();
            assert_eq!(current().unwrap(), last);
            // SAFETY: takes no arguments and accesses no memory of ours.
            let running = unsafe { libc::sched_getcpu() };
            assert!(last.contains(CpuId(u32::try_from(running).unwrap())));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn missing_cpus_are_refused() {
        for cpus in [CpuSet::new(), CpuSet::from_list("60000").unwrap()] {
            let error = pin(&cpus).unwrap_err();
            assert!(error.to_string().contains("pinning to CPUs"), "{error}");
        }
    }
}
