//! Which connections a diagnosis needs, of a hundred thousand: those with the most bytes, and those with the most of
//! each sign of trouble.

use nearpath_model::tcp::{TcpConnection, TcpLimit};
use std::collections::HashSet;

/// How notable a connection is, by each of the signs.
const SIGNS: [fn(&TcpConnection) -> u64; 8] = [
    |c| c.interval.bytes(),
    |c| c.interval.retransmits,
    |c| c.interval.timeouts.unwrap_or(0),
    |c| c.rttvar_ns.unwrap_or(0),
    |c| c.unsent_bytes.unwrap_or(0).into(),
    |c| limited_ms(c, &[TcpLimit::ReceiveWindow, TcpLimit::SendBuffer]),
    |c| if c.is_stuck() { limited_ms(c, &STUCK) } else { 0 },
    |c| limited_ms(c, &[TcpLimit::CongestionWindow, TcpLimit::Timeouts, TcpLimit::Reader]),
];

const STUCK: [TcpLimit; 3] = [TcpLimit::Backlog, TcpLimit::Timeouts, TcpLimit::Reader];

/// Busy connections first, among those that were limited equally long.
fn limited_ms(connection: &TcpConnection, limits: &[TcpLimit]) -> u64 {
    let seconds = limits.iter().filter_map(|limit| connection.limits.get(limit));
    (seconds.sum::<f64>() * 1e3) as u64
}

/// At most so many are kept.
pub(super) fn most(count: usize) -> usize {
    count.saturating_mul(SIGNS.len())
}

/// Keeps the `count` connections that are most notable by each sign, those with the most bytes first.
pub(super) fn keep(connections: &mut Vec<(u64, TcpConnection)>, count: usize) {
    let mut kept: HashSet<usize> = HashSet::new();
    for sign in SIGNS {
        let mut order: Vec<(u64, usize)> =
            connections.iter().enumerate().map(|(at, (_, c))| (sign(c), at)).collect();
        order.retain(|(value, _)| *value > 0);
        order.sort_by_key(|&(value, at)| (std::cmp::Reverse(value), at));
        kept.extend(order.into_iter().take(count).map(|(_, at)| at));
    }
    let mut at = 0;
    connections.retain(|_| {
        at += 1;
        kept.contains(&(at - 1))
    });
    connections.sort_by_key(|(_, c)| std::cmp::Reverse(c.interval.bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_in_trouble_are_kept_whatever_they_transfer() {
        let connection = |port: u16| {
            let end = (std::net::IpAddr::from([10, 0, 0, 1]), port);
            let mut connection = TcpConnection::between(end, end);
            connection.interval.bytes_sent = u64::from(port) * 1000;
            (u64::from(port), connection)
        };
        let mut all: Vec<_> = (1..1000).map(connection).collect();
        all[3].1.interval.timeouts = Some(2);
        all[5].1.limits.insert(TcpLimit::ReceiveWindow, 3.0);
        keep(&mut all, 2);
        let ports: Vec<u64> = all.iter().map(|(port, _)| *port).collect();
        assert_eq!(ports, [999, 998, 6, 4]);
    }
}
