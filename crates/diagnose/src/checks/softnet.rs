//! Packets dropped from a full backlog, and NET_RX running out of budget.
//!
//! Input: /proc/net/softnet_stat, over the interval when there is an earlier reading.
//! Output: at most two findings: drops (critical when they happened in the interval) and squeezes.
//!
//! Rules: net/core/dev.c (`enqueue_to_backlog` drops beyond `net.core.netdev_max_backlog`,
//! `net_rx_action` counts a squeeze when `netdev_budget` or `netdev_budget_usecs` ran out with
//! work left), Documentation/admin-guide/sysctl/net.rst.

use crate::buffers;
use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{CpuId, Finding, ProposedChange, SoftnetCpu, Sysctl};

pub(super) const CHECK: Check =
    Check::new("softnet", "packets dropped from a full backlog, and NET_RX out of budget", run);

/// Squeezes in each NET_RX run from which the budget is too small.
const SQUEEZED: f64 = 0.01;
/// Fewer runs prove nothing.
const ENOUGH_RUNS: u64 = 1_000;
/// The same, from which packets wait for it.
const OFTEN_SQUEEZED: f64 = 0.1;
/// Runs in each second below which NET_RX has little to do.
const BUSY_PER_S: f64 = 1_000.0;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let Some(lines) = context.softnet() else {
        let why = context.why_unknown("host", "softnet");
        outcome.not_checked(format!("/proc/net/softnet_stat is unknown{why}"));
        return outcome;
    };
    outcome.findings.extend(drops(context, &lines));
    outcome.findings.extend(squeezes(context, &lines));
    outcome
}

/// The CPUs with some of it, in words: `CPU 1: 17, CPU 3: 4`.
fn by_cpu(lines: &[SoftnetCpu], of: fn(&SoftnetCpu) -> u64) -> String {
    let mut some: Vec<(u64, CpuId)> =
        lines.iter().filter(|line| of(line) > 0).map(|line| (of(line), line.cpu)).collect();
    some.sort_unstable_by_key(|&(n, cpu)| (std::cmp::Reverse(n), cpu));
    let words: Vec<String> =
        some.iter().take(8).map(|(n, cpu)| format!("CPU {cpu}: {n}")).collect();
    words.join(", ")
}

fn drops(context: &Context<'_>, lines: &[SoftnetCpu]) -> Option<Finding> {
    let dropped = total(lines.iter().map(|line| line.dropped));
    let processed = total(lines.iter().map(|line| line.processed));
    if dropped == 0 {
        return None;
    }
    let share = ratio(dropped, processed.saturating_add(dropped));
    let severity = severity::of_loss(context, dropped, Some(processed));
    let since = context.since();
    let title = format!("{} dropped from a full backlog {since}", packets(dropped));
    let mut finding = Finding::new(severity, title)
        .evidence(format!("Dropped by CPU: {}.", by_cpu(lines, |line| line.dropped)))
        .share(share, text::packets(processed));
    let by_flow_limit = total(lines.iter().filter_map(|line| line.flow_limit));
    if by_flow_limit > 0 {
        finding = finding.evidence(format!("The flow limit dropped {by_flow_limit} of them."));
    }
    let why = "A longer backlog holds bursts that the CPU cannot process at once.";
    finding.changes.extend(raised(context, Sysctl::NetdevMaxBacklog, 65_536, why));
    Some(finding)
}

fn packets(n: u64) -> String {
    if n == 1 { "1 packet was".to_owned() } else { format!("{n} packets were") }
}

fn squeezes(context: &Context<'_>, lines: &[SoftnetCpu]) -> Option<Finding> {
    let squeezed = total(lines.iter().map(|line| line.time_squeeze));
    // Runs, or packets where /proc/softirqs is unknown: then the share is the lower bound.
    let runs = context.softirqs("NET_RX").map_or_else(
        || total(lines.iter().map(|line| line.processed)),
        |counts| total(counts.into_values()),
    );
    let share = ratio(squeezed, runs)?;
    if share < SQUEEZED || runs < ENOUGH_RUNS {
        return None;
    }
    let rate = Some(context.per_second(runs));
    let severity = severity::of_condition(context, share >= OFTEN_SQUEEZED, rate, BUSY_PER_S);
    let since = context.since();
    let title = format!("NET_RX ran out of budget {} {since}", text::count(squeezed, "time"));
    let mut finding = Finding::new(severity, title)
        .evidence(format!("By CPU: {}.", by_cpu(lines, |line| line.time_squeeze)))
        .evidence(format!("{} of the NET_RX runs left work behind.", text::percent(share.min(1.0))))
        .share(Some(share), "NET_RX runs");
    let why = "NET_RX may take more packets before it yields.";
    finding.changes.extend(raised(context, Sysctl::NetdevBudget, 4_800, why));
    let why = "NET_RX may run longer before it yields.";
    finding.changes.extend(raised(context, Sysctl::NetdevBudgetUsecs, 16_000, why));
    Some(finding)
}

/// A raised sysctl.
fn raised(context: &Context<'_>, sysctl: Sysctl, limit: u64, why: &str) -> Option<ProposedChange> {
    let (now, after) = buffers::raised(context, sysctl, limit)?;
    Some(ProposedChange::new(sysctl, Some(now.to_string()), after.to_string(), why))
}
