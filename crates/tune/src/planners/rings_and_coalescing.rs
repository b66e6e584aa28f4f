//! Ring sizes and interrupt coalescing.
//!
//! In go the rings, what `ethtool -c` tells, the goal, and packets that the NIC lost. Out come
//!
//! - a larger receive ring where the check `nic_drops` saw packets lost over an interval, or since boot
//!   with the goal of throughput; a larger ring only makes packets wait longer otherwise;
//! - for latency: receive interrupts without delay that the driver adapts to load, and after at most
//!   [`LATENCY_USECS`]; for throughput: adaptive, where the driver can.
//!
//! What the driver does not tell is left alone. Rules: Documentation/networking/ethtool-netlink.rst
//! (`COALESCE_SET`), ethtool(8) `-C`.

use super::Planner;
use super::draft::{Draft, Wish};
use super::situation::Situation;
use crate::plan::Goal;
use nearpath_diagnose::Severity;
use nearpath_host::Nic;

pub(super) const PLANNER: Planner = Planner {
    name: "rings_and_coalescing",
    plans: "receive rings where packets were lost, interrupt coalescing for the goal",
    run,
};

/// Microseconds that a received packet may wait for its interrupt with the goal of latency. With none
/// there would be an interrupt for nearly each packet.
const LATENCY_USECS: u64 = 8;

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    for nic in situation.hardware() {
        rings(situation, draft, nic);
        coalescing(situation, draft, nic);
    }
}

/// What the check of lost packets proposes.
fn rings(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic) {
    let name = &nic.name;
    let target = format!("ethtool -G {name}");
    let found = situation.findings.iter().filter(|finding| finding.check == "nic_drops");
    let mut proposed = found.flat_map(|finding| {
        finding.changes.iter().filter(|change| change.target == target).map(move |c| (finding, c))
    });
    let (Some((finding, change)), Some(now)) =
        (proposed.next(), nic.rings.and_then(|rings| rings.rx))
    else {
        return;
    };
    if finding.severity == Severity::Info && situation.request.goal != Goal::Throughput {
        return draft.note(format!(
            "a larger receive ring of {name} ({}) may help, but nothing was seen to suffer now \
             (nic_drops)",
            change.after
        ));
    }
    draft.add(Wish {
        id: format!("{name}/rings"),
        target: format!("ethtool {name} rings"),
        before: format!("rx {now}"),
        after: change.after.clone(),
        why: format!("{}; {}", finding.title, change.why.trim_end_matches('.')),
        finding: Some(finding.check.clone()),
    });
}

fn coalescing(situation: &Situation<'_>, draft: &mut Draft, nic: &Nic) {
    let Some(told) = &nic.coalesce else { return };
    let name = &nic.name;
    let adaptive = told.get("use-adaptive-rx").map(|on| *on != 0);
    let usecs = told.get("rx-usecs").copied();
    let flag = |on: bool| if on { "on" } else { "off" };
    let (before, after, why) = match (situation.request.goal, adaptive, usecs) {
        (Goal::Latency, Some(true), Some(usecs)) => (
            format!("adaptive-rx on rx-usecs {usecs}"),
            format!("adaptive-rx off rx-usecs {}", usecs.min(LATENCY_USECS)),
            format!("the driver of {name} delays interrupts as it thinks fit, now by {usecs} µs"),
        ),
        (Goal::Latency, _, Some(usecs)) if usecs > LATENCY_USECS => (
            format!("rx-usecs {usecs}"),
            format!("rx-usecs {LATENCY_USECS}"),
            format!("a packet that {name} received waits up to {usecs} µs for its interrupt"),
        ),
        (Goal::Throughput, Some(false), _) => (
            format!("adaptive-rx {}", flag(false)),
            format!("adaptive-rx {}", flag(true)),
            format!(
                "{name} interrupts after {} µs whatever the load; adaptive, it takes more packets \
                 with each when there are many",
                usecs.map_or_else(|| "some".to_owned(), |usecs| usecs.to_string())
            ),
        ),
        _ => return,
    };
    draft.add(Wish {
        id: format!("{name}/coalesce"),
        target: format!("ethtool {name} coalesce"),
        before,
        after,
        why,
        finding: None,
    });
}
