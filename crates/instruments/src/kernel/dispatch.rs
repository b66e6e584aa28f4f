//! The cost of calling a program at a tracepoint, which the kernel's statistics do not include. Measured by
//! attaching the empty program to a tracepoint that this thread passes.

use libbpf_rs::ProgramMut;
use std::time::{Duration, Instant};

/// Passed when a thread's name changes, and rarely otherwise.
const TRACEPOINT: &str = "task_rename";
/// Short ones, as on a busy CPU few are not interrupted.
const BATCHES: u32 = 100;
const CALLS: u32 = 20;
/// Used if it cannot be measured: the value on a virtual machine of 2026 with retpolines.
const USUAL_NS: f64 = 90.0;
/// In a loop the caches hold everything that a call needs; in the path of a packet it takes longer. From `make
/// bench-overhead`: the cost of a datagram with empty programs, minus that without, per call is 0.9 to 1.3
/// times the value measured here.
const UNPREPARED: f64 = 1.2;

/// Nanoseconds per call, in the path of packets.
pub fn dispatch_ns(empty: &ProgramMut<'_>) -> f64 {
    measured_ns(empty).map_or(USUAL_NS, |ns| (ns * UNPREPARED).clamp(10.0, 2_000.0))
}

fn measured_ns(empty: &ProgramMut<'_>) -> Option<f64> {
    let name = own_name()?;
    let before = batch(&name)?;
    let link = empty.attach_raw_tracepoint(TRACEPOINT).ok()?;
    let with = batch(&name);
    drop(link);
    // The machine may have become faster meanwhile.
    let without = batch(&name)?.min(before);
    Some((with? - without).max(0.0))
}

/// The thread's name.
fn own_name() -> Option<[u8; 16]> {
    let mut name = [0u8; 16];
    // SAFETY: the kernel writes at most 16 bytes.
    let result = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    (result == 0).then_some(name)
}

/// Nanoseconds of a call that sets the thread's name to its current value: the fastest batch, as others may be
/// interrupted.
fn batch(name: &[u8; 16]) -> Option<f64> {
    let mut quickest = Duration::MAX;
    for _ in 0..BATCHES {
        let began = Instant::now();
        for _ in 0..CALLS {
            // SAFETY: a string of at most 16 bytes that ends with a zero, as the kernel has written it.
            if unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) } != 0 {
                return None;
            }
        }
        quickest = quickest.min(began.elapsed());
    }
    Some(quickest.as_nanos() as f64 / f64::from(CALLS))
}
