//! Servers that take long to answer what they have read: the part of a response time that is spent outside the kernel's path.
//!
//! Input: how long each server took from reading a request to sending the first packet of its answer. Output: one finding for
//! each of the slowest. It is `info`: nothing says how long an answer may take.
//!
//! Rule: none; 1 ms is what `slow` packets are compared with (`LATE_NS`).

use crate::severity::LATE_NS;
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::answers::ServerAnswers;
use nearpath_model::{Finding, Protocol, Severity, Subject, Whose};
use std::cmp::Reverse;

pub(super) const CHECK: Check =
    Check::new("answer_time", "servers that take long from a request to its answer", run)
        .of(Whose::Application);

/// Servers that are reported.
const NAMED: usize = 3;
/// Answers from which the times say something.
const ENOUGH: u64 = 10;
/// How late the slowest hundredth is, where most are fast, and of how many.
const SLOW_TAIL_NS: u64 = 10 * LATE_NS;
const ENOUGH_OF_TAIL: u64 = 300;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measured) = context.answers else {
        outcome.not_checked("no measurement: how long servers take to answer is not known");
        return outcome;
    };
    for unknown in &measured.unknown {
        let (fact, reason) = (text::clean(&unknown.fact), text::clean(&unknown.reason));
        outcome.not_checked(format!("{fact}: {reason}"));
    }
    let mut slow: Vec<&ServerAnswers> = measured.servers.iter().filter(|s| is_slow(s)).collect();
    slow.sort_by_key(|server| {
        (server.protocol == Protocol::Udp, Reverse(server.p50_ns), server.port)
    });
    outcome.findings = slow.into_iter().take(NAMED).map(finding).collect();
    outcome
}

fn is_slow(server: &ServerAnswers) -> bool {
    let is_usual = server.answers >= ENOUGH && server.p50_ns >= LATE_NS;
    is_usual || has_slow_tail(server)
}

fn has_slow_tail(server: &ServerAnswers) -> bool {
    server.answers >= ENOUGH_OF_TAIL && server.p99_ns >= SLOW_TAIL_NS
}

fn finding(server: &ServerAnswers) -> Finding {
    let who = match (&server.comm, server.port) {
        (Some(comm), _) => text::clean(comm),
        (None, port) => format!("The server of {} {port}", server.protocol),
    };
    let (percentile, ns) = match server.p50_ns >= LATE_NS {
        true => ("p50", server.p50_ns),
        false => ("p99", server.p99_ns),
    };
    // A UDP socket may also send without a request.
    let answer = match server.protocol {
        Protocol::Udp => "a read to its next packet",
        _ => "request to answer",
    };
    let title = format!("{who} takes {} from {answer} ({percentile})", text::time(ns));
    let process = server.pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
    let mut finding = Finding::new(Severity::Info, title)
        .about([Subject::Port(server.port)])
        .evidence(format!(
            "{} port {}{process}: {}; p50 {}, p99 {}, max {} from reading a request to sending the first packet of its answer.",
            server.protocol,
            server.port,
            text::count(server.answers, "answer"),
            text::time(server.p50_ns),
            text::time(server.p99_ns),
            text::time(server.max_ns)
        ))
        .evidence(
            "This time is spent in the application: computing, a lock, garbage collection, fsync, a request to another server, or \
             long polling. strace -f -r -p PID and perf trace show what it waits for.",
        );
    finding.cost.max_ns = Some(server.max_ns);
    finding
}
