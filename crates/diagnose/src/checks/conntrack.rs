//! A connection tracking table that is full or nearly so.
//!
//! Input: its size, its limit and what it dropped. Output: at most one finding. A new connection that finds
//! the table full is dropped, whatever it is.
//!
//! Rules: Documentation/networking/nf_conntrack-sysctl.rst, net/netfilter/nf_conntrack_core.c
//! (`__nf_conntrack_alloc`: "table full, dropping packet").

use crate::counters::ratio;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Finding, ProposedChange, Severity, Sysctl};

pub(super) const CHECK: Check =
    Check::new("conntrack", "the connection tracking table, and what it dropped", run);

/// Shares of the limit from which a burst fills it.
const NEARLY_FULL: f64 = 0.8;
const FULL: f64 = 0.95;

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
    let dropped = context.counter("conntrack.drop").unwrap_or(0);
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
    let mut finding = Finding::new(by_use.max(by_loss), title)
        .share(Some(used), "the table")
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
