//! The probes of the instrument `accepts`: those for connections, those for datagrams, and what the kernel
//! reports about io_uring.

use crate::kernel::{Chosen, Kernel, Probe, entry, exit, helper_probe, or_at, probe};

/// All probes.
pub const PROBES: &[Probe] = &[
    probe("sys_exit", "sys_exit", "syscall_exit_work", &["accept"]),
    probe("uring_submit_req", "io_uring_submit_req", "io_submit_sqe", &[]),
    probe("uring_submit_sqe", "io_uring_submit_sqe", "io_submit_sqe", &[]),
    probe("uring_task_add", "io_uring_task_add", "__io_poll_execute", &[]),
    probe("uring_complete", "io_uring_complete", "io_fill_cqe_req", &["io_uring"]),
    probe("netif_receive_skb", "netif_receive_skb", "__netif_receive_skb_core", &[]),
    or_at(
        probe("sk_data_ready", "sk_data_ready", "sock_def_readable", &[]),
        &[entry("sock_def_readable")],
    ),
    helper_probe(&[entry("skb_consume_udp")], CONSUME_UDP),
    or_at(
        probe("sock_recv", "sock_recv_length", "sock_recvmsg", &["datagram"]),
        &[exit("exit", "inet_recvmsg"), exit("exit6", "inet6_recvmsg")],
    ),
];

/// The probe that identifies the datagram of a reader; the end of the receive call is the fallback.
pub const CONSUME_UDP: &str = "consume_udp";
/// The fallback.
pub const SOCK_RECV: &str = "sock_recv";
/// The probes for datagrams; all are required, except that one of the two above suffices.
const DATAGRAMS: &[&str] = &["netif_receive_skb", "sk_data_ready", SOCK_RECV];
/// The probe required for accept(2).
const ACCEPT: &str = "sys_exit";

/// Arguments of the tracepoint for a completion of io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// A `struct io_uring_cqe`.
    Structure,
    /// Separate fields.
    Fields,
}

/// Whether a probe is for datagrams, as opposed to connections.
pub fn is_for(probe: &Probe, datagrams: bool) -> bool {
    (DATAGRAMS.contains(&probe.program) || probe.program == CONSUME_UDP) == datagrams
}

/// Whether it is for io_uring.
pub fn is_of_io_uring(probe: &Probe) -> bool {
    probe.program.starts_with("uring_")
}

/// How completions of io_uring are reported; not sufficient before Linux 6.0.
///
/// # Errors
/// Why its accepts cannot be observed.
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
        _ => {
            Err("this kernel's io_uring tracepoints do not identify the completed request"
                .to_owned())
        }
    }
}

/// A missing required probe, with the reason.
pub fn lacks(
    chosen: &[Chosen],
    skipped: &[(&'static Probe, String)],
    datagrams: bool,
) -> Option<String> {
    let needed = if datagrams { DATAGRAMS } else { &[ACCEPT] };
    let has = |name: &str| chosen.iter().any(|(p, _)| p.program == name);
    let missing =
        needed.iter().find(|name| !(has(name) || **name == SOCK_RECV && has(CONSUME_UDP)))?;
    let reason = skipped.iter().find(|(p, _)| p.program == *missing).map(|(_, why)| why.clone());
    Some(reason.unwrap_or_else(|| format!("no program {missing}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_probe_has_its_programs() {
        crate::kernel::assert_has_programs::<crate::accepts::load::skeleton::AcceptsSkelBuilder>(
            PROBES,
        );
    }

    #[test]
    fn connections_and_datagrams_have_their_own() {
        for probe in PROBES {
            assert_ne!(is_for(probe, true), is_for(probe, false));
        }
        let programs = |wanted: &[&str]| {
            let of = |p: &&Probe| wanted.contains(&p.program);
            PROBES.iter().filter(of).map(|p| (p, Vec::new())).collect::<Vec<Chosen>>()
        };
        assert_eq!(lacks(&programs(&[ACCEPT]), &[], false), None);
        assert_eq!(lacks(&programs(DATAGRAMS), &[], true), None);
        let probe = PROBES.iter().find(|p| p.program == "sock_recv").unwrap();
        let skipped = [(probe, "not here".to_owned())];
        let reason = lacks(&programs(&DATAGRAMS[..2]), &skipped, true);
        assert_eq!(reason, Some("not here".to_owned()));
    }
}
