//! The memory of all TCP sockets together, and what TCP did for want of it.
//!
//! Input: the pages that TCP's sockets hold, `net.ipv4.tcp_mem`, TCP's counters, and the measured connections. Output: at most
//! one finding. Above the second number TCP is under pressure: windows and buffers stop growing; above the third, data that
//! arrives is dropped, and connections may be ended. This is no limit of one buffer: larger ones (`tcp_rmem`) make it worse.
//! Where most of it is data that nobody reads, the reader is the cause, and no setting helps.
//!
//! Rules: Documentation/networking/ip-sysctl.rst (`tcp_mem`); `__sk_mem_raise_allocated` of net/core/sock.c;
//! `tcp_try_rmem_schedule`, `tcp_data_queue` of net/ipv4/tcp_input.c (`TCPRcvQDrop`); `tcp_init_mem` of net/ipv4/tcp.c.

use crate::connections::name;
use crate::counters::total;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::tcp::TcpConnection;
use nearpath_model::{Finding, ProposedChange, Severity, Sysctl, Whose};
use std::cmp::Reverse;

pub(super) const CHECK: Check =
    Check::new("tcp_memory", "the memory of all TCP sockets together (tcp_mem)", run);

/// Connections that are named.
const NAMED: usize = 3;
/// `tcp_mem` is in pages, the largest of which are that large.
const LARGEST_PAGE: u64 = 65_536;
/// TCP is to hold no more than this part of the memory.
const PART: u64 = 4;

/// Pages that TCP holds, and the three limits.
struct Memory {
    held: u64,
    limits: [u64; 3],
}

impl Memory {
    fn of(context: &Context<'_>) -> Option<Self> {
        let held = *context.host.counters.get("sockstat.TCP.mem")?;
        Some(Self { held, limits: context.three(Sysctl::TcpMem.name())? })
    }

    /// From here on it is under pressure. It stays so until less than the first limit is held.
    fn is_short(&self) -> bool {
        self.limits[1] > 0 && self.held >= self.limits[1]
    }
}

/// Whether TCP is short of memory, now or in the interval.
pub(crate) fn is_short(context: &Context<'_>) -> bool {
    let fell_short = context.earlier.is_some() && pressures(context) > 0;
    fell_short || Memory::of(context).is_some_and(|memory| memory.is_short())
}

/// How often it came under pressure. (`TCPAbortOnMemory` also counts orphans beyond `tcp_max_orphans`.)
fn pressures(context: &Context<'_>) -> u64 {
    context.counter("TcpExt.TCPMemoryPressures").unwrap_or(0)
}

/// The size of a page; if it is unknown, so large that no limit is too high.
fn page(context: &Context<'_>) -> u64 {
    context
        .host
        .counters
        .get("memory.page")
        .copied()
        .filter(|page| *page > 0)
        .unwrap_or(LARGEST_PAGE)
}

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(memory) = Memory::of(context) else {
        outcome
            .not_checked("the memory of TCP's sockets (/proc/net/sockstat) or tcp_mem is unknown");
        return outcome;
    };
    outcome.findings.extend(finding(context, &memory));
    outcome
}

fn finding(context: &Context<'_>, memory: &Memory) -> Option<Finding> {
    let (pressures, since) = (pressures(context), context.since());
    let is_short = memory.is_short();
    // Once since boot is history.
    if !is_short && (pressures == 0 || context.earlier.is_none()) {
        return None;
    }
    let [_, pressure, most] = memory.limits;
    let share = memory.held as f64 / most.max(1) as f64;
    let lost =
        total(["TcpExt.TCPRcvQDrop", "TcpExt.RcvPruned"].iter().filter_map(|n| context.counter(n)));
    let by_loss = severity::of_loss(context, lost, context.counter("Tcp.InSegs"));
    let by_state = if is_short { Severity::Warning } else { Severity::Info };
    let title = match is_short {
        true => format!("TCP is short of memory: {} of tcp_mem is used", text::percent(share)),
        false => format!("TCP was short of memory {} {since}", text::count(pressures, "time")),
    };
    let mut finding = Finding::new(by_state.max(by_loss), title).evidence(format!(
        "All TCP sockets hold {} pages of at most {most}; from {pressure} on they get no larger windows.",
        memory.held
    ));
    if lost > 0 || pressures > 0 {
        finding = finding.evidence(format!(
            "{} dropped {since}; pressure came {} (TCPMemoryPressures).",
            text::count(lost, "segment"),
            text::count(pressures, "time")
        ));
    }
    let measured = context.tcp.into_iter();
    let mut unread: Vec<&TcpConnection> = measured.flat_map(|m| &m.connections).collect();
    unread.sort_by_key(|c| Reverse(memory_of(c)));
    let held = total(unread.iter().map(|c| memory_of(c)));
    let waits = total(unread.iter().map(|c| c.receive_memory_bytes.unwrap_or(0).into()));
    for c in unread.iter().take(NAMED).filter(|c| memory_of(c) > 0) {
        finding = finding.evidence(format!(
            "{} holds {}: {} not read, {} not acknowledged or sent.",
            name(c),
            text::bytes(memory_of(c)),
            text::bytes(c.receive_queue_bytes.into()),
            text::bytes(c.send_queue_bytes.into())
        ));
    }
    if waits.saturating_mul(2) >= held && waits / page(context) >= memory.held / 2 && waits > 0 {
        return Some(finding.of(Whose::Application).evidence(
            "Most of it is data that its readers do not read: they are the cause, and more memory would fill as well.",
        ));
    }
    Some(match doubled(context, memory) {
        Some(change) => finding.change(change),
        None => finding.evidence(
            "More would be a quarter of the host's memory: fewer connections, or smaller buffers.",
        ),
    })
}

/// Memory that a connection holds.
fn memory_of(c: &TcpConnection) -> u64 {
    let of = |bytes: Option<u32>| u64::from(bytes.unwrap_or(0));
    of(c.receive_memory_bytes).saturating_add(of(c.send_memory_bytes))
}

/// Twice as much, within a part of the host's memory where that is known.
fn doubled(context: &Context<'_>, memory: &Memory) -> Option<ProposedChange> {
    let [low, pressure, most] = memory.limits;
    let twice = memory.limits.map(|pages| pages.saturating_mul(2));
    let bound = context.host.counters.get("memory.total").map(|bytes| bytes / PART / page(context));
    if bound.is_some_and(|bound| twice[2] > bound) {
        return None;
    }
    Some(ProposedChange::new(
        Sysctl::TcpMem,
        Some(format!("{low} {pressure} {most}")),
        format!("{} {} {}", twice[0], twice[1], twice[2]),
        "Limits of the memory of all TCP sockets, in pages.",
    ))
}
