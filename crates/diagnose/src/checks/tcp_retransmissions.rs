//! TCP segments that had to be sent again.
//!
//! Input: the counters of TCP, over the interval when there is an earlier reading. Output: at most one finding.
//!
//! Rules: RFC 4022 (`tcpRetransSegs`, `tcpOutSegs`, which excludes retransmissions),
//! Documentation/networking/snmp_counter.rst (`TcpExtTCPTimeouts`, `TcpExtTCPDSACKRecv`).

use crate::counters::ratio;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::Finding;

pub(super) const CHECK: Check = Check::new("tcp_retransmissions", "TCP segments sent again", run);

/// Fewer are common on any path that is longer than a cable.
const FLOOR: f64 = 1e-3;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let again = context.counter("Tcp.RetransSegs");
    let sent = context.counter("Tcp.OutSegs");
    let (Some(again), Some(sent)) = (again, sent) else {
        let why = context.why_unknown("host", "counters");
        outcome.not_checked(format!("Tcp.RetransSegs is unknown{why}"));
        return outcome;
    };
    let share = ratio(again, sent.saturating_add(again)).unwrap_or(0.0);
    if share < FLOOR {
        return outcome;
    }
    let since = context.since();
    let title = format!("{} retransmitted {since}", text::count(again, "TCP segment"));
    let severity = severity::of_retransmissions(context, again, share);
    let mut finding = Finding::new(severity, title).share(Some(share), "segments");
    if let Some(timeouts) = context.counter("TcpExt.TCPTimeouts").filter(|count| *count > 0) {
        finding = finding.evidence(format!(
            "{} expired: each stops a connection for 200 ms or more.",
            text::count(timeouts, "retransmission timeout")
        ));
    }
    if let Some(vain) = context.counter("TcpExt.TCPDSACKRecv").filter(|count| *count > 0) {
        finding = finding.evidence(format!(
            "{vain} arrived although the first copy had, too: the path reorders or delays."
        ));
    }
    outcome.findings.push(
        finding.evidence("nearpath measure tcp names the connections, and what limits each."),
    );
    outcome
}
