//! Connections that wait for their server to accept them.
//!
//! Input: the measured connections and listeners. Output: at most one finding. The kernel completes the handshake, so that
//! the client believes to be served, and may have sent its request: it waits until the process calls accept(2), or gives
//! up. A longer queue is no help; `listen_overflows` has what does not fit into it.
//!
//! Rules: listen(2), accept(2); `inet_csk_accept` of net/ipv4/inet_connection_sock.c.

use crate::connections::{is_limited, limited_per_second, listener_name, with_others};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpListener, TcpMeasurement};
use nearpath_model::{Finding, Subject, Whose};
use std::cmp::Reverse;

pub(super) const CHECK: Check =
    Check::new("tcp_unaccepted", "connections that wait for their server to accept them", run)
        .of(Whose::Application)
        .explained_by(&["slow_packets"]);

/// Listeners that are named.
const NAMED: usize = 3;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measured) = context.tcp_measured(&mut outcome) else { return outcome };
    outcome.findings.extend(finding(measured));
    outcome
}

fn finding(measured: &TcpMeasurement) -> Option<Finding> {
    let waits = |c: &&TcpConnection| is_limited(c, TcpLimit::Backlog);
    let waiting: Vec<&TcpConnection> = with_others(measured).filter(waits).collect();
    let of = |listener: &TcpListener| {
        waiting.iter().filter(|c| c.sport == listener.sport).count() as u64
    };
    let mut listeners: Vec<(&TcpListener, u64)> =
        measured.listeners.iter().map(|its| (its, of(its))).filter(|(_, n)| *n > 0).collect();
    listeners.sort_by_key(|(its, waiting)| (Reverse(*waiting), its.sport));
    let count = text::count(waiting.len() as u64, "connection");
    let verb = if waiting.len() == 1 { "waits" } else { "wait" };
    let (first, _) = listeners.first()?;
    let server = match (listeners.len(), first.comm.as_deref()) {
        (1, Some(comm)) => format!("{} to accept them", text::clean(comm)),
        (1, None) => format!("the server of port {} to accept them", first.sport),
        _ => "servers to accept them".to_owned(),
    };
    let seconds = limited_per_second(measured, waiting.iter().copied(), TcpLimit::Backlog);
    let title = format!("{count} {verb} for {server}");
    let mut finding = Finding::new(severity::of_limit(seconds, true), title);
    for (listener, waiting) in listeners.iter().take(NAMED) {
        finding = finding.about([Subject::Port(listener.sport)]).evidence(format!(
            "{}: {} of at most {} in its queue at the end, {waiting} of them for long.",
            listener_name(listener),
            listener.backlog,
            listener.backlog_limit
        ));
    }
    finding.cost.seconds_per_second = Some(seconds);
    Some(
        finding
            .evidence("The kernel has completed their handshakes: their clients wait for an answer.")
            .evidence(
                "Look at what the process does instead of accept(2) (cat /proc/PID/stack, strace -p PID): neither the \
                 network nor a longer queue is to blame.",
            ),
    )
}
