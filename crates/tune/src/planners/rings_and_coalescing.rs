//! Ring sizes and interrupt coalescing.
//!
//! In go the rings, what `ethtool -c` tells, the goal, and packets that the NIC lost. Out come
//!
//! - a larger receive ring where the check `nic_drops` saw packets lost over an interval, or since boot
//!   with the goal of throughput; a larger ring only makes packets wait longer otherwise;
//! - for latency: receive interrupts without delay that the driver adapts to load, and after at most
//!   [`LATENCY_USECS`], or the shortest delay that the driver takes; for throughput: adaptive, where the
//!   driver can.
//!
//! What the driver does not tell is left alone. Rules: Documentation/networking/ethtool-netlink.rst
//! (`COALESCE_SET`), ethtool(8) `-C`, and what the drivers of [`MODES_BELOW_10`] refuse.

use super::Planner;
use super::draft::{Draft, Wish};
use super::situation::Situation;
use nearpath_model::{Ethtool, Goal, Nic, NicSetting, Severity, Target};

pub(super) const PLANNER: Planner = Planner {
    name: "rings_and_coalescing",
    plans: "receive rings where packets were lost, interrupt coalescing for the goal",
    run,
};

/// Microseconds that a received packet may wait for its interrupt with the goal of latency. With none
/// there would be an interrupt for nearly each packet.
const LATENCY_USECS: u64 = 8;

/// Drivers to which an `rx-usecs` of 1 to 4 names a way to adapt the delay to load, and which refuse a
/// fixed one below [`SHORTEST_FIXED_USECS`] with EINVAL (`igb_set_coalesce` of igb_ethtool.c, `igc_ethtool_set_coalesce`
/// of igc_ethtool.c, `igbvf_set_coalesce`, `e1000_set_coalesce` of e1000 and e1000e). 0 is no delay at all.
const MODES_BELOW_10: [&str; 5] = ["e1000", "e1000e", "igb", "igbvf", "igc"];
const SHORTEST_FIXED_USECS: u64 = 10;

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    for nic in situation.hardware() {
        rings(situation, draft, nic);
        coalescing(situation, draft, nic);
    }
}

/// What the check of lost packets proposes.
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
            "a larger receive ring of {name} ({}) may help, but nothing was seen to suffer now \
             ({})",
            change.after, finding.check
        ));
    }
    draft.add(Wish {
        id: format!("{name}/rings"),
        target,
        before: format!("rx {now}").into(),
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
    let has_modes = nic.driver.as_deref().is_some_and(|driver| MODES_BELOW_10.contains(&driver));
    let shortest = if has_modes { SHORTEST_FIXED_USECS } else { LATENCY_USECS };
    // What an adapting driver tells may be the delay of the moment: none is not wanted for good.
    let fixed = |usecs: u64| if usecs == 0 { shortest } else { usecs.min(shortest) };
    let (before, after, why) = match (situation.request.goal, adaptive, usecs) {
        (Goal::Latency, Some(true), Some(usecs)) => (
            format!("adaptive-rx on rx-usecs {usecs}"),
            format!("adaptive-rx off rx-usecs {}", fixed(usecs)),
            format!("the driver of {name} delays interrupts as it thinks fit, now by {usecs} µs"),
        ),
        (Goal::Latency, _, Some(mode @ 1..SHORTEST_FIXED_USECS)) if has_modes => (
            format!("rx-usecs {mode}"),
            format!("rx-usecs {shortest}"),
            format!(
                "the driver of {name} delays interrupts as it thinks fit (its mode {mode}); \
                 {shortest} µs is the shortest fixed delay that it takes"
            ),
        ),
        (Goal::Latency, _, Some(usecs)) if usecs > shortest => (
            format!("rx-usecs {usecs}"),
            format!("rx-usecs {shortest}"),
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
        target: NicSetting::new(name, Ethtool::Coalesce).into(),
        before: before.into(),
        after: after.into(),
        why,
        finding: None,
    });
}
