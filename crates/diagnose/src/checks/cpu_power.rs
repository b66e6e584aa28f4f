//! CPUs with network load that run below their speed: slowed down by heat, or governed to save power.
//!
//! Input: the counts of thermal throttling, the frequency governors and the rate of NET_RX. Output: one
//! finding for heat, and one for governors on CPUs with much NET_RX. How deep CPUs sleep is measured by
//! `idle_wakeups`.
//!
//! Rules: arch/x86/kernel/cpu/mce/therm_throt.c (`core_throttle_count`),
//! Documentation/admin-guide/pm/cpufreq.rst.

use crate::severity::{self, TRAFFIC_PER_S};
use crate::{Check, CheckOutcome, Context, text};
use nearpath_model::{CpuSet, Finding, Subject};

pub(super) const CHECK: Check =
    Check::new("cpu_power", "CPUs with network load that heat or a governor slows down", run);

/// Deeper states than this cost a packet more than its way through the stack.
const DEEP_US: u64 = 30;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    outcome.findings.extend(heat(context));
    let busy = busy(context);
    if busy.is_none() {
        outcome.not_checked("which CPUs have network load is unknown (/proc/softirqs)");
    }
    outcome.findings.extend(governor(context, &busy.unwrap_or_default()));
    outcome
}

fn heat(context: &Context<'_>) -> Option<Finding> {
    let earlier = context.earlier?;
    let then = &earlier.power.throttle_counts;
    let slowed: Vec<_> = context
        .host
        .power
        .throttle_counts
        .iter()
        .filter_map(|(cpu, now)| Some((*cpu, now.saturating_sub(*then.get(cpu)?))))
        .filter(|(_, rise)| *rise > 0)
        .collect();
    let cpus: CpuSet = slowed.iter().map(|(cpu, _)| *cpu).collect();
    let most = slowed.iter().map(|(_, rise)| *rise).max()?;
    let title = format!(
        "{} throttled by heat, up to {}",
        text::cpus_brief(&cpus),
        text::count(most, "time")
    );
    // Where no packets are processed, heat is none of the network's troubles.
    let severity =
        severity::of_condition(context, true, context.net_rx_per_s(&cpus), TRAFFIC_PER_S);
    let finding = Finding::new(severity, title).about(Subject::cpus(&cpus));
    let finding = slowed.iter().take(8).fold(finding, |finding, (cpu, rise)| {
        finding.evidence(format!("CPU {cpu}: core_throttle_count rose by {rise}."))
    });
    Some(finding.evidence("Check cooling and power limits: no setting of the network helps."))
}

/// The CPUs with much NET_RX; `None` when it is unknown.
fn busy(context: &Context<'_>) -> Option<CpuSet> {
    let runs = context.softirqs("NET_RX")?;
    let is_busy = |count: u64| context.rate(count).is_some_and(|rate| rate >= TRAFFIC_PER_S);
    Some(runs.iter().filter(|(_, count)| is_busy(**count)).map(|(cpu, _)| *cpu).collect())
}

fn governor(context: &Context<'_>, busy: &CpuSet) -> Option<Finding> {
    let power = &context.host.power;
    let others = power.governors.iter().filter(|(name, _)| *name != "performance");
    let saving: Vec<(&String, CpuSet)> = others
        .map(|(name, cpus)| (name, cpus.intersection(busy)))
        .filter(|(_, cpus)| !cpus.is_empty())
        .collect();
    let (name, cpus) = saving.first()?;
    let title =
        format!("{}: governor {} under network load", text::cpus_brief(cpus), text::clean(name));
    let mut finding = Finding::new(severity::UNFELT, title)
        .about(Subject::cpus(cpus))
        .evidence("CPUs that clock down between bursts delay the first packets.");
    let all = saving.iter().fold(CpuSet::new(), |all, (_, cpus)| all.union(cpus));
    finding = finding.manual(format!("cpupower -c {all} frequency-set -g performance"));
    for (name, cpus) in saving.iter().skip(1) {
        finding = finding.evidence(format!("{}: {}.", text::cpus(cpus), text::clean(name)));
    }
    let states = power.idle_states.iter().flatten();
    let deepest = states.filter(|state| !state.disabled).max_by_key(|state| state.latency_us);
    if let Some(deepest) = deepest.filter(|state| state.latency_us >= DEEP_US) {
        let latency = text::time(deepest.latency_us.saturating_mul(1_000));
        finding = finding.evidence(format!(
            "Its deepest idle state is {}, which takes {latency} to leave.",
            text::clean(&deepest.name)
        ));
    }
    Some(finding)
}
