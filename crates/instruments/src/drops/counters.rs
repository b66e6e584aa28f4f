//! The kernel's counters compared with the observed drops: which counter counts which drops.
//!
//! Input: two readings of the counters around each end of the measurement, and the drops. Output: the counters
//! that increased, or should have, and whether the two agree.

use super::load::Row;
use super::place::is_of_qdisc;
use nearpath_host::DropCounters;
use nearpath_model::DeviceCounts;
use nearpath_model::drops::{CounterCheck, DeviceDrops};

/// A counter that is incremented for each packet dropped for these reasons.
struct Counter {
    name: &'static str,
    reasons: &'static [&'static str],
    /// IP version; 0: any.
    protocol: u8,
    version: u8,
}

const fn counter(
    name: &'static str,
    reasons: &'static [&'static str],
    (protocol, version): (u8, u8),
) -> Counter {
    Counter { name, reasons, protocol, version }
}

const UDP: (u8, u8) = (17, 4);
const UDP6: (u8, u8) = (17, 6);
const TCP: (u8, u8) = (6, 0);
const IPV4: (u8, u8) = (0, 4);

/// net/ipv4/udp.c, net/ipv6/udp.c, net/ipv4/ip_input.c, net/ipv4/route.c, net/ipv4/tcp_ipv4.c,
/// net/ipv4/tcp_input.c: each counts where it drops.
const COUNTERS: &[Counter] = &[
    counter("Udp.RcvbufErrors", &["SOCKET_RCVBUFF"], UDP),
    counter("Udp.MemErrors", &["PROTO_MEM"], UDP),
    counter("Udp.NoPorts", &["NO_SOCKET"], UDP),
    counter("Udp.InCsumErrors", &["UDP_CSUM"], UDP),
    counter("Udp6.RcvbufErrors", &["SOCKET_RCVBUFF"], UDP6),
    counter("Udp6.MemErrors", &["PROTO_MEM"], UDP6),
    counter("Udp6.NoPorts", &["NO_SOCKET"], UDP6),
    counter("Udp6.InCsumErrors", &["UDP_CSUM"], UDP6),
    counter("Ip.InHdrErrors", &["IP_INHDR", "IP_CSUM"], IPV4),
    counter("Ip.InAddrErrors", &["IP_INADDRERRORS"], IPV4),
    counter("Ip.InUnknownProtos", &["IP_NOPROTO"], IPV4),
    counter("IpExt.InNoRoutes", &["IP_INNOROUTES"], IPV4),
    counter("IpExt.InTruncatedPkts", &["PKT_TOO_SMALL"], IPV4),
    counter("TcpExt.IPReversePathFilter", &["IP_RPFILTER"], IPV4),
    counter("TcpExt.TCPBacklogDrop", &["SOCKET_BACKLOG"], TCP),
    counter("TcpExt.TCPZeroWindowDrop", &["TCP_ZEROWINDOW"], TCP),
    counter("TcpExt.TCPMinTTLDrop", &["TCP_MINTTL"], TCP),
    counter("TcpExt.PAWSEstab", &["TCP_RFC7323_PAWS", "TCP_RFC7323_PAWS_ACK"], TCP),
];

/// Counters of packets dropped in several ways, not all of them with a specific reason.
const OTHERS: &[&str] = &[
    "Ip.OutNoRoutes",
    "TcpExt.ListenOverflows",
    "TcpExt.ListenDrops",
    "TcpExt.TCPRcvQDrop",
    "TcpExt.RcvPruned",
    "TcpExt.OfoPruned",
];

/// The backlogs of all CPUs.
const BACKLOG: &str = "softnet dropped";

/// The counters before and after each end of the measurement.
pub struct Readings<'a> {
    /// Before drops were counted, and after counting was enabled.
    pub begin: [&'a DropCounters; 2],
    /// Before counting was disabled, and after the last drop.
    pub end: [&'a DropCounters; 2],
}

impl Readings<'_> {
    /// Lower and upper bound of a counter's increase; `None` if it decreased.
    fn rise(&self, of: impl Fn(&DropCounters) -> Option<u64>) -> Option<(u64, u64)> {
        let [before, begun] = self.begin;
        let [ending, after] = self.end;
        let least = of(ending)?.saturating_sub(of(begun)?);
        Some((least, of(after)?.checked_sub(of(before)?)?))
    }
}

/// The observed drops.
pub struct Seen<'a> {
    /// The drops, with the names of their reasons; `None` if the kernel has no reasons.
    pub rows: &'a [(Row, Option<String>)],
    /// The namespace of the counters.
    pub netns: Option<u32>,
    /// Whether all drops fitted in the map.
    pub all: bool,
}

impl Seen<'_> {
    /// Packets that a counter must have counted, and packets that it may have counted.
    fn count(&self, wanted: impl Fn(&Row, &str) -> bool, everywhere: bool) -> Option<(u64, u64)> {
        let (mut sure, mut unsure) = (0u64, 0u64);
        for (row, reason) in self.rows {
            let reason = reason.as_deref()?;
            if !wanted(row, reason) {
                continue;
            }
            if everywhere || (row.netns != 0 && Some(row.netns) == self.netns) {
                sure = sure.saturating_add(row.all);
            } else if row.netns == 0 || self.netns.is_none() {
                unsure = unsure.saturating_add(row.all);
            }
        }
        Some((sure, unsure))
    }

    fn check(
        &self,
        counter: &str,
        device: Option<String>,
        (least, most): (u64, u64),
        seen: Option<(u64, u64)>,
    ) -> Option<CounterCheck> {
        if most == 0 && seen.is_none_or(|(sure, _)| sure == 0) {
            return None;
        }
        let agrees = seen
            .filter(|_| self.all)
            .map(|(sure, unsure)| sure <= most && sure.saturating_add(unsure) >= least);
        let seen = seen.map(|(sure, unsure)| {
            // Of those that may be in another namespace, as many as the counter exceeds the certain ones.
            sure.saturating_add(unsure.min(least.saturating_sub(sure)))
        });
        Some(CounterCheck { counter: counter.to_owned(), device, least, most, seen, agrees })
    }
}

/// The counters that increased, or should have.
pub fn checks(readings: &Readings<'_>, seen: &Seen<'_>, tells_reasons: bool) -> Vec<CounterCheck> {
    let protocol = |name: &'static str| {
        readings.rise(move |counters: &DropCounters| counters.protocols.get(name).copied())
    };
    let known = |count: Option<(u64, u64)>| count.filter(|_| tells_reasons);
    let mut checks = Vec::new();
    for Counter { name, reasons, protocol: of, version } in COUNTERS {
        let Some(rise) = protocol(name) else { continue };
        let wanted = |row: &Row, reason: &str| {
            reasons.contains(&reason)
                && (*of == 0 || row.protocol == *of)
                && (*version == 0 || row.version == *version)
        };
        checks.extend(seen.check(name, None, rise, known(seen.count(wanted, false))));
    }
    for name in OTHERS {
        checks.extend(protocol(name).and_then(|rise| seen.check(name, None, rise, None)));
    }
    if let Some(rise) = readings.rise(|counters| counters.backlog) {
        let count = seen.count(|_, reason| reason == "CPU_BACKLOG", true);
        checks.extend(seen.check(BACKLOG, None, rise, known(count)));
    }
    checks.extend(qdiscs(readings, seen, tells_reasons));
    checks
}

/// The root qdisc of each interface.
fn qdiscs<'a>(
    readings: &'a Readings<'_>,
    seen: &'a Seen<'_>,
    tells_reasons: bool,
) -> impl Iterator<Item = CounterCheck> + 'a {
    let [_, after] = readings.end;
    after.qdiscs.iter().filter_map(move |(index, qdisc)| {
        let rise = readings.rise(|counters| {
            let now = counters.qdiscs.get(index)?;
            // A qdisc replaced by another kind starts at zero.
            (now.kind == qdisc.kind).then_some(now.drops)
        })?;
        let wanted = |row: &Row, reason: &str| row.ifindex == index.0 && is_of_qdisc(reason);
        let count = seen.count(wanted, false).filter(|_| tells_reasons);
        let row = seen.rows.iter().map(|(row, _)| row);
        let of_device = |row: &&Row| row.ifindex == index.0 && Some(row.netns) == seen.netns;
        let named = row.clone().find(of_device).map(|row| row.device.clone());
        let device = named.filter(|name| !name.is_empty());
        let device = device.unwrap_or_else(|| format!("ifindex {}", index.0));
        seen.check(&format!("qdisc {}", qdisc.kind), Some(device), rise, count)
    })
}

/// Interfaces that counted drops or errors between the first and the last reading.
pub fn devices(readings: &Readings<'_>) -> Vec<DeviceDrops> {
    let ([before, _], [_, after]) = (readings.begin, readings.end);
    let rise = |now: &DeviceCounts| {
        let then = before.devices.iter().find(|then| then.name == now.name)?;
        let of = |of: fn(&DeviceCounts) -> u64| of(now).saturating_sub(of(then));
        let drops = DeviceDrops {
            device: now.name.clone(),
            rx_dropped: of(|device| device.rx_dropped),
            rx_errors: of(|device| device.rx_errors),
            tx_dropped: of(|device| device.tx_dropped),
            tx_errors: of(|device| device.tx_errors),
        };
        let DeviceDrops { rx_dropped, rx_errors, tx_dropped, tx_errors, .. } = drops;
        (rx_dropped | rx_errors | tx_dropped | tx_errors != 0).then_some(drops)
    };
    after.devices.iter().filter_map(rise).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_host::QdiscDrops;
    use nearpath_model::IfIndex;

    fn counters(rcvbuf: u64, backlog: u64, tbf: u64) -> DropCounters {
        let tbf = QdiscDrops { kind: "tbf".to_owned(), drops: tbf };
        DropCounters {
            protocols: [("Udp.RcvbufErrors".to_owned(), rcvbuf)].into(),
            backlog: Some(backlog),
            qdiscs: [(IfIndex(7), tbf)].into(),
            ..DropCounters::default()
        }
    }

    fn row(reason: &str, netns: u32, all: u64) -> (Row, Option<String>) {
        let row = Row {
            netns,
            ifindex: 7,
            protocol: 17,
            version: 4,
            all,
            device: "np0".to_owned(),
            ..Row::default()
        };
        (row, Some(reason.to_owned()))
    }

    fn checked(
        [a, b, c, d]: [&DropCounters; 4],
        rows: &[(Row, Option<String>)],
    ) -> Vec<CounterCheck> {
        let seen = Seen { rows, netns: Some(1), all: true };
        checks(&Readings { begin: [a, b], end: [c, d] }, &seen, true)
    }

    #[test]
    fn a_counter_agrees_within_its_bounds() {
        let at = [counters(5, 0, 0), counters(6, 0, 0), counters(26, 0, 0), counters(28, 0, 0)];
        let readings = [&at[0], &at[1], &at[2], &at[3]];
        for (seen, agrees) in [(19, false), (20, true), (23, true), (24, false)] {
            let found = checked(readings, &[row("SOCKET_RCVBUFF", 1, seen)]);
            let [check] = found.as_slice() else { panic!("{found:?}") };
            assert_eq!((check.least, check.most, check.seen), (20, 23, Some(seen)));
            assert_eq!(check.agrees, Some(agrees), "{seen}");
        }
        // In another namespace, in an unknown one, for another reason.
        let rows = [
            row("SOCKET_RCVBUFF", 2, 100),
            row("SOCKET_RCVBUFF", 0, 9),
            row("SOCKET_RCVBUFF", 1, 15),
            row("NO_SOCKET", 1, 50),
        ];
        let found = checked(readings, &rows);
        assert_eq!((found[0].seen, found[0].agrees), (Some(20), Some(true)));
    }

    #[test]
    fn backlogs_are_host_wide_and_qdiscs_per_device() {
        let (zero, end) = (counters(0, 0, 0), counters(0, 12, 30));
        let rows = [
            row("CPU_BACKLOG", 1, 4),
            row("CPU_BACKLOG", 2, 8),
            row("QDISC_DROP", 1, 20),
            row("FQ_FLOW_LIMIT", 1, 10),
            row("QDISC_DROP", 2, 99),
        ];
        let found = checked([&zero, &zero, &end, &end], &rows);
        let reported: Vec<_> = found
            .iter()
            .map(|c| (c.counter.as_str(), c.device.as_deref(), c.least, c.seen, c.agrees))
            .collect();
        assert_eq!(
            reported,
            [
                ("softnet dropped", None, 12, Some(12), Some(true)),
                ("qdisc tbf", Some("np0"), 30, Some(30), Some(true)),
            ]
        );
    }

    #[test]
    fn without_reasons_counters_are_shown_alone() {
        let (zero, end) = (counters(0, 0, 0), counters(3, 0, 0));
        let rows = [(row("", 1, 5).0, None)];
        let seen = Seen { rows: &rows, netns: Some(1), all: true };
        let found = checks(&Readings { begin: [&zero; 2], end: [&end; 2] }, &seen, false);
        let [check] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((check.most, check.seen, check.agrees), (3, None, None));
    }

    #[test]
    fn decreasing_counters_are_ignored() {
        let (high, low) = (counters(9, 9, 9), counters(0, 0, 0));
        assert_eq!(checked([&high, &high, &low, &low], &[]), []);
    }
}
