//! Connections that wait for an application that does not read its data.
//!
//! Input: the measured connections. Output: a finding for applications of this host, and one for those of peers. Data that
//! is not read fills the receive buffer, the window closes, and the sender stops: neither the network nor a larger buffer
//! is to blame.
//!
//! Rules: RFC 9293 (3.8.6, the window); `__tcp_select_window` of net/ipv4/tcp_output.c.

use crate::connections::{
    add_evidence, is_limited, is_receiving, limited_per_second, limited_share, sentences,
    sort_by_figure, with_others,
};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpMeasurement, TcpState};
use nearpath_model::{Finding, Severity, Subject};

pub(super) const CHECK: Check =
    Check::new("tcp_reader", "connections that wait for an application to read", run)
        .of(nearpath_model::Whose::Application)
        .explained_by(&["slow_packets"]);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measured) = context.tcp_measured(&mut outcome) else { return outcome };
    let waits = |c: &&TcpConnection| is_limited(c, TcpLimit::Reader) && !c.closed;
    let (here, there): (Vec<_>, Vec<_>) =
        with_others(measured).filter(waits).partition(|c| is_read_here(c));
    outcome.findings.extend(of_this_host(measured, here));
    outcome.findings.extend(of_peers(measured, there));
    outcome
}

/// Whether it waits for the application of this end, which has unread data. Which end sent more before does not matter.
fn is_read_here(connection: &TcpConnection) -> bool {
    match (connection.receive_queue_bytes, connection.send_queue_bytes) {
        (0, 0) => is_receiving(connection),
        (unread, unsent) => unread > unsent,
    }
}

fn of_this_host(measured: &TcpMeasurement, mut waiting: Vec<&TcpConnection>) -> Option<Finding> {
    sort_by_figure(&mut waiting, |c| u64::from(c.receive_queue_bytes));
    let first = waiting.first()?;
    let seconds = limited_per_second(measured, waiting.iter().copied(), TcpLimit::Reader);
    // One that was left alone, like a paused download, is no problem of this interval.
    let is_in_use = waiting.iter().any(|c| c.interval.segments_received > 0);
    let severity = severity::of_limit(seconds, is_in_use);
    let count = text::count(waiting.len() as u64, "connection");
    let readers = match (waiting.iter().all(|c| c.pid == first.pid), first.comm.as_deref()) {
        (true, Some(comm)) => format!("{} to read", text::clean(comm)),
        _ => "applications of this host to read".to_owned(),
    };
    let verb = if waiting.len() == 1 { "waits" } else { "wait" };
    let finding = Finding::new(severity, format!("{count} {verb} for {readers}"))
        .about(waiting.iter().map(|c| Subject::Port(c.sport)))
        .evidence(match waiting.iter().all(|c| c.state == TcpState::CloseWait) {
            true => "Its peer has closed the connection, and data still waits unread: the application neither reads nor closes it.",
            false => "Data waits unread in its socket, and the closed window stops the sender.",
        });
    let mut finding = add_evidence(finding, sentences(&waiting, figures)).evidence(
        "Look at what the application does between two reads (perf top -p, strace -c -p): neither the network nor a \
         larger buffer is to blame.",
    );
    finding.cost.seconds_per_second = Some(seconds);
    Some(finding)
}

fn of_peers(measured: &TcpMeasurement, mut waiting: Vec<&TcpConnection>) -> Option<Finding> {
    sort_by_figure(&mut waiting, |c| u64::from(c.send_queue_bytes));
    waiting.first()?;
    let seconds = limited_per_second(measured, waiting.iter().copied(), TcpLimit::Reader);
    let count = text::count(waiting.len() as u64, "connection");
    let verb = if waiting.len() == 1 { "waits" } else { "wait" };
    let title = format!("{count} {verb} for the peer's application to read");
    let finding = Finding::new(Severity::Info, title).evidence(
        "Its window is closed, or opens slowly: data waits here until its application reads.",
    );
    let mut finding = add_evidence(finding, sentences(&waiting, figures));
    finding.cost.seconds_per_second = Some(seconds);
    Some(finding)
}

fn figures(c: &TcpConnection) -> String {
    let queue = match is_read_here(c) {
        true => format!("{} unread", text::bytes(c.receive_queue_bytes.into())),
        false => format!("{} in the send queue", text::bytes(c.send_queue_bytes.into())),
    };
    format!(
        "{queue} at the end, waiting for the reader {} of the time",
        text::percent(limited_share(c, TcpLimit::Reader))
    )
}
