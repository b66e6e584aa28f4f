//! `measure drops`: the number of dropped packets and the main reason in one line; then where, by flow, the meaning of
//! the reasons, and the kernel's own counters.

use super::histogram::direction;
use super::measurement::measured;
use super::table::{Column, Table, left, or_none, right};
use super::units::{bytes, digits, percent, percentage, printable};
use super::unknown::unknown;
use super::{heading, line};
use nearpath_model::Measurement;
use nearpath_model::drops::{
    CounterCheck, DeviceDrops, Drop, DropMeasurement, DropPer, MainReason, in_short,
};
use std::collections::BTreeMap;

/// The whole measurement, with `top` rows per table and the rest as one row.
pub fn drops(m: &DropMeasurement, top: usize) -> String {
    let mut out = String::new();
    line!(out, "{}", in_a_line(m));
    if let Some(others) = beyond(m).filter(|_| m.packets > 0) {
        line!(out, "counted by the kernel only: {others}");
    }
    line!(out);
    header(&mut out, m);
    if !m.drops.is_empty() {
        line!(out);
        out.push_str(&places(m, top));
        meanings(&mut out, m, top);
    }
    if !m.flows.is_empty() {
        line!(out);
        heading(&mut out, "flows");
        out.push_str(&flows(m));
    }
    if let Some(first) = m.groups.first() {
        line!(out);
        heading(&mut out, &format!("by {}", what(first.per)));
        out.push_str(&groups(m));
    }
    if !m.counters.is_empty() {
        line!(out);
        heading(&mut out, "the kernel's own counters");
        counters(&mut out, &m.counters);
    }
    if !m.devices.is_empty() {
        line!(out);
        heading(
            &mut out,
            "interfaces that counted drops, including packets that never had an sk_buff",
        );
        out.push_str(&devices(m));
    }
    if !m.unknown.is_empty() {
        line!(out);
        out.push_str(&unknown(&m.unknown, &[]));
    }
    out
}

/// `1,234 packets dropped in 10.0s (123/s): 98.0% receive buffer full (UDP port 9000)`.
pub fn in_a_line(m: &DropMeasurement) -> String {
    let time = digits(m.duration_s);
    let Some(main) = m.main.as_ref().filter(|_| m.packets > 0) else {
        return none_in_a_line(m, &time);
    };
    let packets = match m.packets {
        1 => "1 packet".to_owned(),
        many => format!("{} packets", thousands(many)),
    };
    let rate = digits(m.packets as f64 / m.duration_s.max(f64::MIN_POSITIVE));
    let why = main.meaning.as_deref().unwrap_or(&main.reason);
    let share = percent(main.share);
    printable(&format!("{packets} dropped in {time}s ({rate}/s): {share} {why}{}", whose(main)))
}

/// Without packets that were seen: what others have counted is the answer.
fn none_in_a_line(m: &DropMeasurement, time: &str) -> String {
    let of_device = |device: &DeviceDrops| {
        let counts = [
            (device.rx_dropped, "dropped on receive"),
            (device.rx_errors, "receive errors"),
            (device.tx_dropped, "dropped on transmit"),
            (device.tx_errors, "transmit errors"),
        ];
        let counts = counts.iter().filter(|(count, _)| *count > 0);
        let counts: Vec<String> =
            counts.map(|(count, what)| format!("{} {what}", thousands(*count))).collect();
        (!counts.is_empty()).then(|| format!("{} counted {}", device.device, counts.join(", ")))
    };
    let mut counted: Vec<String> =
        beyond(m).map(|what| format!("the kernel counted {what}")).into_iter().collect();
    counted.extend(m.devices.iter().filter_map(of_device));
    if counted.is_empty() {
        return format!("no packet dropped in {time}s");
    }
    printable(&format!("no dropped packet seen in {time}s; {}", counted.join("; ")))
}

/// Drops without `kfree_skb`, which only the kernel's counters show.
fn beyond(m: &DropMeasurement) -> Option<String> {
    const COUNTERS: [(&str, &str); 3] = [
        ("TcpExt.ListenDrops", "connection requests dropped: accept queue full"),
        ("TcpExt.TCPRcvQDrop", "TCP segments dropped: receive buffer full"),
        ("Ip.OutNoRoutes", "packets not sent: no route"),
    ];
    let rise = |name: &str| m.counters.iter().find(|check| check.counter == name);
    let parts = COUNTERS.iter().filter_map(|(name, what)| {
        let check = rise(name).filter(|check| check.seen.is_none() && check.most > 0)?;
        Some(format!("{} {what} ({name})", thousands(check.most)))
    });
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Properties common to the packets.
fn whose(main: &MainReason) -> String {
    let protocol = match (&main.protocol, main.port) {
        (Some(protocol), Some(port)) => Some(format!("{protocol} to port {port}")),
        (Some(protocol), None) => Some(protocol.clone()),
        (None, Some(port)) => Some(format!("to port {port}")),
        (None, None) => None,
    };
    let parts: Vec<String> = protocol.into_iter().chain(main.device.clone()).collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

/// `1,234,567`.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

fn header(out: &mut String, m: &DropMeasurement) {
    measured(out, &m.filter, m.duration_s);
    line!(*out, "dropped:      {} packets, {}", m.packets, bytes(m.bytes));
    let no_room = &m.no_room;
    if m.events_lost > 0 || no_room.packets > 0 || no_room.flow_packets > 0 {
        line!(
            *out,
            "not shown:    {} packets and {} packets of flows (tables full); {} events lost",
            no_room.packets,
            no_room.flow_packets,
            m.events_lost
        );
    }
    if m.extrapolated > 0 {
        line!(
            *out,
            "estimated:    {} packets were not looked at, to keep the overhead low; each counts as the next one",
            m.extrapolated
        );
    }
    match &m.cost {
        Some(cost) => line!(
            *out,
            "cost:         {}ns per drop, {} of one CPU",
            digits(cost.ns_per_event),
            percentage(cost.cpu_percent)
        ),
        None => line!(*out, "cost:         unknown (no drop while it was measured)"),
    }
}

fn part(packets: u64, m: &DropMeasurement) -> String {
    percent(packets as f64 / m.packets.max(1) as f64)
}

fn places(m: &DropMeasurement, top: usize) -> String {
    const COLUMNS: [Column; 8] = [
        right("PACKETS"),
        right("SHARE"),
        left("REASON").optional(),
        left("STAGE"),
        left("FUNCTION"),
        left("DEVICE").optional(),
        left("NETNS").optional(),
        left("PROTOCOL"),
    ];
    let several = m.drops.iter().any(|drop| Some(drop.netns) != m.drops.first().map(|d| d.netns));
    let mut table = Table::new(&COLUMNS);
    for drop in m.drops.iter().take(top) {
        let unnamed = || drop.ifindex.map(|index| format!("ifindex {index}"));
        table.row([
            drop.packets.to_string(),
            part(drop.packets, m),
            or_none(drop.reason.as_ref()),
            drop.stage.to_string(),
            drop.function.clone(),
            or_none(drop.device.clone().or_else(unnamed)),
            or_none(drop.netns.filter(|_| several).map(|inode| netns(m, inode))),
            drop.protocol.clone(),
        ]);
    }
    let shown = m.drops.iter().take(top).fold(0u64, |sum, drop| sum.saturating_add(drop.packets));
    let rest = m.packets.saturating_sub(shown);
    if rest > 0 {
        let mut row = vec![rest.to_string(), part(rest, m)];
        row.extend(
            (2..COLUMNS.len()).map(|i| if i == 3 { "others".to_owned() } else { String::new() }),
        );
        table.row(row);
    }
    table.render()
}

/// The name of a network namespace, or its inode.
fn netns(m: &DropMeasurement, inode: u32) -> String {
    m.netns_names.get(&inode).cloned().unwrap_or_else(|| inode.to_string())
}

/// The meaning of the reasons in the table.
fn meanings(out: &mut String, m: &DropMeasurement, top: usize) {
    let meanings: BTreeMap<&str, &str> = m
        .drops
        .iter()
        .take(top)
        .filter_map(|drop: &Drop| Some((drop.reason.as_deref()?, drop.meaning.as_deref()?)))
        .collect();
    if meanings.is_empty() {
        return;
    }
    line!(*out);
    for (reason, meaning) in meanings {
        line!(*out, "{}", printable(&format!("{reason}: {meaning}")));
    }
}

fn flows(m: &DropMeasurement) -> String {
    let mut table =
        Table::new(&[right("PACKETS"), right("SHARE"), left("REASON").optional(), left("FLOW")]);
    for flow in &m.flows {
        table.row([
            flow.packets.to_string(),
            part(flow.packets, m),
            or_none(flow.reason.as_ref()),
            flow.flow.clone(),
        ]);
    }
    table.render()
}

fn what(per: DropPer) -> &'static str {
    match per {
        DropPer::Reason => "reason",
        DropPer::Device => "device",
        DropPer::Location => "function",
        DropPer::Stage => "stage",
        DropPer::Protocol => "protocol",
        DropPer::Flow => "flow",
    }
}

fn groups(m: &DropMeasurement) -> String {
    let mut table = Table::new(&[right("PACKETS"), right("SHARE"), right("SIZE"), left("GROUP")]);
    for group in &m.groups {
        table.row([
            group.packets.to_string(),
            part(group.packets, m),
            bytes(group.bytes),
            group.name.clone(),
        ]);
    }
    table.render()
}

fn counters(out: &mut String, checks: &[CounterCheck]) {
    let mut table = Table::new(&[
        left("COUNTER"),
        left("DEVICE").optional(),
        right("ROSE"),
        right("SEEN"),
        left("AGREES").optional(),
    ]);
    for check in checks {
        let rose = if check.least == check.most {
            format!("+{}", check.most)
        } else {
            format!("+{} to {}", check.least, check.most)
        };
        table.row([
            check.counter.clone(),
            or_none(check.device.as_ref()),
            rose,
            or_none(check.seen),
            or_none(check.agrees.map(|agrees| if agrees { "yes" } else { "no" })),
        ]);
    }
    out.push_str(&table.render());
    if checks.iter().any(|check| check.agrees == Some(false)) {
        line!(*out, "on mismatch, other code paths also increment the counter");
    }
}

fn devices(m: &DropMeasurement) -> String {
    let mut table = Table::new(&[
        left("DEVICE"),
        right("RX-DROPPED"),
        right("RX-ERRORS"),
        right("TX-DROPPED"),
        right("TX-ERRORS"),
    ]);
    for device in &m.devices {
        let counts = [device.rx_dropped, device.rx_errors, device.tx_dropped, device.tx_errors];
        table.row(std::iter::once(device.device.clone()).chain(counts.map(|n| n.to_string())));
    }
    table.render()
}

/// For packets followed by `measure stages`: the stage after which they were dropped, and why. Empty if none were.
pub(super) fn of_stages(m: &Measurement, width: Option<usize>) -> String {
    const ROWS: usize = 10;
    if m.drops.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        right("DROPPED"),
        left("AFTER"),
        left("REASON").optional(),
        left("FUNCTION").gives_way(2),
        left("DEVICE").optional().gives_way(1),
    ]);
    for drop in m.drops.iter().take(ROWS) {
        table.row([
            drop.packets.to_string(),
            format!("{} {}", direction(drop.direction), drop.after),
            or_none(drop.reason.as_ref()),
            drop.function.clone(),
            or_none(drop.device.as_ref()),
        ]);
    }
    let shown = m.drops.iter().take(ROWS).fold(0u64, |sum, drop| sum.saturating_add(drop.packets));
    let rest = m.packets.dropped.saturating_sub(shown);
    if rest > 0 {
        let none = String::new;
        table.row([rest.to_string(), "others".to_owned(), none(), none(), none()]);
    }
    let mut out = String::from("\n");
    out.push_str(&width.map_or_else(|| table.render(), |width| table.render_within(width).0));
    if let Some(meaning) = m.drops.first().and_then(|drop| drop.meaning.as_deref()) {
        line!(out, "most: {}", printable(in_short(meaning)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{Direction, Packets, StageDrop};

    #[test]
    fn packets_that_were_followed_are_dropped_after_a_stage() {
        let drop = |packets| StageDrop {
            direction: Direction::Rx,
            after: "udp_rcv".to_owned(),
            reason: Some("SOCKET_RCVBUFF".to_owned()),
            meaning: Some("receive buffer full".to_owned()),
            function: "udp_queue_rcv_one_skb".to_owned(),
            device: Some("eth0".to_owned()),
            netns: None,
            packets,
        };
        let packets = Packets { dropped: 13, ..Packets::default() };
        let mut m = Measurement { packets, ..Measurement::default() };
        assert_eq!(of_stages(&m, None), "");
        m.drops = vec![drop(12)];
        assert_eq!(
            of_stages(&m, None),
            "\nDROPPED  AFTER       REASON          FUNCTION               DEVICE\n     \
             12  RX udp_rcv  SOCKET_RCVBUFF  udp_queue_rcv_one_skb  eth0\n      \
             1  others      -               -                      -\nmost: receive buffer full\n"
        );
    }

    #[test]
    fn the_first_line_is_the_answer() {
        let main = MainReason {
            reason: "SOCKET_RCVBUFF".to_owned(),
            meaning: Some("receive buffer full".to_owned()),
            share: 0.98,
            protocol: Some("UDP".to_owned()),
            port: Some(9000),
            device: None,
        };
        let mut m = DropMeasurement::default();
        (m.duration_s, m.packets, m.main) = (10.0, 1234, Some(main));
        assert_eq!(
            in_a_line(&m),
            "1,234 packets dropped in 10.0s (123/s): 98.0% receive buffer full (UDP to port 9000)"
        );
        m.packets = 1;
        assert!(in_a_line(&m).starts_with("1 packet dropped in 10.0s (0.100/s)"));
        let mut none = DropMeasurement::default();
        assert_eq!(in_a_line(&none), "no packet dropped in 0.000s");
        none.counters.push(CounterCheck {
            counter: "TcpExt.ListenDrops".to_owned(),
            device: None,
            least: 45,
            most: 45,
            seen: None,
            agrees: None,
        });
        none.devices.push(DeviceDrops {
            device: "eth0".to_owned(),
            rx_dropped: 1200,
            rx_errors: 0,
            tx_dropped: 0,
            tx_errors: 0,
        });
        assert_eq!(
            in_a_line(&none),
            "no dropped packet seen in 0.000s; the kernel counted 45 connection requests dropped: \
             accept queue full (TcpExt.ListenDrops); eth0 counted 1,200 dropped on receive"
        );
        assert_eq!((thousands(0), thousands(1_234_567)), ("0".to_owned(), "1,234,567".to_owned()));
    }
}
