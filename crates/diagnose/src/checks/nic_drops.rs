//! Packets that the NIC lost before the kernel saw them.
//!
//! In go the NIC's own error counters, over the interval when there is an earlier reading, and
//! its ring sizes. Out comes one finding for each NIC that lost packets, with a larger ring
//! where it has one.
//!
//! Rules: Documentation/networking/statistics.rst (`rx_missed_errors`: no host buffer,
//! `rx_fifo_errors`, `rx_over_errors`), document 003 (watch missed packets).

use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context};
use nearpath_model::{Ethtool, Finding, Nic, NicSetting, ProposedChange, Severity};

pub(super) const CHECK: Check =
    Check { name: "nic_drops", looks_at: "packets that the NIC lost for want of buffers", run };

/// Lost for want of buffers or of speed; a driver counts a packet in one of them as a rule.
const LOST: [&str; 3] = ["rx_missed_errors", "rx_fifo_errors", "rx_over_errors"];

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    for nic in context.hardware_nics() {
        let lost: Vec<(&str, u64)> =
            LOST.iter().filter_map(|name| Some((*name, context.statistic(nic, name)?))).collect();
        if lost.is_empty() {
            outcome.not_checked(format!("the error counters of {} are unknown", nic.name));
        }
        outcome.findings.extend(finding(context, nic, &lost));
    }
    outcome
}

fn finding(context: &Context<'_>, nic: &Nic, lost: &[(&str, u64)]) -> Option<Finding> {
    // The greatest, as some drivers count one packet in several.
    let most = lost.iter().map(|(_, n)| *n).max().filter(|n| *n > 0)?;
    let received = context.statistic(nic, "rx_packets");
    let share = received.and_then(|n| ratio(most, total([n, most])));
    let severity = match context.earlier {
        Some(_) => Severity::Critical,
        None => Severity::Info,
    };
    let since = context.since();
    let packets = if most == 1 { "1 packet".to_owned() } else { format!("{most} packets") };
    let mut finding =
        Finding::new(severity, format!("{} lost {packets} {since}", nic.name)).share(share);
    for (name, n) in lost.iter().filter(|(_, n)| *n > 0) {
        finding = finding.evidence(format!("{name} rose by {n} {since}."));
    }
    if let Some(rings) = nic.rings
        && let (Some(now), Some(max)) = (rings.rx, rings.rx_max)
        && now < max
    {
        let after = now.saturating_mul(2).min(max);
        finding = finding
            .evidence(format!("Its receive ring has {now} of at most {max} descriptors."))
            .change(ProposedChange::new(
                NicSetting::new(&nic.name, Ethtool::Rings),
                Some(format!("rx {now}")),
                format!("rx {after}"),
                "A larger ring holds longer bursts until the kernel takes them.",
            ));
    }
    Some(finding)
}
