//! Connections whose full segments are lost while small ones arrive: the path takes less than its MTU seems to be, and the
//! ICMP message that would say so does not arrive (a PMTU black hole).
//!
//! Input: the measured connections. Output: at most one finding. Such a connection sends the same full segment again and
//! again, and nothing of it is acknowledged, while a smaller segment behind it was (SACK), or while small segments of another
//! connection with the same peer are.
//!
//! Rules: RFC 2923 (2.1), RFC 4821; Documentation/networking/ip-sysctl.rst (`tcp_mtu_probing`); tracepath(8).

use crate::connections::{add_evidence, is_limited, limited_per_second, sentences, with_others};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpMeasurement};
use nearpath_model::{Finding, Subject, Whose};

pub(super) const CHECK: Check = Check::new(
    "tcp_path_mtu",
    "connections whose full segments are lost while small ones arrive",
    run,
)
.of(Whose::Network);

/// Timeouts in a row from which a loss is no accident.
const TIMEOUTS: u8 = 2;
/// Segments of less than this part of a full one are small.
const SMALL: f64 = 0.9;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(measured) = context.tcp_measured(&mut outcome) else { return outcome };
    outcome.findings.extend(finding(context, measured));
    outcome
}

fn finding(context: &Context<'_>, measured: &TcpMeasurement) -> Option<Finding> {
    let standing: Vec<&TcpConnection> =
        with_others(measured).filter(|c| is_black_hole(c, measured)).collect();
    let first = standing.first()?;
    let count = text::count(standing.len() as u64, "connection");
    let verb = if standing.len() == 1 { "stands" } else { "stand" };
    let seconds = limited_per_second(measured, standing.iter().copied(), TcpLimit::Timeouts);
    let title = format!("{count} {verb}: full segments are lost, small ones arrive");
    let finding = Finding::new(severity::of_limit(seconds, true), title)
        .about(standing.iter().map(|c| Subject::Port(c.sport)));
    let dst = first.dst.to_canonical();
    let probing = context.sysctl("net.ipv4.tcp_mtu_probing");
    let mut finding = add_evidence(finding, sentences(&standing, figures)).evidence(format!(
        "The path takes less than its MTU seems to be, and the ICMP message that says so is lost: tracepath -n {dst} shows \
         where; let ICMP \"fragmentation needed\" (IPv6: \"packet too big\") pass there.",
    ));
    if probing.is_none_or(|probing| probing == 0) {
        finding = finding.evidence(
            "Until then: sysctl -w net.ipv4.tcp_mtu_probing=1 lets TCP find a size that passes; ip route change ADDRESS … \
             mtu 1400 sets one.",
        );
    }
    finding.cost.seconds_per_second = Some(seconds);
    Some(finding)
}

/// Whether its full segments are lost, and small ones are not.
pub(super) fn is_black_hole(c: &TcpConnection, measured: &TcpMeasurement) -> bool {
    stands(c) && small_ones_arrive(c, measured)
}

/// Whether it sends a full segment again and again, and nothing is acknowledged.
fn stands(connection: &TcpConnection) -> bool {
    let timeouts = connection.unanswered_timeouts.max(connection.backoff).unwrap_or(0);
    let is_full = connection.mss.is_some_and(|mss| connection.send_queue_bytes >= mss);
    is_full
        && timeouts >= TIMEOUTS
        && connection.interval.bytes_acked == 0
        && is_limited(connection, TcpLimit::Timeouts)
}

/// Whether a smaller segment was acknowledged out of order, or small ones of another connection with the same peer are.
fn small_ones_arrive(connection: &TcpConnection, measured: &TcpMeasurement) -> bool {
    let is_same = |other: &&TcpConnection| other.dst == connection.dst;
    let mut others = measured.connections.iter().filter(is_same).filter(|other| {
        let sent = &other.interval;
        let mean = sent.bytes_acked as f64 / sent.delivered.max(1) as f64;
        let full = f64::from(other.mss.unwrap_or(0));
        sent.bytes_acked > 0 && sent.delivered > 0 && mean < SMALL * full
    });
    connection.sacked.is_some_and(|sacked| sacked > 0) || others.next().is_some()
}

fn figures(connection: &TcpConnection) -> String {
    format!(
        "nothing acknowledged of {}, sent in segments of {} bytes, after {}",
        text::bytes(connection.send_queue_bytes.into()),
        connection.mss.unwrap_or(0),
        text::count(
            connection.unanswered_timeouts.max(connection.backoff).unwrap_or(0).into(),
            "timeout"
        )
    )
}
