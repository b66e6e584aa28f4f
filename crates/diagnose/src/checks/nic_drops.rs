//! Packets that the NIC lost before the kernel saw them.
//!
//! Input: the NIC's own error counters, over the interval when there is an earlier reading, and
//! its ring sizes. Output: one finding for each NIC that lost packets, with a larger ring
//! where it has one.
//!
//! Rules: Documentation/networking/statistics.rst (`rx_missed_errors`: no host buffer,
//! `rx_fifo_errors`, `rx_over_errors`), DPVS's guide to worker tuning (watch missed packets).

use crate::counters::{ratio, total};
use crate::{Check, CheckOutcome, Context, severity};
use nearpath_model::{Ethtool, Finding, Nic, NicSetting, ProposedChange, Subject};

pub(super) const CHECK: Check =
    Check::new("nic_drops", "packets lost by the NIC for lack of buffers", run);

/// Lost for lack of buffers or speed; drivers usually count a packet in only one of them.
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
    let severity = severity::of_loss(context, most, received);
    let since = context.since();
    let packets = if most == 1 { "1 packet".to_owned() } else { format!("{most} packets") };
    let mut finding = Finding::new(severity, format!("{} lost {packets} {since}", nic.name))
        .share(share, "its packets")
        .about([Subject::Nic(nic.name.clone())]);
    for (name, n) in lost.iter().filter(|(_, n)| *n > 0) {
        finding = finding.evidence(format!("{name} rose by {n} {since}."));
    }
    Some(with_larger_ring(finding, nic))
}

/// Adds a larger receive ring, where the NIC has one.
pub(super) fn with_larger_ring(finding: Finding, nic: &Nic) -> Finding {
    let Some(rings) = nic.rings else { return finding };
    match (rings.rx, rings.rx_max) {
        (Some(now), Some(max)) if now < max => finding
            .evidence(format!("Its receive ring has {now} of at most {max} descriptors."))
            .change(ProposedChange::new(
                NicSetting::new(&nic.name, Ethtool::Rings),
                Some(format!("rx {now}")),
                format!("rx {}", now.saturating_mul(2).min(max)),
                "A larger ring holds longer bursts until the kernel takes them.",
            )),
        _ => finding,
    }
}
