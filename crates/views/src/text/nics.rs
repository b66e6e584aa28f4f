//! `show nics`: one row for each interface, and what steers packets on those that steer.

use super::cpus::count;
use super::table::{NONE, Table, left, or_none, right};
use super::units::{printable, ranges};
use super::unknown::{none_of, unknown};
use super::{heading, line};
use nearpath_model::{Channels, CpuSet, Host, Nic, NicKind, Rings, Rss};
use std::collections::BTreeMap;

/// Interfaces with their driver, place, queues and steering.
pub fn nics(host: &Host) -> String {
    let mut out = String::new();
    let Some(first) = host.nics.first() else {
        line!(out, "{}", none_of(host, "interfaces", "nics"));
        out.push_str(&unknown(&host.unknown, &["nic", "nics"]));
        return out;
    };
    let netns = first.netns.name.as_ref().map(|name| format!(" in namespace {name}"));
    let title = count(host.nics.len(), "interface") + &printable(&netns.unwrap_or_default());
    heading(&mut out, &title);
    out.push_str(&table(&host.nics));
    let steering: String = host.nics.iter().map(steering).collect();
    if !steering.is_empty() {
        line!(out);
        heading(&mut out, "hardware steering");
        out.push_str(&steering);
    }
    let unknown = unknown(&host.unknown, &["nic", "nics"]);
    if !unknown.is_empty() {
        line!(out);
        out.push_str(&unknown);
    }
    out
}

fn table(nics: &[Nic]) -> String {
    let mut table = Table::new(&[
        left("NAME"),
        left("KIND"),
        left("DRIVER"),
        left("BUS").optional(),
        right("NODE"),
        right("SPEED"),
        right("MTU"),
        left("STATE"),
        left("MASTER").optional(),
        left("LINK").optional(),
        left("PF").optional(),
        left("CHANNELS"),
        left("RINGS"),
        right("RX"),
        left("RPS"),
        right("TX"),
        left("XPS"),
        left("QDISC").optional(),
    ]);
    for nic in nics {
        table.row([
            nic.name.clone(),
            kind(nic.kind).to_owned(),
            or_none(nic.driver.as_ref()),
            or_none(nic.bus.as_ref()),
            or_none(nic.numa_node),
            or_none(nic.speed_mbps.map(speed)),
            or_none(nic.mtu_bytes),
            or_none(nic.state.as_ref()),
            or_none(nic.master.as_ref()),
            or_none(nic.link.as_ref()),
            or_none(nic.physical_function.as_ref()),
            or_none(nic.channels.as_ref().map(channels)),
            or_none(nic.rings.as_ref().map(rings)),
            nic.rx_queues.len().to_string(),
            steered(nic.rx_queues.iter().map(|queue| queue.rps_cpus.as_ref())),
            nic.tx_queues.len().to_string(),
            steered(nic.tx_queues.iter().map(|queue| queue.xps_cpus.as_ref())),
            or_none(qdisc(nic)),
        ]);
    }
    table.render()
}

/// The kind in one word, as in the JSON.
pub(super) fn kind(kind: NicKind) -> &'static str {
    match kind {
        NicKind::Physical => "physical",
        NicKind::Vf => "vf",
        NicKind::Virtio => "virtio",
        NicKind::Veth => "veth",
        NicKind::Tap => "tap",
        NicKind::Macvtap => "macvtap",
        NicKind::Macvlan => "macvlan",
        NicKind::Bridge => "bridge",
        NicKind::Bond => "bond",
        NicKind::Vlan => "vlan",
        NicKind::OvsInternal => "ovs_internal",
        NicKind::Tunnel => "tunnel",
        NicKind::Loopback => "loopback",
        NicKind::Other => "other",
    }
}

/// `100M`, `2.5G`, `100G` bits per second.
fn speed(mbps: u64) -> String {
    if mbps < 1000 { format!("{mbps}M") } else { format!("{}G", mbps as f64 / 1000.0) }
}

/// `combined 8/16 other 1/1`: as set of at most.
fn channels(channels: &Channels) -> String {
    let parts = [
        ("combined", channels.combined, channels.combined_max),
        ("rx", channels.rx, channels.rx_max),
        ("tx", channels.tx, channels.tx_max),
    ];
    let parts = parts
        .into_iter()
        .filter(|(_, set, most)| set.is_some_and(|n| n > 0) || most.is_some_and(|n| n > 0));
    let parts = parts.map(|(name, set, most)| format!("{name} {}", of(set, most)));
    parts.collect::<Vec<_>>().join(" ")
}

/// `rx 1024/4096 tx 1024/4096`.
fn rings(rings: &Rings) -> String {
    let parts = [("rx", rings.rx, rings.rx_max), ("tx", rings.tx, rings.tx_max)];
    let parts = parts.into_iter().filter(|(_, set, most)| set.is_some() || most.is_some());
    parts.map(|(name, set, most)| format!("{name} {}", of(set, most))).collect::<Vec<_>>().join(" ")
}

fn of(set: Option<u32>, most: Option<u32>) -> String {
    let set = or_none(set);
    most.map_or_else(|| set.clone(), |most| format!("{set}/{most}"))
}

/// `off`, the CPUs when all queues that have some have the same, or how many queues have some.
fn steered<'a>(queues: impl Iterator<Item = Option<&'a CpuSet>>) -> String {
    let known: Vec<&CpuSet> = queues.flatten().collect();
    let on: Vec<&&CpuSet> = known.iter().filter(|cpus| !cpus.is_empty()).collect();
    match (known.len(), on.as_slice()) {
        (0, _) => NONE.to_owned(),
        (_, []) => "off".to_owned(),
        (all, [first, rest @ ..]) if on.len() == all && rest.iter().all(|cpus| cpus == first) => {
            first.to_string()
        }
        (all, on) => format!("{} of {}", on.len(), count(all, "queue")),
    }
}

/// The kind of the root qdisc, and of its children where they are all the same: `mq fq_codel`.
fn qdisc(nic: &Nic) -> Option<String> {
    let qdiscs = nic.qdiscs.as_ref()?;
    let root = qdiscs.iter().find(|qdisc| qdisc.parent == "root")?;
    let mut children: Vec<&str> = qdiscs
        .iter()
        .filter(|qdisc| !matches!(qdisc.parent.as_str(), "root" | "ingress" | "clsact"))
        .map(|qdisc| qdisc.kind.as_str())
        .collect();
    children.sort_unstable();
    children.dedup();
    match children.as_slice() {
        [child] => Some(format!("{} {child}", root.kind)),
        _ => Some(root.kind.clone()),
    }
}

/// RSS, n-tuple rules and interrupt moderation of a NIC, a line each; nothing where it has none.
fn steering(nic: &Nic) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend(nic.rss.as_ref().filter(|rss| !rss.indirection.is_empty()).map(rss_shares));
    if let Some(rules) = nic.ntuple.as_ref().filter(|rules| !rules.is_empty()) {
        parts.push(count(rules.len(), "n-tuple rule"));
    }
    if let Some(rx) = nic.rx_usecs() {
        let adaptive = if nic.adaptive_rx() == Some(true) { " adaptive" } else { "" };
        parts.push(format!("rx-usecs {rx}{adaptive}"));
    }
    if parts.is_empty() {
        return String::new();
    }
    format!("{}: {}\n", printable(&nic.name), parts.join("; "))
}

/// `RSS 128 buckets over queues 0-7, 16 each`, or the least and the most.
fn rss_shares(rss: &Rss) -> String {
    let mut shares: BTreeMap<u32, usize> = BTreeMap::new();
    for queue in &rss.indirection {
        *shares.entry(queue.0).or_default() += 1;
    }
    let (least, most) = (shares.values().min(), shares.values().max());
    let each = match (least, most) {
        (Some(least), Some(most)) if least == most => format!("{least} each"),
        (Some(least), Some(most)) => format!("{least} to {most} each"),
        _ => String::new(),
    };
    let function =
        rss.function.as_deref().map_or_else(String::new, |f| format!(" by {}", printable(f)));
    let queues = ranges(shares.into_keys());
    format!("RSS {}{function} over queues {queues}, {each}", count(rss.indirection.len(), "bucket"))
}
