//! Packets that could not be sent as the neighbour table was full.
//!
//! Input: how often a table was full, over the interval when there is an earlier reading. Output: a finding for each table.
//!
//! All network namespaces share the two tables, so containers and virtual machines of a host fill them together. A
//! datagram to a neighbour for which there is no room is dropped without an error to the program (unless it set IP_RECVERR),
//! and TCP tries again.
//!
//! Rules: `neigh_alloc` in net/core/neighbour.c; `udp_send_skb` in net/ipv4/udp.c; Documentation/networking/ip-sysctl.rst (`neigh/default/gc_thresh1` to 3).

use crate::buffers;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, ProposedChange, Sysctl};

pub(super) const CHECK: Check =
    Check::new("neighbour_table", "packets not sent as the neighbour table was full", run);

/// The largest table that is proposed: some 30 MB.
const LARGEST: u64 = 65_536;

/// A table: its protocol, its counter, and the limits of its size.
struct Table {
    of: &'static str,
    fulls: &'static str,
    limits: [(Sysctl, &'static str); 3],
}

const MOST: &str = "It holds more neighbours.";
const SOON: &str = "Beyond it, entries that were not used for 5 s are removed.";
const NEVER: &str = "Below it, no entry is removed.";
const TABLES: [Table; 2] = [
    Table {
        of: "IPv4",
        fulls: "arp_cache.table_fulls",
        limits: [
            (Sysctl::NeighGcThresh3, MOST),
            (Sysctl::NeighGcThresh2, SOON),
            (Sysctl::NeighGcThresh1, NEVER),
        ],
    },
    Table {
        of: "IPv6",
        fulls: "ndisc_cache.table_fulls",
        limits: [
            (Sysctl::Neigh6GcThresh3, MOST),
            (Sysctl::Neigh6GcThresh2, SOON),
            (Sysctl::Neigh6GcThresh1, NEVER),
        ],
    },
];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let counted: Vec<(&Table, u64)> =
        TABLES.iter().filter_map(|table| Some((table, context.counter(table.fulls)?))).collect();
    if counted.is_empty() {
        outcome.not_checked("/proc/net/stat/arp_cache is unknown");
    }
    for (table, fulls) in counted.into_iter().filter(|(_, fulls)| *fulls > 0) {
        outcome.findings.push(finding(context, table, fulls));
    }
    outcome
}

fn finding(context: &Context<'_>, table: &Table, fulls: u64) -> Finding {
    let title = format!(
        "The {} neighbour table was full for {} {}",
        table.of,
        text::count(fulls, "packet"),
        context.since()
    );
    let mut finding = Finding::new(severity::of_loss(context, fulls, None), title).evidence(
        "They were dropped: UDP does not tell the program (UdpSndbufErrors), TCP tries again.",
    );
    let [(most, _), ..] = table.limits;
    if let Some(most) = context.sysctl(most.name()) {
        finding = finding.evidence(format!(
            "It holds up to {most} neighbours, those of all network namespaces together (ip -{} neigh show nud all).",
            if table.of == "IPv4" { 4 } else { 6 }
        ));
    }
    for (sysctl, why) in table.limits {
        if let Some((now, after)) = buffers::raised(context, sysctl, LARGEST) {
            finding.changes.push(ProposedChange::new(
                sysctl,
                Some(now.to_string()),
                after.to_string(),
                why,
            ));
        }
    }
    finding
}
