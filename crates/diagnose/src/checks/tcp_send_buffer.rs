//! Connections whose send buffer is smaller than rate × round-trip time.
//!
//! Input: the measured connections, and the sysctls of send buffers. Output: a finding for each way to change it: the
//! kernel may grow the buffer no further, or the application set it.
//!
//! A send buffer holds what is in flight as well as what waits. One that is full while a queue stands in the path
//! does not limit the rate; such connections do not count, nor do those within this host.
//!
//! Rules: Documentation/networking/ip-sysctl.rst (`tcp_wmem`); socket(7) (`SO_SNDBUF`, `wmem_max`); `tcp_sndbuf_expand`
//! of net/ipv4/tcp_input.c, which grows a buffer with the congestion window, only if the application did not set it
//! (`SOCK_SNDBUF_LOCK`).

use crate::buffers::{SizeOf, by_size, grow_cap, grow_third, wanted};
use crate::connections::{
    add_evidence, has_queue, in_flight_while, is_limited, is_receiving, limited_per_second,
    limited_share, sentences, sort_by_figure, with_others,
};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpMeasurement};
use nearpath_model::{Finding, Sysctl};

pub(super) const CHECK: Check =
    Check::new("tcp_send_buffer", "connections limited by their send buffer", run);

const WMEM: Sysctl = Sysctl::TcpWmem;
const WMEM_MAX: Sysctl = Sysctl::WmemMax;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measured) = context.tcp_measured(&mut outcome) else { return outcome };
    let limited = |c: &&TcpConnection| {
        is_limited(c, TcpLimit::SendBuffer)
            && !is_receiving(c)
            && !has_queue(c)
            && in_flight(c).is_some()
    };
    let limited: Vec<&TcpConnection> = with_others(measured).filter(limited).collect();
    for (size, limited) in by_size(context, &limited, |c| c.send_buffer_bytes, (WMEM, WMEM_MAX)) {
        outcome.findings.extend(finding(context, measured, limited, size));
    }
    outcome
}

fn in_flight(c: &TcpConnection) -> Option<u64> {
    in_flight_while(c, TcpLimit::SendBuffer, c.send_buffer_bytes.map(u64::from))
}

fn finding(
    context: &Context<'_>,
    measured: &TcpMeasurement,
    mut limited: Vec<&TcpConnection>,
    size: SizeOf,
) -> Option<Finding> {
    sort_by_figure(&mut limited, |c| in_flight(c).unwrap_or(0));
    let buffer = in_flight(limited.first()?).map(|bytes| wanted(context, bytes));
    let (said, change) = match size {
        SizeOf::Grown => (
            format!("Their send buffers have grown to the limit of {WMEM}."),
            buffer.and_then(|buffer| grow_third(context, WMEM, buffer, WHY_GROW)),
        ),
        SizeOf::Capped => (
            format!(
                "The application sets SO_SNDBUF, and {WMEM_MAX} is the largest that it gets; the \
                 kernel then does not grow the buffer. Without SO_SNDBUF it would, up to {WMEM}."
            ),
            buffer.and_then(|buffer| grow_cap(context, WMEM_MAX, buffer, WHY_CAP)),
        ),
        SizeOf::Other => (
            format!(
                "Neither {WMEM} nor {WMEM_MAX} limits them: the application sets a smaller \
                 SO_SNDBUF. Without it the kernel would grow the buffer."
            ),
            None,
        ),
    };
    let waits = limited_per_second(measured, limited.iter().copied(), TcpLimit::SendBuffer);
    let severity = severity::of_limit(waits, change.is_some());
    let count = text::count(limited.len() as u64, "connection");
    let finding = Finding::new(severity, format!("A full send buffer limits {count}"));
    let finding = add_evidence(finding, sentences(&limited, figures)).evidence(said);
    Some(match change {
        Some(change) => finding.change(change),
        None => finding,
    })
}

const WHY_GROW: &str = "Twice the bytes in flight of the worst connection, with the kernel's \
    overhead; the buffer of a connection grows with its congestion window only.";
const WHY_CAP: &str = "Applications may then set a buffer that holds the bytes in flight. It takes \
    effect when they set it again.";

fn figures(c: &TcpConnection) -> String {
    let size = |what: &str, bytes: Option<u64>| Some(format!("{what} {}", text::bytes(bytes?)));
    let share = text::percent(limited_share(c, TcpLimit::SendBuffer));
    let parts = [
        Some(format!("limited {share} of the time")),
        size("buffer", c.send_buffer_bytes.map(u64::from)),
        size("in flight", in_flight(c)),
        c.min_rtt_ns.map(|ns| format!("RTT {}", text::time(ns))),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
