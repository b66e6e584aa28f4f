//! Connections whose receive window is smaller than rate × round-trip time.
//!
//! Input: the measured connections, and the sysctls of receive buffers. Output: a finding for each way to change it:
//! the kernel may grow the buffer no further, the application set it, or the peer's is too small.
//!
//! A window that is full while a queue stands in the path does not limit the rate: the path does, and a larger window
//! would make the queue longer. Such connections do not count, nor do those within this host, nor those without window
//! scaling (`tcp_options_off`).
//!
//! Rules: Documentation/networking/ip-sysctl.rst (`tcp_rmem`, `tcp_moderate_rcvbuf`); socket(7) (`SO_RCVBUF`,
//! `rmem_max`); `tcp_rcv_space_adjust` of net/ipv4/tcp_input.c, which grows a buffer only if the application did not
//! set it (`SOCK_RCVBUF_LOCK`).

use crate::buffers::{SizeOf, by_size, grow_cap, grow_third, wanted};
use crate::connections::{
    add_evidence, has_queue, in_flight_while, is_limited, is_receiving, lacks_scaling,
    limited_per_second, limited_share, sentences, sort_by_figure, with_others,
};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpMeasurement};
use nearpath_model::{Finding, ProposedChange, Sysctl};

pub(super) const CHECK: Check =
    Check::new("tcp_receive_buffer", "connections limited by the receive window", run);

const RMEM: Sysctl = Sysctl::TcpRmem;
const RMEM_MAX: Sysctl = Sysctl::RmemMax;
const MODERATE: Sysctl = Sysctl::TcpModerateRcvbuf;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measured) = context.tcp_measured(&mut outcome) else { return outcome };
    let limited = |c: &&TcpConnection| {
        is_limited(c, TcpLimit::ReceiveWindow)
            && !has_queue(c)
            && !lacks_scaling(c)
            && in_flight(c).is_some()
    };
    let (here, there): (Vec<_>, Vec<_>) =
        with_others(measured).filter(limited).partition(|c| is_receiving(c));
    for (size, limited) in by_size(context, &here, |c| c.receive_buffer_bytes, (RMEM, RMEM_MAX)) {
        outcome.findings.extend(of_this_host(context, measured, limited, size));
    }
    outcome.findings.extend(of_peers(measured, there));
    outcome
}

/// The window that limits: of this host, or of the peer.
fn window(c: &TcpConnection) -> Option<u64> {
    let window = if is_receiving(c) { c.receive_window_bytes } else { c.send_window_bytes };
    window.map(u64::from)
}

fn in_flight(c: &TcpConnection) -> Option<u64> {
    in_flight_while(c, TcpLimit::ReceiveWindow, window(c))
}

/// The finding about connections that this host receives.
fn of_this_host(
    context: &Context<'_>,
    measured: &TcpMeasurement,
    mut limited: Vec<&TcpConnection>,
    size: SizeOf,
) -> Option<Finding> {
    sort_by_figure(&mut limited, |c| in_flight(c).unwrap_or(0));
    let worst = in_flight(limited.first()?);
    let buffer = worst.map(|bytes| wanted(context, bytes));
    let is_moderated = context.sysctl(MODERATE.name()) != Some(0);
    let (said, change) = match size {
        SizeOf::Grown => (
            format!("Their receive buffers have grown to the limit of {RMEM}."),
            buffer.and_then(|buffer| grow_third(context, RMEM, buffer, WHY_GROW)),
        ),
        SizeOf::Capped => (
            format!(
                "The application sets SO_RCVBUF, and {RMEM_MAX} is the largest that it gets; the \
                 kernel then does not grow the buffer. Without SO_RCVBUF it would, up to {RMEM}."
            ),
            buffer.and_then(|buffer| grow_cap(context, RMEM_MAX, buffer, WHY_CAP)),
        ),
        SizeOf::Other if !is_moderated => (
            format!("{MODERATE} is 0: the kernel does not grow receive buffers."),
            Some(ProposedChange::new(
                MODERATE,
                Some("0".to_owned()),
                "1",
                "The kernel then gives each connection the buffer that its path needs.",
            )),
        ),
        SizeOf::Other => (
            format!(
                "Neither {RMEM} nor {RMEM_MAX} limits them: the application sets a smaller \
                 SO_RCVBUF, or the kernel has not grown the buffer yet."
            ),
            None,
        ),
    };
    let waits = limited_per_second(measured, limited.iter().copied(), TcpLimit::ReceiveWindow);
    let severity = severity::of_limit(waits, change.is_some());
    let count = text::count(limited.len() as u64, "connection");
    let title = format!("The receive window of this host limits {count}");
    let finding = finding(severity, title, &limited).evidence(said);
    let finding = match (&change, size) {
        (None, SizeOf::Grown | SizeOf::Capped) => finding.evidence(
            "No larger buffer is proposed: it would take too much of the memory for TCP \
             (net.ipv4.tcp_mem), or sysctls are unknown.",
        ),
        _ => finding,
    };
    Some(match change {
        Some(change) => finding.change(change),
        None => finding,
    })
}

const WHY_GROW: &str = "Twice the bytes in flight of the worst connection, with the kernel's \
    overhead; connections that need less do not get more.";
const WHY_CAP: &str = "Applications may then set a buffer that holds the bytes in flight. It takes \
    effect when they set it again.";

/// The finding about connections whose receiver is another host.
fn of_peers(measured: &TcpMeasurement, mut limited: Vec<&TcpConnection>) -> Option<Finding> {
    sort_by_figure(&mut limited, |c| in_flight(c).unwrap_or(0));
    limited.first()?;
    let waits = limited_per_second(measured, limited.iter().copied(), TcpLimit::ReceiveWindow);
    let count = text::count(limited.len() as u64, "connection");
    let title = format!("The receive window of the peer limits {count}");
    let finding = finding(severity::of_limit(waits, false), title, &limited).evidence(
        "Nothing on this host changes it. At the receiver: SO_RCVBUF of the application, or \
         net.ipv4.tcp_rmem.",
    );
    Some(finding)
}

fn finding(
    severity: nearpath_model::Severity,
    title: String,
    limited: &[&TcpConnection],
) -> Finding {
    let figures = |c: &TcpConnection| {
        let buffer = c.receive_buffer_bytes.filter(|_| is_receiving(c));
        let size = |what: &str, bytes: Option<u64>| Some(format!("{what} {}", text::bytes(bytes?)));
        let parts = [
            Some(format!(
                "limited {} of the time",
                text::percent(limited_share(c, TcpLimit::ReceiveWindow))
            )),
            size("window", window(c)),
            size("buffer", buffer.map(u64::from)),
            size("in flight", in_flight(c)),
            c.min_rtt_ns.map(|ns| format!("RTT {}", text::time(ns))),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
    };
    let finding = Finding::new(severity, title);
    add_evidence(finding, sentences(limited, figures))
}
