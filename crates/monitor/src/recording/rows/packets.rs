//! Locality, accepts, drops, and TCP connections.

use super::cost;
use crate::collect::name_of;
use crate::recording::batch::{Batch, Cell};
use crate::recording::table::Table;
use crate::runner::Since;
use nearpath_model::accepts::AcceptMeasurement;
use nearpath_model::drops::DropMeasurement;
use nearpath_model::locality::{Distances, Locality};
use nearpath_model::tcp::{TcpConnection, TcpLimit, TcpMeasurement};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Connections of an interval that have rows: those with the most bytes.
const CONNECTIONS_MAX: usize = 200;

/// Packets by distance and by pair of CPUs.
pub fn locality(now: &Locality, earlier: Option<&Locality>) -> Batch {
    let nothing = Locality::default();
    let before = earlier.unwrap_or(&nothing);
    let interval = now.since_reading(before);
    let mut batch = Batch::now(interval.duration_s);
    distances(&mut batch, "rx", &interval.rx);
    distances(&mut batch, "tx", &interval.tx);
    for pair in &interval.places {
        let place = &pair.place;
        batch.push(
            Table::LocalityCpus,
            [
                name_of(&pair.direction).as_str().into(),
                place.from_cpu.0.into(),
                place.to_cpu.0.into(),
                place.from_node.map(|node| node.0).into(),
                place.to_node.map(|node| node.0).into(),
                place.count.into(),
            ],
        );
    }
    cost(&mut batch, "locality", now.into(), before.into());
    batch
}

fn distances(batch: &mut Batch, direction: &str, packets: &Distances) {
    for (distance, count) in packets.by_name() {
        batch.push(Table::Locality, [direction.into(), distance.into(), count.into()]);
    }
}

/// Connections accepted by listener and distance.
pub fn accepts(now: &AcceptMeasurement, earlier: Option<&AcceptMeasurement>) -> Batch {
    let nothing = AcceptMeasurement::default();
    let before = earlier.unwrap_or(&nothing);
    let interval = now.since(before);
    let mut batch = Batch::now(now.duration_s - before.duration_s);
    for listener in &interval.listeners {
        let places = &listener.places;
        for (distance, count) in places.by_name() {
            let name = Cell::from(&listener.local);
            let row = [name, listener.netns.into(), distance.into(), count.into()];
            if count > 0 {
                batch.push(Table::Accepts, row);
            }
        }
    }
    cost(&mut batch, "accepts", now.into(), before.into());
    batch
}

/// Packets dropped.
pub fn drops(now: &DropMeasurement, earlier: Option<&DropMeasurement>) -> Batch {
    let nothing = DropMeasurement::default();
    let before = earlier.unwrap_or(&nothing);
    let interval = now.since(before);
    let mut batch = Batch::now(now.duration_s - before.duration_s);
    for drop in &interval.drops {
        batch.push(
            Table::Drops,
            [
                drop.reason.as_ref().into(),
                Cell::from(&drop.function),
                drop.device.as_ref().into(),
                Cell::from(&drop.protocol),
                drop.packets.into(),
                drop.bytes.into(),
            ],
        );
    }
    if interval.no_room.packets > 0 {
        let [reason, function, protocol] = ["others", "others", "others"].map(Cell::from);
        let packets = interval.no_room.packets.into();
        let row = [reason, function, Cell::Null, protocol, packets, Cell::Null];
        batch.push(Table::Drops, row);
    }
    cost(&mut batch, "drops", now.into(), before.into());
    batch
}

/// Connections with traffic.
pub fn tcp(now: &TcpMeasurement, earlier: Option<&TcpMeasurement>) -> Batch {
    let nothing = TcpMeasurement::default();
    let before = earlier.unwrap_or(&nothing);
    let interval = now.since(before);
    let mut batch = Batch::now(now.duration_s - before.duration_s);
    let is_busy = |c: &&TcpConnection| c.interval.segments_in + c.interval.segments_out > 0;
    let mut busy: Vec<&TcpConnection> = interval.connections.iter().filter(is_busy).collect();
    busy.sort_by_key(|connection| Reverse(connection.interval.bytes()));
    let mut limits: BTreeMap<TcpLimit, f64> = BTreeMap::new();
    for (limit, seconds) in busy.iter().flat_map(|connection| &connection.limits) {
        *limits.entry(*limit).or_default() += seconds;
    }
    for (limit, seconds) in limits {
        batch.push(Table::TcpLimits, [name_of(&limit).as_str().into(), seconds.into()]);
    }
    for connection in busy.iter().take(CONNECTIONS_MAX) {
        let counts = &connection.interval;
        batch.push(
            Table::Tcp,
            [
                std::net::SocketAddr::new(connection.src, connection.sport)
                    .to_string()
                    .as_str()
                    .into(),
                std::net::SocketAddr::new(connection.dst, connection.dport)
                    .to_string()
                    .as_str()
                    .into(),
                connection.comm.as_ref().into(),
                connection.rtt_ns.into(),
                connection.rttvar_ns.into(),
                connection.min_rtt_ns.into(),
                counts.bytes_acked.into(),
                counts.bytes_received.into(),
                counts.segments_out.into(),
                counts.segments_in.into(),
                counts.retransmits.into(),
            ],
        );
    }
    cost(&mut batch, "tcp", now.into(), before.into());
    batch
}
