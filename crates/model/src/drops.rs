//! Results of the instrument `drops`: the JSON of `measure drops --json`.

use crate::EventCost;
use crate::Unknown;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

/// Version of the JSON form of [`DropMeasurement`].
pub const DROP_MEASUREMENT_SCHEMA: u32 = 1;

/// Packets that the kernel dropped in an interval, compared with its own counters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DropMeasurement {
    /// [`DROP_MEASUREMENT_SCHEMA`] of the nearpath that wrote this.
    pub schema: u32,
    /// Duration of the measurement, in seconds.
    pub duration_s: f64,
    /// The filters used, as on the command line; empty if all packets were observed.
    pub filter: String,
    /// Packets dropped. One that was still to be segmented, or was merged by GRO, counts once.
    pub packets: u64,
    /// Their bytes, from the header that the kernel was processing.
    pub bytes: u64,
    /// The most common reason; `None` if nothing was dropped.
    pub main: Option<MainReason>,
    /// By reason, function, device and protocol, most packets first.
    pub drops: Vec<Drop>,
    /// Names in `/run/netns` of the network namespaces in `drops`, by their inodes.
    #[serde(default)]
    pub netns_names: BTreeMap<u32, String>,
    /// IP packets by flow and reason: those with most packets.
    pub flows: Vec<DroppedFlow>,
    /// By the requested grouping: groups with most packets, and all others as one.
    pub groups: Vec<DropGroup>,
    /// What did not fit in the maps.
    pub no_room: NoRoom,
    /// sk_buffs that are not packets (netlink, Unix sockets, parts of packets that GRO merged); not part of `packets`.
    pub not_packets: u64,
    /// Drops that were not looked at, in a flood of them, so that the overhead stays low: each is counted as the next one
    /// that was. With any, counts by reason, function, device and flow are estimates.
    #[serde(default)]
    pub extrapolated: u64,
    /// Kernel counters that increased, or should have; those of protocols, interfaces and qdiscs are of the
    /// observed network namespace.
    pub counters: Vec<CounterCheck>,
    /// Interfaces that counted drops or errors. Some of these packets never had an sk_buff, and are not in
    /// `drops`.
    pub devices: Vec<DeviceDrops>,
    /// Drops that the kernel did not report because the program was already running on that CPU.
    pub events_lost: u64,
    /// Cost per drop; `None` if the kernel has no run-time statistics, or there was no drop while they were
    /// enabled.
    pub cost: Option<EventCost>,
    /// What could not be observed, with the reason.
    pub unknown: Vec<Unknown>,
    /// All flows; `flows` has the first of them.
    #[serde(skip)]
    pub all_flows: Vec<DroppedFlow>,
    /// What is shown of the groups.
    #[serde(skip)]
    pub shown: Shown,
}

/// What is shown of the groups.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shown {
    /// The grouping of packets.
    pub per: Option<DropPer>,
    /// Maximum number of flows and groups.
    pub top: usize,
}

/// Grouping of dropped packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DropPer {
    /// The reason.
    Reason,
    /// The device.
    Device,
    /// The kernel function.
    Location,
    /// The stage of the path.
    Stage,
    /// The protocol.
    Protocol,
    /// Protocol, addresses, ports.
    Flow,
}

/// The most common reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MainReason {
    /// Its name; the function if the kernel has no reasons.
    pub reason: String,
    /// Short description.
    pub meaning: Option<String>,
    /// Its share of all packets, 0 to 1.
    pub share: f64,
    /// The protocol and the destination port of (nearly) all of its packets.
    pub protocol: Option<String>,
    /// The same for the port.
    pub port: Option<u16>,
    /// The device of (nearly) all of its packets.
    pub device: Option<String>,
}

/// Packets dropped for one reason, by one function, on one device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drop {
    /// The kernel's name of the reason, without `SKB_DROP_REASON_`; `None` on kernels without reasons.
    pub reason: Option<String>,
    /// Description of the reason.
    pub meaning: Option<String>,
    /// The kernel function that dropped them; an address if function names are not available.
    pub function: String,
    /// Its position in the path.
    pub stage: DropStage,
    /// The device that they were on, or came from; `None` if no longer known.
    pub device: Option<String>,
    /// Its index.
    pub ifindex: Option<u32>,
    /// Inode of the network namespace; `None` if no longer known.
    pub netns: Option<u32>,
    /// `UDP`, `TCP`, `ICMP`, `ARP`, `protocol 132`, `ethertype 0x88cc`.
    pub protocol: String,
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that were looked at: fewer in a flood (see `extrapolated`). 0: of a nearpath that looked at all.
    #[serde(default)]
    pub looked_at: u64,
}

/// Packets of a flow that were dropped for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedFlow {
    /// `UDP 10.0.0.1:5000 > 10.0.0.2:80`.
    pub flow: String,
    /// As in [`Drop`].
    pub reason: Option<String>,
    /// Inode of the network namespace; `None` if no longer known.
    pub netns: Option<u32>,
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Destination port.
    #[serde(skip)]
    pub port: Option<u16>,
}

/// A group of the dropped packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropGroup {
    /// The grouping.
    pub per: DropPer,
    /// The reason, device, function, stage, protocol or flow; `others`; `unknown`.
    pub name: String,
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Packets that did not fit in the maps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NoRoom {
    /// Packets that are in the total but not in `drops`.
    pub packets: u64,
    /// Packets of flows that did not fit.
    pub flow_packets: u64,
}

/// A kernel counter, compared with the observed drops.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterCheck {
    /// `Udp.RcvbufErrors`, `softnet dropped`, `qdisc tbf`.
    pub counter: String,
    /// The interface of a qdisc.
    pub device: Option<String>,
    /// Lower and upper bound of its increase while drops were counted: it is read before and after both the
    /// start and the end.
    pub least: u64,
    /// The upper bound.
    pub most: u64,
    /// Drops that it should have counted, including those that do not match the filter; `None` if unknown.
    pub seen: Option<u64>,
    /// Whether the two agree; `None` if unknown.
    pub agrees: Option<bool>,
}

/// Counters of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceDrops {
    /// Its name.
    pub device: String,
    /// Packets that driver, device (`rx_missed_errors`) or stack dropped.
    pub rx_dropped: u64,
    /// Damaged packets received.
    pub rx_errors: u64,
    /// Packets dropped on transmit.
    pub tx_dropped: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
}

/// The share of a reason's packets above which a port or device is reported for all of them.
const NEARLY_ALL: f64 = 0.9;
/// Name of the unknown group.
const UNKNOWN: &str = "unknown";
/// Name of the group of all others.
const OTHERS: &str = "others";

impl DropMeasurement {
    /// The change since an earlier reading. Counters, cost and unknowns exist only for the whole measurement:
    /// `counters` and `devices` are empty.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before: BTreeMap<_, _> =
            earlier.drops.iter().map(|drop| (drop.key(), (drop.packets, drop.bytes))).collect();
        let drop = |now: &Drop| {
            let (packets, bytes) = before.get(&now.key()).copied().unwrap_or_default();
            let packets = now.packets.saturating_sub(packets);
            let bytes = now.bytes.saturating_sub(bytes);
            (packets > 0).then(|| Drop { packets, bytes, ..now.clone() })
        };
        let flows_before: BTreeMap<_, _> =
            earlier.all_flows.iter().map(|f| (f.key(), (f.packets, f.bytes))).collect();
        let flow = |now: &DroppedFlow| {
            let (packets, bytes) = flows_before.get(&now.key()).copied().unwrap_or_default();
            let packets = now.packets.saturating_sub(packets);
            let bytes = now.bytes.saturating_sub(bytes);
            (packets > 0).then(|| DroppedFlow { packets, bytes, ..now.clone() })
        };
        let no_room = NoRoom {
            packets: self.no_room.packets.saturating_sub(earlier.no_room.packets),
            flow_packets: self.no_room.flow_packets.saturating_sub(earlier.no_room.flow_packets),
        };
        Self {
            duration_s: self.duration_s - earlier.duration_s,
            packets: self.packets.saturating_sub(earlier.packets),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            drops: self.drops.iter().filter_map(drop).collect(),
            all_flows: self.all_flows.iter().filter_map(flow).collect(),
            no_room,
            not_packets: self.not_packets.saturating_sub(earlier.not_packets),
            extrapolated: self.extrapolated.saturating_sub(earlier.extrapolated),
            events_lost: self.events_lost.saturating_sub(earlier.events_lost),
            counters: Vec::new(),
            devices: Vec::new(),
            ..self.clone()
        }
        .arranged()
    }

    /// Sorted, with the values derived from the parts.
    pub fn arranged(mut self) -> Self {
        self.drops.sort_by_cached_key(|drop| (Reverse(drop.packets), drop.key()));
        self.all_flows.sort_by_cached_key(|flow| (Reverse(flow.packets), flow.key()));
        self.flows = self.all_flows.iter().take(self.shown.top).cloned().collect();
        self.groups = self.shown.per.map_or_else(Vec::new, |per| self.grouped(per));
        self.main = self.main_reason();
        self
    }

    fn grouped(&self, per: DropPer) -> Vec<DropGroup> {
        let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let mut add = |name: String, packets: u64, bytes: u64| {
            let sum = sums.entry(name).or_default();
            *sum = (sum.0.saturating_add(packets), sum.1.saturating_add(bytes));
        };
        if per == DropPer::Flow {
            self.all_flows.iter().for_each(|f| add(f.flow.clone(), f.packets, f.bytes));
        } else {
            self.drops.iter().for_each(|d| add(d.name_of(per), d.packets, d.bytes));
        }
        let mut groups: Vec<DropGroup> = sums
            .into_iter()
            .map(|(name, (packets, bytes))| DropGroup { per, name, packets, bytes })
            .collect();
        groups.sort_by(|a, b| (Reverse(a.packets), &a.name).cmp(&(Reverse(b.packets), &b.name)));
        groups.truncate(self.shown.top);
        let rest = |whole: u64, of: fn(&DropGroup) -> u64| {
            groups.iter().fold(whole, |rest, group| rest.saturating_sub(of(group)))
        };
        let (packets, bytes) = (rest(self.packets, |g| g.packets), rest(self.bytes, |g| g.bytes));
        if packets > 0 {
            groups.push(DropGroup { per, name: OTHERS.to_owned(), packets, bytes });
        }
        groups
    }

    fn main_reason(&self) -> Option<MainReason> {
        let mut by_reason: BTreeMap<&str, u64> = BTreeMap::new();
        for drop in &self.drops {
            *by_reason.entry(drop.cause()).or_default() += drop.packets;
        }
        let (reason, packets) =
            by_reason.into_iter().max_by_key(|(name, packets)| (*packets, Reverse(*name)))?;
        let ours = || self.drops.iter().filter(|drop| drop.cause() == reason);
        // What nearly all of its packets share, if there is a single value.
        let common = |parts: Vec<(Option<String>, u64)>| {
            let mut sums: BTreeMap<Option<String>, u64> = BTreeMap::new();
            for (name, packets) in parts {
                *sums.entry(name).or_default() += packets;
            }
            let (name, most) = sums.into_iter().max_by_key(|(_, packets)| *packets)?;
            (most as f64 >= packets as f64 * NEARLY_ALL).then_some(name)?
        };
        let first = ours().next()?;
        let ports = self.all_flows.iter().filter(|flow| flow.reason.as_deref() == Some(reason));
        let port = common(ports.map(|f| (f.port.map(|p| p.to_string()), f.packets)).collect());
        Some(MainReason {
            reason: reason.to_owned(),
            meaning: first.meaning.as_deref().map(|m| in_short(m).to_owned()),
            share: packets as f64 / self.packets.max(1) as f64,
            protocol: common(ours().map(|d| (Some(d.protocol.clone()), d.packets)).collect()),
            port: port.and_then(|port| port.parse().ok()),
            device: common(ours().map(|d| (d.device.clone(), d.packets)).collect()),
        })
    }
}

impl Drop {
    /// The fields that identify an entry.
    pub fn key(&self) -> impl Ord + use<> {
        let reason = (self.reason.clone(), self.function.clone());
        (reason, self.netns, self.ifindex, self.device.clone(), self.protocol.clone())
    }

    /// Its reason; the function if the kernel has no reasons.
    fn cause(&self) -> &str {
        self.reason.as_deref().unwrap_or(&self.function)
    }

    fn name_of(&self, per: DropPer) -> String {
        let known = |name: &Option<String>| name.clone().unwrap_or_else(|| UNKNOWN.to_owned());
        match per {
            DropPer::Reason => known(&self.reason),
            DropPer::Device => known(&self.device),
            DropPer::Location => self.function.clone(),
            DropPer::Stage => self.stage.to_string(),
            DropPer::Protocol | DropPer::Flow => self.protocol.clone(),
        }
    }
}

impl DroppedFlow {
    /// The fields that identify an entry.
    pub fn key(&self) -> impl Ord + use<> {
        (self.flow.clone(), self.reason.clone(), self.netns)
    }
}

/// Position in the path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropStage {
    /// The driver of a device, or a virtual device (veth, tap).
    Driver,
    /// XDP.
    Xdp,
    /// A CPU's backlog, filled by RPS or `netif_rx`.
    Backlog,
    /// Between the driver and the protocols: `__netif_receive_skb_core`, GRO, taps.
    NetifReceive,
    /// A bridge, bond, VLAN, macvlan or tunnel.
    UpperDevice,
    /// Open vSwitch's datapath.
    Openvswitch,
    /// tc filters.
    Tc,
    /// Netfilter: nftables, iptables.
    Netfilter,
    /// ARP and neighbour discovery.
    Neighbour,
    /// IPv4, IPv6, fragments, forwarding.
    Ip,
    /// ICMP.
    Icmp,
    /// UDP, up to the socket's queue.
    Udp,
    /// TCP.
    Tcp,
    /// A socket of another kind.
    Socket,
    /// A packet socket (a capture).
    PacketSocket,
    /// A queueing discipline.
    Qdisc,
    /// On the way to the device.
    Transmit,
    /// Another function.
    #[default]
    #[serde(other)]
    Other,
}

impl fmt::Display for DropStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Driver => "driver",
            Self::Xdp => "xdp",
            Self::Backlog => "backlog",
            Self::NetifReceive => "netif_receive",
            Self::UpperDevice => "upper_device",
            Self::Openvswitch => "openvswitch",
            Self::Tc => "tc",
            Self::Netfilter => "netfilter",
            Self::Neighbour => "neighbour",
            Self::Ip => "ip",
            Self::Icmp => "icmp",
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Socket => "socket",
            Self::PacketSocket => "packet_socket",
            Self::Qdisc => "qdisc",
            Self::Transmit => "transmit",
            Self::Other => "other",
        })
    }
}

/// The first words of a description.
pub fn in_short(meaning: &str) -> &str {
    let end = meaning.find([':', ';', '(']).unwrap_or(meaning.len());
    meaning.get(..end).unwrap_or(meaning).trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drop(reason: &str, function: &str, device: &str, packets: u64) -> Drop {
        Drop {
            reason: Some(reason.to_owned()),
            meaning: Some("receive buffer full: raise SO_RCVBUF".to_owned()),
            function: function.to_owned(),
            device: Some(device.to_owned()),
            protocol: "UDP".to_owned(),
            packets,
            bytes: packets * 100,
            ..Drop::default()
        }
    }

    fn flow(port: u16, reason: &str, packets: u64) -> DroppedFlow {
        DroppedFlow {
            flow: format!("UDP 10.0.0.1:5 > 10.0.0.2:{port}"),
            reason: Some(reason.to_owned()),
            netns: None,
            packets,
            bytes: packets * 100,
            port: Some(port),
        }
    }

    fn measurement(drops: Vec<Drop>, flows: Vec<DroppedFlow>, per: DropPer) -> DropMeasurement {
        let packets = drops.iter().map(|drop| drop.packets).sum();
        DropMeasurement {
            packets,
            bytes: packets * 100,
            drops,
            all_flows: flows,
            shown: Shown { per: Some(per), top: 2 },
            ..DropMeasurement::default()
        }
        .arranged()
    }

    #[test]
    fn the_main_reason_names_what_its_packets_share() {
        let drops = vec![
            drop("NO_SOCKET", "udp_rcv", "np1", 30),
            drop("SOCKET_RCVBUFF", "udp_queue_rcv_one_skb", "np1", 60),
            drop("SOCKET_RCVBUFF", "udp_queue_rcv_one_skb", "np2", 10),
        ];
        let flows = vec![flow(9000, "SOCKET_RCVBUFF", 66), flow(9001, "SOCKET_RCVBUFF", 4)];
        let m = measurement(drops, flows, DropPer::Reason);
        let main = m.main.unwrap();
        assert_eq!((&*main.reason, main.share), ("SOCKET_RCVBUFF", 0.7));
        assert_eq!(main.meaning.as_deref(), Some("receive buffer full"));
        assert_eq!((main.protocol.as_deref(), main.port), (Some("UDP"), Some(9000)));
        assert_eq!(main.device, None, "60 of 70 are not nearly all");
        assert_eq!(DropMeasurement::default().arranged().main, None);
    }

    #[test]
    fn groups_add_up() {
        let drops = || {
            vec![
                drop("NO_SOCKET", "udp_rcv", "np1", 30),
                drop("SOCKET_RCVBUFF", "udp_queue_rcv_one_skb", "np1", 60),
                drop("XDP", "netif_receive_generic_xdp", "np2", 5),
            ]
        };
        let mut m = measurement(drops(), vec![flow(1, "XDP", 5)], DropPer::Reason);
        // Two packets that did not fit.
        m.packets += 2;
        let m = m.arranged();
        let groups: Vec<_> = m.groups.iter().map(|g| (g.name.as_str(), g.packets)).collect();
        assert_eq!(groups, [("SOCKET_RCVBUFF", 60), ("NO_SOCKET", 30), ("others", 7)]);
        let by_flow = measurement(drops(), vec![flow(1, "XDP", 5)], DropPer::Flow);
        let groups: Vec<_> = by_flow.groups.iter().map(|g| (g.name.as_str(), g.packets)).collect();
        assert_eq!(groups, [("UDP 10.0.0.1:5 > 10.0.0.2:1", 5), ("others", 90)]);
    }

    #[test]
    fn an_interval_contains_its_drops_only() {
        let of = |rcvbuf, flows| {
            let drops = vec![
                drop("SOCKET_RCVBUFF", "udp_queue_rcv_one_skb", "np1", rcvbuf),
                drop("XDP", "netif_receive_generic_xdp", "np2", 5),
            ];
            let counters = vec![CounterCheck {
                counter: "Udp.RcvbufErrors".to_owned(),
                device: None,
                least: 1,
                most: 1,
                seen: Some(1),
                agrees: Some(true),
            }];
            DropMeasurement { counters, ..measurement(drops, flows, DropPer::Reason) }
        };
        let before = of(60, vec![flow(9000, "SOCKET_RCVBUFF", 60)]);
        let all = [flow(9000, "SOCKET_RCVBUFF", 70), flow(9001, "SOCKET_RCVBUFF", 30)];
        let interval = of(100, all.to_vec()).since(&before);
        assert_eq!((interval.packets, interval.bytes), (40, 4000));
        assert_eq!(interval.drops.len(), 1);
        assert_eq!(interval.main.as_ref().unwrap().share, 1.0);
        let flows: Vec<_> = interval.flows.iter().map(|f| (f.port, f.packets)).collect();
        assert_eq!(flows, [(Some(9001), 30), (Some(9000), 10)]);
        assert!(interval.counters.is_empty());
    }
}
