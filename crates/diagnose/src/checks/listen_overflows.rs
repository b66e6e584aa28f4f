//! Connections dropped because a listener's accept queue was full.
//!
//! Input: the counters of TCP, over the interval when there is an earlier reading. Output: at most one
//! finding.
//!
//! Rules: Documentation/networking/snmp_counter.rst (`TcpExtListenOverflows`, `TcpExtListenDrops`),
//! `tcp_conn_request` and `tcp_v4_syn_recv_sock` of net/ipv4, listen(2) (the backlog is at most
//! `net.core.somaxconn`).

use crate::counters::ratio;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, ProposedChange, SettingFile};

pub(super) const CHECK: Check =
    Check::new("listen_overflows", "connections dropped as a listener's queue was full", run);

/// Beyond this many waiting connections a longer queue only makes them late.
const LARGEST_QUEUE: u64 = 65_535;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let overflows = context.counter("TcpExt.ListenOverflows");
    let drops = context.counter("TcpExt.ListenDrops");
    let (Some(overflows), Some(drops)) = (overflows, drops) else {
        let why = context.why_unknown("host", "counters");
        outcome.not_checked(format!("TcpExt.ListenOverflows is unknown{why}"));
        return outcome;
    };
    // Each overflow is a drop as well (`tcp_listendrop`).
    let lost = drops.max(overflows);
    if lost == 0 {
        return outcome;
    }
    let taken = context.counter("Tcp.PassiveOpens");
    let since = context.since();
    let title = format!("{} dropped by listeners {since}", text::count(lost, "connection"));
    let share = taken.and_then(|taken| ratio(lost, taken.saturating_add(lost)));
    let mut finding = Finding::new(severity::of_loss(context, lost, taken), title)
        .share(share, "connections")
        .evidence(format!("{overflows} of them found the accept queue full (ListenOverflows)."))
        .evidence(
            "A client tries again after 1 s or more. ss -ltn shows each queue (Recv-Q, Send-Q).",
        );
    let limit = context.host.sysctls.get("net.core.somaxconn");
    let limit = limit.and_then(|text| text.trim().parse::<u64>().ok());
    if let Some(now) = limit.filter(|now| overflows > 0 && *now < LARGEST_QUEUE) {
        finding = finding.change(ProposedChange::new(
            SettingFile::sysctl("net.core.somaxconn"),
            Some(now.to_string()),
            now.saturating_mul(2).min(LARGEST_QUEUE).to_string(),
            "A longer queue absorbs bursts, if the server also requests it in listen(2).",
        ));
    }
    outcome.findings.push(finding);
    outcome
}
