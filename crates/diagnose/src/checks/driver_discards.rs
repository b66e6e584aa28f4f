//! Packets that the driver or the device discarded, by the driver's own counters.
//!
//! Input: `ethtool -S` of common drivers and `rx_dropped`, over the interval when there is an earlier
//! reading. Output: at most one finding of loss for each NIC, and one for limits of the cloud.
//! `nic_drops` has what the standard counters say; what both count is one loss.
//!
//! Rules: Documentation/networking/statistics.rst (drivers count in `ethtool -S` what has no standard
//! name), Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst
//! (`rx_out_of_buffer`, `rx_discards_phy`), .../amazon/ena.rst (allowances).

use super::nic_drops::with_larger_ring;
use crate::counters::ratio;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{CounterKind, Finding, Nic, Severity, Subject};
use std::collections::BTreeMap;

pub(super) const CHECK: Check =
    Check::new("driver_discards", "packets that the driver or the device discarded", run)
        .explained_by(&["nic_drops"]);

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.hardware_nics() {
        let kinds = [CounterKind::NoBuffer, CounterKind::RxDiscard, CounterKind::TxDiscard];
        let counts = context.driver_counts(nic, &kinds);
        if counts.is_none() {
            let why = context.why_unknown(&format!("nic {}", nic.name), "driver_counters");
            outcome.not_checked(format!("the driver's counters of {} are unknown{why}", nic.name));
        } else if counts.as_ref().is_some_and(BTreeMap::is_empty) {
            let driver = text::clean(nic.driver.as_deref().unwrap_or("its driver"));
            let name = &nic.name;
            outcome
                .not_checked(format!("which counters of {name} ({driver}) are of loss is unknown"));
        }
        outcome.findings.extend(loss(context, nic, &counts.unwrap_or_default()));
        let limits = context.driver_counts(nic, &[CounterKind::Allowance]).unwrap_or_default();
        outcome.findings.extend(allowance(context, nic, &limits));
    }
    outcome
}

/// The greatest, as drivers count one packet in several.
fn greatest(counts: &BTreeMap<String, u64>) -> Option<u64> {
    counts.values().copied().max().filter(|most| *most > 0)
}

fn loss(context: &Context<'_>, nic: &Nic, counts: &BTreeMap<String, u64>) -> Option<Finding> {
    let received = context.statistic(nic, "rx_packets");
    let by_driver = greatest(counts);
    let are_known = !counts.is_empty();
    let mut counts = counts.clone();
    let dropped = context.statistic(nic, "rx_dropped");
    let dropped = dropped.filter(|n| severity::of_loss(context, *n, received) > Severity::Info);
    counts.extend(dropped.map(|dropped| ("rx_dropped".to_owned(), dropped)));
    let most = by_driver.or(dropped)?;
    // The stack counts frames there for which it has no handler: STP and LLDP on any host with a switch.
    let severity = match by_driver {
        Some(_) => severity::of_loss(context, most, received),
        None => severity::UNFELT,
    };
    let since = context.since();
    let packets = text::count(most, "packet");
    let title = match by_driver {
        Some(_) => format!("{}: {packets} discarded {since}", nic.name),
        None => format!("{}: {packets} in rx_dropped {since}", nic.name),
    };
    let share = received.and_then(|n| ratio(most, n.saturating_add(most)));
    let mut finding = Finding::new(severity, title)
        .share(share, "its packets")
        .about([Subject::Nic(nic.name.clone())]);
    for (name, count) in counts.iter().filter(|(_, count)| **count > 0) {
        finding = finding.evidence(format!("{} rose by {count} {since}.", text::clean(name)));
    }
    if by_driver.is_none() {
        let others = "rx_dropped includes frames of protocols without a handler (STP, LLDP)";
        return Some(finding.evidence(match are_known {
            true => format!("{others}; the driver counts no loss."),
            false => format!("{others}; which counters of the driver are of loss is unknown."),
        }));
    }
    Some(with_larger_ring(finding, nic))
}

fn allowance(context: &Context<'_>, nic: &Nic, limits: &BTreeMap<String, u64>) -> Option<Finding> {
    let most = greatest(limits)?;
    let since = context.since();
    let title = format!(
        "{}: {} over the instance's allowance {since}",
        nic.name,
        text::count(most, "packet")
    );
    let received = context.statistic(nic, "rx_packets");
    let mut finding = Finding::new(severity::of_loss(context, most, received), title)
        .about([Subject::Nic(nic.name.clone())]);
    for (name, count) in limits.iter().filter(|(_, count)| **count > 0) {
        finding = finding.evidence(format!("{} rose by {count} {since}.", text::clean(name)));
    }
    Some(finding.evidence(
        "The cloud queues or drops them: use a larger instance; guest settings do not help.",
    ))
}
