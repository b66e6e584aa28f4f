//! The instrument `drops`: where and why the kernel dropped packets, by reason, function, device, protocol and
//! flow, compared with the kernel's own counters. The method is described in `docs/measuring.md`.

mod btf_enums;
mod counters;
mod load;
mod meanings;
mod names;
mod place;
mod reasons;

pub(crate) use load::tracepoint_features;
pub use meanings::meaning;
pub(crate) use names::Names;

use crate::filter::Filter;
use crate::kernel::{Kernel, Meter};
use crate::{Instrument, InstrumentError};
use counters::{Readings, Seen};
use libbpf_rs::skel::Skel;
use load::{FlowRow, Loaded, PROBES, Row};
use nearpath_host::{DropCounters, Root, current_netns};
use nearpath_model::Unknown;
use nearpath_model::drops::{DROP_MEASUREMENT_SCHEMA, Drop, DropMeasurement, DroppedFlow, Shown};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// Options of the instrument.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Which packets are observed: `device` and `netns` are where they were dropped.
    pub filter: Filter,
    /// Limits on flows and groups shown.
    pub shown: Shown,
    /// The kernel's BTF from a file, for a kernel without BTF.
    pub btf_file: Option<PathBuf>,
    /// The share of one CPU that a flood of drops may cost; then one of many is described, and stands for those before it.
    /// `None`: each is described.
    pub limit: Option<f64>,
}

/// Where the packets that GRO has merged into another one (`frag_list`) are freed, for no reason, when that one ends, however
/// it does: they are no packets of their own, and not lost (net/core/skbuff.c; the first since 6.3, the others before).
const FREES_PARTS: [&str; 3] = ["skb_release_data", "kfree_skb_list_reason", "kfree_skb_list"];
/// Cost of describing a drop, in nanoseconds (docs/measuring.md, "Drops").
const DESCRIBED_NS: f64 = 700.0;

impl Options {
    /// The time that is to pass from one drop described to the next.
    fn least_gap_ns(&self) -> u64 {
        self.limit.map_or(0, |limit| (DESCRIBED_NS / limit.max(1e-6)) as u64)
    }
}

/// The instrument.
pub struct Drops<'a> {
    root: &'a Root,
    options: Options,
    names: OnceCell<Names>,
    session: Option<Session>,
    /// The previous session, whose program is still attached.
    ended: Option<Session>,
}

/// State between `start` and `stop`. The fields are dropped in this order.
struct Session {
    meter: Meter,
    loaded: Loaded,
    began: Instant,
    /// Before drops were counted, and after counting was enabled.
    begin: [DropCounters; 2],
}

impl<'a> Drops<'a> {
    /// Creates the instrument for the running machine, behind a root in the network namespace whose counters
    /// are compared; nothing is loaded yet.
    pub fn new(root: &'a Root, options: Options) -> Self {
        Self { root, options, names: OnceCell::new(), session: None, ended: None }
    }

    /// The names of reasons and functions, read once the first packet was dropped.
    fn names(&self) -> &Names {
        self.names.get_or_init(|| Names::read(self.root, self.options.btf_file.as_deref()))
    }

    fn measurement(
        &self,
        session: &Session,
        ended: Instant,
        end: [&DropCounters; 2],
        rows: Vec<Row>,
    ) -> DropMeasurement {
        let duration_s = (ended - session.began).as_secs_f64();
        let flows = session.loaded.flows();
        let tells_reasons = session.loaded.tells_reasons;
        let reason = |number: u32| tells_reasons.then(|| self.names().reason(number));
        let is_part = |location, number| {
            let function = self.names().function(location);
            function.is_some_and(|function| FREES_PARTS.contains(&function))
                && reason(number).as_deref() == Some("NOT_SPECIFIED")
        };
        let (parts, rows): (Vec<Row>, Vec<Row>) =
            rows.into_iter().partition(|row| is_part(row.location, row.reason));
        let parts = parts.iter().fold(0u64, |sum, row| sum.saturating_add(row.all));
        let rows: Vec<(Row, Option<String>)> =
            rows.into_iter().map(|row| (row.clone(), reason(row.reason))).collect();
        let is_whole = |flow: &FlowRow| !is_part(flow.location, flow.reason);
        let flows = flows.into_iter().filter(|flow| flow.packets > 0 && is_whole(flow));
        let flows = merged(flows.map(|flow| dropped_flow(&flow, reason(flow.reason))));
        let totals = session.loaded.totals();
        let sum = |of: fn(&Row) -> u64| {
            rows.iter().fold(0u64, |sum, (row, _)| sum.saturating_add(of(row)))
        };
        let netns = current_netns(self.root).inode.and_then(|inode| u32::try_from(inode).ok());
        let [before, begun] = &session.begin;
        let readings = Readings { begin: [before, begun], end };
        let seen =
            Seen { rows: &rows, netns, all: totals.no_room_all == 0 && totals.extrapolated == 0 };
        let drops = self.drops(&rows);
        let mut netns_names = netns_names();
        netns_names.retain(|netns, _| drops.iter().any(|drop| drop.netns == Some(*netns)));
        DropMeasurement {
            schema: DROP_MEASUREMENT_SCHEMA,
            duration_s,
            filter: self.options.filter.to_string(),
            packets: sum(|row| row.packets).saturating_add(totals.no_room.packets),
            bytes: sum(|row| row.bytes).saturating_add(totals.no_room_bytes),
            drops,
            netns_names,
            all_flows: flows,
            no_room: totals.no_room,
            not_packets: totals.not_packets.saturating_add(parts),
            extrapolated: totals.extrapolated,
            counters: counters::checks(&readings, &seen, tells_reasons),
            devices: counters::devices(&readings),
            events_lost: session.meter.runs(session.loaded.skeleton.object()).missed,
            cost: session.meter.event_cost(),
            unknown: self.unknown(session, end),
            shown: self.options.shown,
            ..DropMeasurement::default()
        }
        .arranged()
    }

    /// By display name: several instructions of a function are one place.
    fn drops(&self, rows: &[(Row, Option<String>)]) -> Vec<Drop> {
        let mut merged = BTreeMap::new();
        for (row, reason) in rows.iter().filter(|(row, _)| row.packets > 0) {
            let names = self.names();
            let function = names.function(row.location);
            let drop = Drop {
                reason: reason.clone(),
                meaning: reason.as_deref().and_then(meaning).map(str::to_owned),
                function: names.function_or_address(row.location),
                stage: place::stage_of(function, reason.as_deref()),
                device: Some(row.device.clone()).filter(|name| !name.is_empty()),
                ifindex: Some(row.ifindex).filter(|&index| index > 0),
                netns: Some(row.netns).filter(|&netns| netns > 0),
                protocol: protocol(row),
                packets: 0,
                bytes: 0,
                looked_at: 0,
            };
            let sum = merged.entry(drop.key()).or_insert(drop);
            sum.looked_at = sum.looked_at.saturating_add(row.described);
            sum.packets = sum.packets.saturating_add(row.packets);
            sum.bytes = sum.bytes.saturating_add(row.bytes);
        }
        merged.into_values().collect()
    }

    fn unknown(&self, session: &Session, [_, after]: [&DropCounters; 2]) -> Vec<Unknown> {
        let host = |fact: &str, reason: &str| Unknown {
            subject: "host".to_owned(),
            fact: fact.to_owned(),
            reason: reason.to_owned(),
        };
        let mut unknown = after.unknown.clone();
        if !session.loaded.tells_reasons {
            let why = "this kernel gives no reason when it drops a packet (Linux 5.17 and later do), \
                       and drops TCP segments without a tracepoint";
            unknown.push(host("reasons of drops", why));
        }
        if self.names.get().is_some_and(Names::has_no_functions) {
            let why = "/proc/kallsyms has no addresses (kernel.kptr_restrict)";
            unknown.push(host("functions that drop packets", why));
        }
        unknown
    }
}

/// Names of network namespaces by their inodes, which the kernel keeps in 32 bits (`struct ns_common`).
fn netns_names() -> BTreeMap<u32, String> {
    let names = nearpath_host::netns_names().into_iter();
    names.filter_map(|(inode, name)| Some((u32::try_from(inode).ok()?, name))).collect()
}

/// One entry for each flow and reason, whatever function dropped it.
fn merged(flows: impl Iterator<Item = DroppedFlow>) -> Vec<DroppedFlow> {
    let mut merged = BTreeMap::new();
    for flow in flows {
        let empty = DroppedFlow { packets: 0, bytes: 0, ..flow.clone() };
        let sum = merged.entry(flow.key()).or_insert(empty);
        sum.packets = sum.packets.saturating_add(flow.packets);
        sum.bytes = sum.bytes.saturating_add(flow.bytes);
    }
    merged.into_values().collect()
}

fn dropped_flow(flow: &FlowRow, reason: Option<String>) -> DroppedFlow {
    DroppedFlow {
        flow: flow.flow.clone(),
        reason,
        netns: Some(flow.netns).filter(|&netns| netns > 0),
        packets: flow.packets,
        bytes: flow.bytes,
        port: Some(flow.port).filter(|&port| port > 0),
    }
}

/// Display name of a packet's protocol.
fn protocol(row: &Row) -> String {
    match (row.version, row.protocol, row.ethertype) {
        (4 | 6, 1 | 58, _) => "ICMP".to_owned(),
        (4 | 6, 6, _) => "TCP".to_owned(),
        (4 | 6, 17, _) => "UDP".to_owned(),
        (4 | 6, other, _) => format!("protocol {other}"),
        (_, _, 0x0800) => "IPv4".to_owned(),
        (_, _, 0x86dd) => "IPv6".to_owned(),
        (_, _, 0x0806) => "ARP".to_owned(),
        (_, _, ethertype) => format!("ethertype {ethertype:#06x}"),
    }
}

impl Instrument for Drops<'_> {
    type Measurement = DropMeasurement;

    fn available(&self) -> Result<(), InstrumentError> {
        Kernel::to_load_into(PROBES, self.options.btf_file.as_deref()).map(drop)
    }

    fn start(&mut self) -> Result<(), InstrumentError> {
        self.ended = None;
        let kernel = Kernel::to_load_into(PROBES, self.options.btf_file.as_deref())?;
        let mut loaded = load::load(&kernel, &self.options)?;
        let meter = Meter::new(loaded.skeleton.object());
        let before = DropCounters::read(self.root);
        loaded.set_active(true);
        let began = Instant::now();
        let begin = [before, DropCounters::read(self.root)];
        self.session = Some(Session { meter, loaded, began, begin });
        Ok(())
    }

    fn begin_cost_window(&mut self) {
        if let Some(session) = &mut self.session {
            session.meter.begin(session.loaded.skeleton.object(), 0);
        }
    }

    fn end_cost_window(&mut self) {
        if let Some(session) = &mut self.session {
            session.meter.end(session.loaded.skeleton.object(), 0);
        }
    }

    fn read(&mut self) -> Result<DropMeasurement, InstrumentError> {
        let session = self.session.take().ok_or(InstrumentError::NotStarted)?;
        let ending = DropCounters::read(self.root);
        let (ended, rows) = (Instant::now(), session.loaded.rows());
        let after = DropCounters::read(self.root);
        let measurement = self.measurement(&session, ended, [&ending, &after], rows);
        self.session = Some(session);
        Ok(measurement)
    }

    fn stop(&mut self) -> Result<DropMeasurement, InstrumentError> {
        self.end_cost_window();
        let mut session = self.session.take().ok_or(InstrumentError::NotStarted)?;
        let ending = DropCounters::read(self.root);
        session.loaded.set_active(false);
        let ended = Instant::now();
        let after = DropCounters::read(self.root);
        let rows = session.loaded.rows();
        let measurement = self.measurement(&session, ended, [&ending, &after], rows);
        self.ended = Some(session);
        Ok(measurement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_have_their_usual_names() {
        let of = |version, protocol_number, ethertype| {
            protocol(&Row { version, protocol: protocol_number, ethertype, ..Row::default() })
        };
        assert_eq!(of(4, 17, 0x800), "UDP");
        assert_eq!(of(6, 58, 0x86dd), "ICMP");
        assert_eq!(of(4, 132, 0x800), "protocol 132");
        assert_eq!(of(0, 0, 0x806), "ARP");
        assert_eq!(of(0, 0, 0x86dd), "IPv6");
        assert_eq!(of(0, 0, 0x88cc), "ethertype 0x88cc");
    }

    #[test]
    fn an_instrument_that_was_not_started_reports_it() {
        let root = Root::live();
        let mut drops = Drops::new(&root, Options::default());
        assert!(drops.read().is_err() && drops.stop().is_err());
    }
}
