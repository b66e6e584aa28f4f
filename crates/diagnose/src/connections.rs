//! TCP connections for checks: which count, how long they were limited, and how they are named.
//!
//! Input: a measurement of TCP, which may come from a file. Output: sane figures and harmless text.

use crate::{CheckOutcome, Context, text};
use nearpath_model::Finding;
use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpListener, TcpMeasurement, TcpState};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Connections that a finding names, and remote addresses; the rest is counted.
const NAMED: usize = 3;
/// Share of the time from which a limit is worth a finding: below it, something else limits the connection.
pub(crate) const NOTABLE_LIMIT: f64 = 0.2;
/// Less than this part of a window or buffer in flight does not fill it: a buffer holds its data about twice, and the
/// round-trip time may be twice its minimum.
const LEAST_OF_ALLOWED: u64 = 8;
/// A limit for less than this may be the start of a transfer, in seconds.
const LEAST_LIMITED_S: f64 = 0.5;

impl<'a> Context<'a> {
    /// The measurement of TCP; notes it if there is none.
    pub(crate) fn tcp_measured(&self, outcome: &mut CheckOutcome) -> Option<&'a TcpMeasurement> {
        if self.tcp.is_none() {
            outcome.not_checked("TCP connections were not measured");
        }
        self.tcp
    }

    /// A sysctl as one number.
    pub(crate) fn sysctl(&self, name: &str) -> Option<u64> {
        self.host.sysctls.get(name)?.trim().parse().ok()
    }

    /// A sysctl as three numbers: `tcp_rmem`, `tcp_wmem`, `tcp_mem`.
    pub(crate) fn three(&self, name: &str) -> Option<[u64; 3]> {
        let words = self.host.sysctls.get(name)?.split_ascii_whitespace();
        let numbers: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        numbers.try_into().ok()
    }
}

/// The established connections with other hosts. Those within this host have no path that could be too long, and their
/// limits are its CPUs.
pub(crate) fn with_others(measured: &TcpMeasurement) -> impl Iterator<Item = &TcpConnection> {
    let was_established =
        |state| !matches!(state, TcpState::SynSent | TcpState::SynRecv | TcpState::NewSynRecv);
    measured.connections.iter().filter(move |c| was_established(c.state) && !is_within_host(c))
}

/// Whether both ends are on this host: packets to an own address are delivered by the loopback interface.
pub(crate) fn is_within_host(connection: &TcpConnection) -> bool {
    let (src, dst) = (connection.src.to_canonical(), connection.dst.to_canonical());
    src == dst || dst.is_loopback()
}

/// Whether the handshake is known to have left out window scaling: the window is then at most 64 KiB.
pub(crate) fn lacks_scaling(connection: &TcpConnection) -> bool {
    connection.options.is_some_and(|options| options.window_scale.is_none())
}

/// How long the measurement took, in seconds; `None` if it does not say.
pub(crate) fn duration_s(measured: &TcpMeasurement) -> Option<f64> {
    Some(measured.duration_s).filter(|seconds| seconds.is_finite() && *seconds > 0.0)
}

/// Something that was counted over the measurement, for each second.
pub(crate) fn per_second(measured: &TcpMeasurement, count: u64) -> f64 {
    count as f64 / duration_s(measured).unwrap_or(10.0)
}

/// Share of the observed time in which this limited a connection.
pub(crate) fn limited_share(connection: &TcpConnection, limit: TcpLimit) -> f64 {
    let seconds = limited_s(connection, limit);
    if seconds > 0.0 { (seconds / connection.observed_s).min(1.0) } else { 0.0 }
}

/// How long this limited a connection, in seconds.
pub(crate) fn limited_s(connection: &TcpConnection, limit: TcpLimit) -> f64 {
    let sane = |seconds: f64| if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
    let limited = connection.limits.get(&limit).copied().map_or(0.0, sane);
    limited.min(sane(connection.observed_s))
}

/// Whether this limited a connection for a notable part of the time.
pub(crate) fn is_limited(connection: &TcpConnection, limit: TcpLimit) -> bool {
    limited_s(connection, limit) >= LEAST_LIMITED_S
        && limited_share(connection, limit) >= NOTABLE_LIMIT
}

/// Seconds in each second in which connections were limited, summed over them.
pub(crate) fn limited_per_second<'a>(
    measured: &TcpMeasurement,
    connections: impl IntoIterator<Item = &'a TcpConnection>,
    limit: TcpLimit,
) -> f64 {
    let seconds: f64 = connections.into_iter().map(|c| limited_s(c, limit)).sum();
    seconds / duration_s(measured).unwrap_or(10.0)
}

/// Whether this end mostly receives.
pub(crate) fn is_receiving(connection: &TcpConnection) -> bool {
    connection.interval.bytes_received > connection.interval.bytes_sent
}

/// Bytes that are in flight at the rate of the interval: bytes per second × minimum round-trip time. `None` if one of
/// them is unknown, or nothing was transferred.
pub(crate) fn bytes_in_flight(connection: &TcpConnection) -> Option<u64> {
    let counts = &connection.interval;
    let (bytes, measured) = if is_receiving(connection) {
        (counts.bytes_received, None)
    } else {
        (counts.bytes_acked, connection.bandwidth_delay_bytes())
    };
    let observed = Some(connection.observed_s).filter(|s| s.is_finite() && *s > 0.0)?;
    let rtt_ns = connection.min_rtt_ns.or(connection.receiver_rtt_ns)?;
    let product = bytes as f64 / observed * rtt_ns as f64 / 1e9;
    Some((product as u64).max(measured.unwrap_or(0))).filter(|bytes| *bytes > 0)
}

/// Bytes that were in flight while this limited a connection, at most what its window or buffer allows; `None` if that
/// is unknown, or so much less than it allows that something else is the limit: bursts of the application.
pub(crate) fn in_flight_while(
    connection: &TcpConnection,
    limit: TcpLimit,
    allows: Option<u64>,
) -> Option<u64> {
    let share = Some(limited_share(connection, limit)).filter(|share| *share > 0.0)?;
    let while_limited = (bytes_in_flight(connection)? as f64 / share) as u64;
    let Some(allows) = allows.filter(|allows| *allows > 0) else { return Some(while_limited) };
    (while_limited >= allows / LEAST_OF_ALLOWED).then(|| while_limited.min(allows))
}

/// Whether a queue stands in the path: the round-trip time is twice its minimum, and 1 ms above it. The path is then
/// full, whatever window or buffer seems to be the limit, and a larger one would only make the queue longer.
pub(crate) fn has_queue(connection: &TcpConnection) -> bool {
    let rtt = match is_receiving(connection) {
        true => connection.receiver_rtt_ns.or(connection.rtt_ns),
        false => connection.rtt_ns,
    };
    let (Some(rtt), Some(min)) = (rtt, connection.min_rtt_ns) else { return false };
    rtt > min.saturating_mul(2) && rtt > min.saturating_add(1_000_000)
}

/// `10.0.0.1:80 - 10.0.0.2:5000 (nginx 4711)`.
pub(crate) fn name(connection: &TcpConnection) -> String {
    let TcpConnection { src, sport, dst, dport, .. } = connection;
    let ends = format!("{} - {}", end(*src, *sport), end(*dst, *dport));
    with_process(ends, connection.comm.as_deref(), connection.pid)
}

/// `0.0.0.0:80 (nginx 4711)`.
pub(crate) fn listener_name(listener: &TcpListener) -> String {
    let end = end(listener.src, listener.sport);
    with_process(end, listener.comm.as_deref(), listener.pid)
}

fn end(address: IpAddr, port: u16) -> String {
    SocketAddr::new(address.to_canonical(), port).to_string()
}

fn with_process(what: String, comm: Option<&str>, pid: Option<u32>) -> String {
    match (comm, pid) {
        (Some(comm), Some(pid)) => format!("{what} ({} {pid})", text::clean(comm)),
        (Some(comm), None) => format!("{what} ({})", text::clean(comm)),
        _ => what,
    }
}

/// A sentence for each of the first connections with its figures, and one that counts the rest.
pub(crate) fn sentences(
    connections: &[&TcpConnection],
    figures: impl Fn(&TcpConnection) -> String,
) -> Vec<String> {
    let named = connections.iter().take(NAMED);
    let mut said: Vec<String> = named.map(|c| format!("{}: {}.", name(c), figures(c))).collect();
    let rest = connections.get(NAMED..).unwrap_or_default();
    if !rest.is_empty() {
        let count = text::count(rest.len() as u64, "more connection");
        said.push(format!("And {count}, with {}.", remotes(rest)));
    }
    said
}

/// `10.0.0.2 (31), 10.0.0.3 (4) and 3 more addresses`: the other ends, those of most connections first.
pub(crate) fn remotes(connections: &[&TcpConnection]) -> String {
    let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for connection in connections {
        *counts.entry(connection.dst.to_canonical()).or_default() += 1;
    }
    let mut counts: Vec<(IpAddr, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(address, count)| (Reverse(*count), *address));
    let named = counts.iter().take(NAMED);
    let mut words: Vec<String> =
        named.map(|(address, count)| format!("{address} ({count})")).collect();
    let rest = counts.len().saturating_sub(NAMED);
    if rest > 0 {
        words.push(format!("{rest} more address{}", if rest == 1 { "" } else { "es" }));
    }
    text::list(&words)
}

/// Adds sentences of evidence.
pub(crate) fn add_evidence(
    mut finding: Finding,
    sentences: impl IntoIterator<Item = String>,
) -> Finding {
    finding.evidence.extend(sentences);
    finding
}

/// Sorts by a figure, the largest first; equal ones by their ends.
pub(crate) fn sort_by_figure(
    connections: &mut [&TcpConnection],
    figure: impl Fn(&TcpConnection) -> u64,
) {
    connections.sort_by_key(|c| (Reverse(figure(c)), c.src, c.sport, c.dst, c.dport));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(src: &str, dst: &str) -> TcpConnection {
        TcpConnection::between((src.parse().unwrap(), 80), (dst.parse().unwrap(), 5_000))
    }

    #[test]
    fn connections_within_the_host_are_recognized() {
        for (src, dst, within) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.2", true),
            ("::1", "::1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("::ffff:10.0.0.1", "::ffff:10.0.0.2", false),
        ] {
            assert_eq!(is_within_host(&between(src, dst)), within, "{src} {dst}");
        }
    }

    #[test]
    fn limits_are_shares_whatever_a_file_says() {
        let mut connection = between("10.0.0.1", "10.0.0.2");
        for (seconds, observed, share) in [
            (5.0, 10.0, 0.5),
            (50.0, 10.0, 1.0),
            (-1.0, 10.0, 0.0),
            (f64::NAN, 10.0, 0.0),
            (1.0, f64::NAN, 0.0),
            (1.0, 0.0, 0.0),
        ] {
            connection.observed_s = observed;
            connection.limits.insert(TcpLimit::Path, seconds);
            let found = limited_share(&connection, TcpLimit::Path);
            assert_eq!(found, share, "{seconds} of {observed}");
        }
    }

    #[test]
    fn the_first_connections_are_named_and_the_rest_counted() {
        let mut first = between("::ffff:10.0.0.1", "10.0.0.2");
        (first.comm, first.pid) = (Some("ng\nx".to_owned()), Some(7));
        let others: Vec<TcpConnection> =
            (3..9).map(|n| between("10.0.0.1", &format!("10.0.0.{n}"))).collect();
        let all: Vec<&TcpConnection> = [&first].into_iter().chain(&others).collect();
        let said = sentences(&all, |_| "x".to_owned());
        assert_eq!(said[0], "10.0.0.1:80 - 10.0.0.2:5000 (ng x 7): x.");
        assert_eq!(
            said[3],
            "And 4 more connections, with 10.0.0.5 (1), 10.0.0.6 (1), 10.0.0.7 (1) and 1 more \
             address."
        );
        assert_eq!(said.len(), 4);
    }
}
