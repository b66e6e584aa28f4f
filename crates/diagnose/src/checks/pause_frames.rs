//! Pause frames: the link stands still because one end cannot take more.
//!
//! Input: the pause and PFC counters of drivers, over the interval when there is an earlier reading.
//! Output: one finding for each NIC and direction. Frames received hold this host's transmit queues; frames
//! sent say that this host did not take packets from its rings in time, and hold the switch port.
//!
//! Rules: IEEE 802.3 annex 31B and 802.1Qbb, Documentation/networking/statistics.rst (pause frame
//! statistics), the drivers' names of `ethtool -S`.

use super::nic_drops::with_larger_ring;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{CounterKind, Finding, Nic, NicKind, Subject};

pub(super) const CHECK: Check =
    Check::new("pause_frames", "links held by pause frames or priority flow control", run)
        .of(nearpath_model::Whose::Network);

/// Frames in each second from which packets wait often: each holds the link for up to 3.4 ms at 10 Gbit/s.
const MANY_PER_S: f64 = 10.0;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    // Virtual functions and devices have no link of their own.
    for nic in context.nics().filter(|nic| nic.kind == NicKind::Physical) {
        for kind in [CounterKind::PauseRx, CounterKind::PauseTx] {
            match context.driver_counts(nic, &[kind]) {
                Some(counts) => outcome.findings.extend(finding(context, nic, kind, &counts)),
                None => {
                    let why = context.why_unknown(&format!("nic {}", nic.name), "driver_counters");
                    outcome.not_checked(format!("pause frames of {} are unknown{why}", nic.name));
                }
            }
        }
    }
    outcome
}

fn finding(
    context: &Context<'_>,
    nic: &Nic,
    kind: CounterKind,
    counts: &std::collections::BTreeMap<String, u64>,
) -> Option<Finding> {
    // Those of the link and of its priorities count the same frames.
    let most = counts.values().copied().max().filter(|most| *most > 0)?;
    let severity =
        severity::of_condition(context, true, Some(context.per_second(most)), MANY_PER_S);
    let (done, meaning) = match kind {
        CounterKind::PauseRx => {
            ("received", "The link partner is congested: this host's transmit queues are paused.")
        }
        _ => {
            ("sent", "This host did not empty its rings in time, and the switch port had to wait.")
        }
    };
    let (since, frames) = (context.since(), text::count(most, "pause frame"));
    let mut finding = Finding::new(severity, format!("{} {done} {frames} {since}", nic.name))
        .about([Subject::Nic(nic.name.clone())]);
    for (name, count) in counts.iter().filter(|(_, count)| **count > 0) {
        finding = finding.evidence(format!("{} rose by {count} {since}.", text::clean(name)));
    }
    finding = finding.evidence(meaning);
    Some(if kind == CounterKind::PauseTx { with_larger_ring(finding, nic) } else { finding })
}
