//! The probes of the instrument `accepts`, and what the kernel tells of io_uring.

use crate::kernel::{Kernel, Probe, probe};

/// All probes.
pub const PROBES: &[Probe] = &[
    probe("sys_exit", "sys_exit", "syscall_exit_work", &["accept"]),
    probe("uring_submit_req", "io_uring_submit_req", "io_submit_sqe", &[]),
    probe("uring_submit_sqe", "io_uring_submit_sqe", "io_submit_sqe", &[]),
    probe("uring_task_add", "io_uring_task_add", "__io_poll_execute", &[]),
    probe("uring_complete", "io_uring_complete", "io_fill_cqe_req", &["io_uring"]),
];

/// How a completion of io_uring is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// As `struct io_uring_cqe`.
    Structure,
    /// Field by field.
    Fields,
}

/// Whether it is one of io_uring.
pub fn is_of_io_uring(probe: &Probe) -> bool {
    probe.program.starts_with("uring_")
}

/// How io_uring tells of completions; it does not tell enough before Linux 6.0.
///
/// # Errors
/// Why its accepts cannot be seen.
pub fn io_uring(kernel: &Kernel) -> Result<Completion, String> {
    let arguments = |program: &str| {
        let probe = PROBES.iter().find(|p| p.program == program)?;
        kernel.arguments(probe)
    };
    let there_is = "this kernel has no tracepoint";
    let complete = arguments("uring_complete").ok_or(format!("{there_is} io_uring_complete"))?;
    let task_add = arguments("uring_task_add").ok_or(format!("{there_is} io_uring_task_add"))?;
    // Both had other arguments before: a request's fields instead of the request.
    match (task_add, complete) {
        (2, 3) => Ok(Completion::Structure),
        (2, 7) => Ok(Completion::Fields),
        _ => Err("this kernel's io_uring does not tell which request is completed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_has_its_programs() {
        let sources = [
            include_str!("../../../../bpf/accepts.bpf.c"),
            include_str!("../../../../bpf/accepts_uring.h"),
        ];
        let has = |line: String| assert!(sources.iter().any(|s| s.contains(&line)), "{line}");
        for probe in PROBES {
            has(format!("PROBE({}, \"{}\")", probe.program, probe.tracepoint.unwrap()));
        }
    }
}
