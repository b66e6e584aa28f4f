//! The clocks that transmission is scheduled by: CLOCK_TAI, and those of NICs.
//!
//! Input: a root, and the NICs. Output: whether CLOCK_TAI is set and the wall clock synchronised (adjtimex(2)), and how far
//! the clocks of NICs that schedule in hardware are off. Nothing here sets a clock.

use crate::nics::ioctl::Ioctl;
use crate::timestamping::Phc;
use crate::{Notes, ReadError, Root};
use nearpath_model::{Clocks, Nic, NicClock, Scheduler};
use rustix::time::{ClockId, clock_gettime};
use std::io;

const NS_PER_S: i64 = 1_000_000_000;

/// Reads all of them.
pub(crate) fn read(root: &Root, nics: &[Nic], notes: &mut Notes) -> Option<Clocks> {
    let mut clocks: Clocks = notes.take("host", "clocks", root.answer("clocks", system))?;
    for nic in nics.iter().filter(|nic| is_offloaded(nic)) {
        let subject = format!("nic {}", nic.name);
        let key = format!("nic-clock/{}", nic.name);
        let clock = root.answer(&key, || of_nic(root, &nic.name, clocks.tai_offset_s));
        clocks.nic_clocks.extend(notes.take(&subject, "clock", clock).flatten());
    }
    Some(clocks)
}

/// Whether the NIC itself schedules by a clock.
fn is_offloaded(nic: &Nic) -> bool {
    let schedulers = nic.qdiscs.iter().flatten().filter_map(|qdisc| qdisc.scheduler.as_ref());
    let by_clock = |its: &Scheduler| matches!(its, Scheduler::Etf(_) | Scheduler::Taprio(_));
    schedulers.into_iter().any(|its| by_clock(its) && its.is_offloaded())
}

fn failed(what: &str, error: &io::Error) -> ReadError {
    let errno = rustix::io::Errno::from_io_error(error).unwrap_or(rustix::io::Errno::IO);
    ReadError::from_errno(what, errno)
}

fn system() -> Result<Clocks, ReadError> {
    // SAFETY: all of `struct timex` may be zero; `modes` 0 only reads.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel fills the structure, which outlives the call.
    if unsafe { libc::adjtimex(&raw mut timex) } < 0 {
        return Err(failed("adjtimex", &io::Error::last_os_error()));
    }
    Ok(Clocks {
        tai_offset_s: timex.tai,
        synchronised: timex.status & libc::STA_UNSYNC == 0,
        max_error_us: u64::try_from(timex.maxerror).unwrap_or(0),
        nic_clocks: Vec::new(),
    })
}

/// The clock of a NIC; `None` if it has none.
fn of_nic(root: &Root, nic: &str, tai_offset_s: i32) -> Result<Option<NicClock>, ReadError> {
    let ioctl = Ioctl::open().map_err(|error| failed(nic, &error))?;
    let Some(phc) = ioctl.phc_index(nic).map_err(|error| failed(nic, &error))? else {
        return Ok(None);
    };
    let reading = Phc::open(root, phc).and_then(|phc| phc.read()).ok();
    let ns = |id| {
        let time = clock_gettime(id);
        time.tv_sec.saturating_mul(NS_PER_S).saturating_add(time.tv_nsec)
    };
    let ahead_of_tai_ns = reading.map(|reading| {
        // These run at the same rate, so when they are read does not matter.
        let real_since_monotonic = ns(ClockId::Realtime).saturating_sub(ns(ClockId::Monotonic));
        let real = reading.monotonic_ns.saturating_add(real_since_monotonic);
        let tai = real.saturating_add(i64::from(tai_offset_s).saturating_mul(NS_PER_S));
        reading.phc_ns.saturating_sub(tai)
    });
    Ok(Some(NicClock { nic: nic.to_owned(), phc, ahead_of_tai_ns }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_clock_is_read_as_it_is() {
        let clocks = system().unwrap();
        let mut tai = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel fills the structure, which outlives the call.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_TAI, &raw mut tai) }, 0);
        let ahead = tai.tv_sec - clock_gettime(ClockId::Realtime).tv_sec;
        // A second may end between the two.
        assert!((ahead - i64::from(clocks.tai_offset_s)).abs() <= 1, "{clocks:?} {ahead}");
    }
}
