//! Readers that the CPU quota of their cgroup throttles.
//!
//! Input: the cgroups with a quota that readers are in, with how many periods they ran in and were stopped
//! in. Output: one finding for each that was. Packets then wait until the next period begins, up to the
//! whole period.
//!
//! Rules: Documentation/scheduler/sched-bwc.rst, Documentation/admin-guide/cgroup-v2.rst (`cpu.max`,
//! `cpu.stat`).

use crate::counters::ratio;
use crate::{Check, CheckOutcome, Context, severity, text};
use nearpath_model::{Cgroup, Finding, shell};

pub(super) const CHECK: Check =
    Check::new("cgroup_throttling", "readers that a quota of CPU time stops", run)
        .of(nearpath_model::Whose::Quota);

/// Share of periods with a stop from which readers are late often.
const OFTEN: f64 = 0.01;
/// And stops in each second.
const OFTEN_PER_S: f64 = 0.5;

fn run(context: &Context<'_>) -> CheckOutcome {
    let mut outcome = CheckOutcome::default();
    let hidden = context.why_unknown("host", "cgroups");
    if !hidden.is_empty() {
        outcome.not_checked(format!("not all CPU quotas of readers are known{hidden}"));
    }
    for group in &context.host.cgroups {
        match stopped(context, group) {
            Some((throttled, periods)) => {
                outcome.findings.extend(finding(context, group, throttled, periods));
            }
            None => outcome.not_checked(format!(
                "how often the quota of {} stops its processes is unknown (cpu.stat)",
                text::clean(&group.path)
            )),
        }
    }
    outcome
}

/// Periods in which it was stopped, and all; over the interval where there is one.
fn stopped(context: &Context<'_>, group: &Cgroup) -> Option<(u64, u64)> {
    let now = (group.throttled_periods?, group.periods?);
    let Some(earlier) = context.earlier else { return Some(now) };
    let Some(then) = earlier.cgroups.iter().find(|then| then.path == group.path) else {
        // It had no quota, or was not there.
        return Some(now);
    };
    Some((now.0.saturating_sub(then.throttled_periods?), now.1.saturating_sub(then.periods?)))
}

fn finding(context: &Context<'_>, group: &Cgroup, throttled: u64, periods: u64) -> Option<Finding> {
    let share = ratio(throttled, periods)?;
    if throttled == 0 {
        return None;
    }
    let severity = severity::of_condition(
        context,
        share >= OFTEN,
        Some(context.per_second(throttled)),
        OFTEN_PER_S,
    );
    let path = text::clean(&group.path);
    let title = format!("{path} throttled in {} of its periods", text::percent(share));
    let cpus = ratio(group.quota_us, group.period_us).map_or_else(|| "?".to_owned(), text::digits);
    let period = text::time(group.period_us.saturating_mul(1_000));
    let owners = context.host.owners.iter().filter(|owner| group.pids.contains(&owner.pid));
    let readers: Vec<String> = owners
        .take(3)
        .map(|owner| format!("{} (pid {})", text::clean(&owner.comm), owner.pid))
        .collect();
    let since = context.since();
    let finding = Finding::new(severity, title)
        .share(Some(share), "its periods")
        .evidence(format!("Its quota is {cpus} CPUs, in periods of {period}."))
        .evidence(format!("Quota exhausted in {throttled} of {periods} periods {since}."))
        .evidence(format!("Readers: {}. Packets wait for the next period.", text::list(&readers)))
        .evidence(
            "Raise the quota (CPUQuota=, cpu.max, the container's CPU limit), or drop the limit and keep the weight.",
        );
    Some(match doubled(group) {
        Some(command) => finding.manual(command),
        None => finding,
    })
}

/// The command that doubles the quota of a systemd unit.
fn doubled(group: &Cgroup) -> Option<String> {
    let unit = group.path.rsplit('/').next()?;
    let is_unit = [".service", ".scope", ".slice"].iter().any(|kind| unit.ends_with(kind));
    let percent = group.quota_us.checked_mul(200)?.checked_div(group.period_us)?;
    let unit = shell::word(unit);
    is_unit.then(|| format!("systemctl set-property {unit} CPUQuota={percent}%"))
}
