//! Round-trip times of connections, and what limits them.

use super::{Own, name_of, own};
use crate::metrics::Id;
use crate::store::Store;
use nearpath_model::histogram::{bucket, upper_ns};
use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpMeasurement};
use std::collections::BTreeMap;

/// Adds what was measured since an earlier reading: of connections that had traffic.
pub fn tcp(store: &mut Store, now: &TcpMeasurement, earlier: Option<&TcpMeasurement>) {
    let nothing = TcpMeasurement::default();
    let before = earlier.unwrap_or(&nothing);
    let interval = now.since(before);
    let mut limits: BTreeMap<TcpLimit, f64> = BTreeMap::new();
    let busy = |c: &&TcpConnection| c.interval.segments_in + c.interval.segments_out > 0;
    for connection in interval.connections.iter().filter(busy) {
        observe(store, Id::TcpRtt, connection.rtt_ns);
        observe(store, Id::TcpRttvar, connection.rttvar_ns);
        for (limit, seconds) in &connection.limits {
            *limits.entry(*limit).or_default() += seconds;
        }
    }
    for (limit, seconds) in limits {
        store.add(Id::TcpLimited, &[&name_of(&limit)], seconds);
    }
    own(store, "tcp", now.into(), before.into());
}

fn observe(store: &mut Store, id: Id, ns: Option<u64>) {
    if let Some(ns) = ns {
        store.observe(id, &[], &[(upper_ns(bucket(ns)), 1)], ns);
    }
}

impl From<&TcpMeasurement> for Own {
    fn from(tcp: &TcpMeasurement) -> Self {
        Self {
            observed_s: tcp.duration_s,
            duration_s: tcp.duration_s,
            events_lost: tcp.events_lost,
            // Reading sockets is in the daemon's own time.
            cpu_percent: tcp.cost.programs.map_or(0.0, |cost| cost.cpu_percent),
        }
    }
}
