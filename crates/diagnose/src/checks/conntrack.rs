//! A connection tracking table that is full or nearly so, and connections that it could not take in.
//!
//! Input: its size, its limit, what it dropped, and which packets were seen to be dropped. Output: a finding for the table,
//! and one for connections that it refused for another reason.
//!
//! A new connection that finds the table full is dropped, whatever it is (`drop`). One that has a place may still be refused
//! when its first packet leaves the host (`insert_failed`, which is counted in `drop` as well, since Linux 5.9): its addresses
//! and ports after translation are those of another one. Either source NAT had no free port left for this destination, or
//! two packets of one connection came at once, before the first was entered: two questions of a resolver from one socket,
//! say. TCP does not do the latter. A bucket of the table may also have become too long (`chaintoolong`).
//!
//! Rules: Documentation/networking/nf_conntrack-sysctl.rst; net/netfilter/nf_conntrack_core.c (`__nf_conntrack_alloc`: "table
//! full, dropping packet", `__nf_conntrack_confirm`, `nf_ct_resolve_clash`); net/netfilter/nf_nat_core.c (`get_unique_tuple`,
//! which gives up silently).

use super::packet_drops;
use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, ProposedChange, Severity, Sysctl};

pub(super) const CHECK: Check =
    Check::new("conntrack", "the connection tracking table, and what it dropped", run);

/// Shares of the limit from which a burst fills it.
const NEARLY_FULL: f64 = 0.8;
const FULL: f64 = 0.95;
/// Share of what netfilter dropped, by which one protocol says why.
const MOST: f64 = 0.8;
/// Drops that are seen beyond those of connection tracking, up to which they are the same.
const MOST_SEEN: f64 = 1.25;
/// Refused connections per second below which it may be a stray one.
const STRAY_PER_S: f64 = 0.2;

/// What the table dropped for any reason, per second of the interval.
pub(super) fn lost_per_s(context: &Context<'_>) -> f64 {
    let of = |name: &str| context.earlier.and(context.counter(name)).unwrap_or(0);
    context.per_second(of("conntrack.drop").max(of("conntrack.insert_failed")))
}

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let value = |name: &str| context.host.counters.get(name).copied();
    let (count, max) = match (value("conntrack.count"), value("conntrack.max")) {
        (Some(count), Some(max)) => (count, max),
        // It is not in use.
        (None, None) => return outcome,
        _ => {
            outcome
                .not_checked("the size or the limit of the connection tracking table is unknown");
            return outcome;
        }
    };
    // An early drop gives up another connection for the new one; a drop gives up the new one.
    let refused = context.counter("conntrack.insert_failed").unwrap_or(0);
    outcome.findings.extend(not_inserted(context, refused));
    // A connection that is refused is counted as dropped, unless its bucket was too long.
    let long = context.counter("conntrack.chaintoolong").unwrap_or(0);
    let refused = refused.saturating_sub(long);
    let dropped = context.counter("conntrack.drop").unwrap_or(0).saturating_sub(refused);
    let early = context.counter("conntrack.early_drop").unwrap_or(0);
    let used = ratio(count, max).unwrap_or(0.0);
    if used < NEARLY_FULL && dropped == 0 && early == 0 {
        return outcome;
    }
    let by_use = if used >= FULL { Severity::Warning } else { Severity::Info };
    let by_loss = match dropped.max(early) {
        0 => Severity::Info,
        lost => severity::of_loss(context, lost, None),
    };
    let since = context.since();
    let title = match dropped {
        0 => format!("conntrack table {} full", text::percent(used)),
        lost => format!("conntrack: {} dropped {since}", text::count(lost, "packet")),
    };
    // Where it is not full, how full it is says nothing of what was lost.
    let of_table = Some(used).filter(|used| *used >= NEARLY_FULL);
    let mut finding = Finding::new(by_use.max(by_loss), title)
        .share(of_table, "the table")
        .evidence(format!("It holds {count} of at most {max} connections."));
    if dropped > 0 || early > 0 {
        finding = finding.evidence(format!(
            "{dropped} packets dropped, {early} connections evicted early {since}."
        ));
    }
    if used >= NEARLY_FULL {
        finding = finding.change(ProposedChange::new(
            Sysctl::NfConntrackMax,
            Some(max.to_string()),
            max.saturating_mul(2).to_string(),
            "New connections are not dropped; each entry takes about 320 bytes.",
        ));
    }
    outcome.findings.push(finding);
    outcome
}

/// Connections that had a place in the table, and were not entered.
fn not_inserted(context: &Context<'_>, refused: u64) -> Option<Finding> {
    if refused == 0 || context.earlier.is_some() && context.per_second(refused) < STRAY_PER_S {
        return None;
    }
    let rise = |name: &str| context.counter(name).unwrap_or(0);
    let (long, resolved) = (rise("conntrack.chaintoolong"), rise("conntrack.clash_resolve"));
    let tcp = share_of_tcp(context, refused);
    let (why, advice) = if long.saturating_mul(2) >= refused {
        ("hash buckets too long", LONG)
    } else if tcp.is_some_and(|share| share >= MOST) {
        ("no free port for SNAT", NO_PORT)
    } else if tcp.is_some_and(|share| share <= 1.0 - MOST) || resolved > refused {
        ("a race of two packets", RACE)
    } else {
        ("no SNAT port, or a race", EITHER)
    };
    let since = context.since();
    let title = format!("{} refused {since}: {why}", text::count(refused, "connection"));
    let severity = severity::of_loss(context, refused, None);
    let also = match resolved {
        0 => String::new(),
        n => format!(", {} more were resolved (clash_resolve)", text::short(n)),
    };
    let counted = format!("conntrack -S: insert_failed {}{also}.", text::short(refused));
    Some(Finding::new(severity, title).evidence(counted).evidence(advice))
}

const LONG: &str = "Too many connections share a bucket: raise net.netfilter.nf_conntrack_buckets, or look for a flood of \
                    connections that share one.";
const NO_PORT: &str = "Each port of the source address can be used once for each destination address and port: more source \
                       addresses (--to-source A-B), a wider --to-ports, connections that are kept and used again, shorter \
                       nf_conntrack_tcp_timeout_time_wait; conntrack -L -n counts those of each destination.";
const RACE: &str = "The second is lost, and is sent again after seconds (a resolver asks for A and AAAA at once: \
                    single-request-reopen in resolv.conf, or a cache on this host); connections that need no tracking can be \
                    left out (notrack).";
const EITHER: &str = "TCP: source NAT has no port left for that destination (more source addresses, a wider --to-ports). UDP: \
                      two packets from one socket before the first was entered (a resolver's A and AAAA: \
                      single-request-reopen). nearpath measure drops --per protocol tells which.";

/// The share of TCP in what netfilter was seen to drop, if that was little else than these connections.
fn share_of_tcp(context: &Context<'_>, refused: u64) -> Option<f64> {
    context.earlier?;
    let its = |tcp: bool| {
        let drops = context.drops.into_iter().flat_map(|drops| &drops.drops);
        let its = drops.filter(|drop| {
            packet_drops::reason_of(drop.reason.as_deref(), &drop.function)
                == Some("NETFILTER_DROP")
        });
        total(its.filter(|drop| !tcp || drop.protocol == "TCP").map(|drop| drop.packets))
    };
    let seconds = context.drops.map_or(0.0, |drops| drops.duration_s).max(f64::MIN_POSITIVE);
    let is_little_else = its(false) as f64 / seconds <= MOST_SEEN * context.per_second(refused);
    ratio(its(true), its(false)).filter(|_| is_little_else)
}
