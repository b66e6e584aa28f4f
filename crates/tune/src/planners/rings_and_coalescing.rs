//! Ring sizes and interrupt coalescing.
//!
//! Input: the rings, the output of `ethtool -c`, the goal, and packets lost by the NIC. Output:
//!
//! - a larger receive ring if the check `nic_drops` found packets lost during the measurement, or since boot with the goal
//!   throughput; otherwise a larger ring only makes packets wait longer;
//! - for latency: no adaptive coalescing, and a delay of at most [`Nic::latency_usecs`], which the driver
//!   accepts; for throughput: adaptive, if the driver supports it.
//!
//! Values that the driver does not report are not changed. Rules: Documentation/networking/ethtool-netlink.rst
//! (`COALESCE_SET`), ethtool(8) `-C`, and the limits of the drivers in `coalesce.rs` of `crates/model`.

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use nearpath_model::{Ethtool, Goal, Nic, NicSetting, Severity, Target};

pub(super) const PLANNER: Planner = Planner {
    name: "rings_and_coalescing",
    plans: "receive rings if packets were lost, interrupt coalescing for the goal",
    run,
};

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    for nic in situation.hardware() {
        rings(situation, draft, nic);
        coalescing(situation, draft, nic);
    }
}

/// Plans what the check of lost packets proposes.
fn rings(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic) {
    let name = &nic.name;
    let target = Target::from(NicSetting::new(name, Ethtool::Rings));
    let (Some((finding, change)), Some(now)) =
        (situation.proposed(&target), nic.rings.and_then(|rings| rings.rx))
    else {
        return;
    };
    if finding.severity == Severity::Info && situation.request.goal != Goal::Throughput {
        return draft.note(format!(
            "a larger receive ring of {name} ({}) may help, but no current loss was seen \
             ({})",
            change.after, finding.check
        ));
    }
    draft.add(DraftChange {
        id: format!("{name}/rings"),
        target,
        before: format!("rx {now}").into(),
        after: change.after.clone(),
        why: format!("{}; {}", finding.title, change.why.trim_end_matches('.')),
        finding: Some(finding.check.clone()),
    });
}

fn coalescing(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic) {
    let name = &nic.name;
    let (adaptive, usecs) = (nic.adaptive_rx(), nic.rx_usecs());
    let flag = |on: bool| if on { "on" } else { "off" };
    let shortest = nic.latency_usecs();
    // An adaptive driver may report its current delay; do not make a momentary 0 permanent.
    let fixed = |usecs: u64| if usecs == 0 { shortest } else { usecs.min(shortest) };
    let (before, after, why) = match (situation.request.goal, adaptive, usecs) {
        (Goal::Latency, Some(true), Some(usecs)) => (
            format!("adaptive-rx on rx-usecs {usecs}"),
            format!("adaptive-rx off rx-usecs {}", fixed(usecs)),
            format!("the driver of {name} adapts the interrupt delay, now {usecs}µs"),
        ),
        (Goal::Latency, _, Some(mode)) if nic.rx_usecs_mode() == Some(mode) => (
            format!("rx-usecs {mode}"),
            format!("rx-usecs {shortest}"),
            format!(
                "the driver of {name} adapts the interrupt delay (mode {mode}); \
                 {shortest}µs is its shortest fixed delay"
            ),
        ),
        (Goal::Latency, _, Some(usecs)) if usecs > shortest => (
            format!("rx-usecs {usecs}"),
            format!("rx-usecs {shortest}"),
            format!("received packets wait up to {usecs}µs for the interrupt of {name}"),
        ),
        (Goal::Throughput, Some(false), _) => (
            format!("adaptive-rx {}", flag(false)),
            format!("adaptive-rx {}", flag(true)),
            format!(
                "{name} interrupts after {}µs at any load; adaptive coalescing handles more packets per \
                 interrupt under load",
                usecs.map_or_else(|| "some".to_owned(), |usecs| usecs.to_string())
            ),
        ),
        (Goal::Latency, _, None) => {
            // It may be resetting the device.
            let reason = situation.why_unknown(nic, "coalesce");
            if let Some(reason) = reason.filter(|reason| !reason.contains("not supported")) {
                draft.note(format!("the interrupt delay of {name} could not be read: {reason}"));
            }
            return;
        }
        _ => return,
    };
    draft.add(DraftChange {
        id: format!("{name}/coalesce"),
        target: NicSetting::new(name, Ethtool::Coalesce).into(),
        before: before.into(),
        after: after.into(),
        why,
        finding: None,
    });
}
