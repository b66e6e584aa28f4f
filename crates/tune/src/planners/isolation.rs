//! Isolation without a reboot: what the kernel does on every CPU now and then, and need not do on isolated ones.
//!
//! Input: the sysctls. Output: for the goal isolation with CPUs for the application, `vm.stat_interval` (the fold of each
//! CPU's counters, a work item on each) every ten seconds instead of every second, and no `kernel.timer_migration`, so
//! that timers of other CPUs do not move to one that happens to be busy. Both are what tuned's cpu-partitioning sets.
//!
//! Rules: Documentation/admin-guide/sysctl/vm.rst (stat_interval), kernel.rst (timer_migration);
//! Documentation/admin-guide/kernel-per-CPU-kthreads.rst.

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::Situation;
use nearpath_model::{Goal, Sysctl};

pub(super) const PLANNER: Planner = Planner {
    name: "isolation",
    plans: "less periodic work of the kernel on isolated CPUs, without a reboot (--goal isolation)",
    run,
};

/// Seconds between two folds of the counters.
const STAT_INTERVAL_S: u64 = 10;

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    let request = situation.request;
    if request.goal != Goal::Isolation || request.app_cpus.is_none() {
        return;
    }
    lower(situation, draft, Sysctl::StatInterval, STAT_INTERVAL_S, |now| {
        (now < STAT_INTERVAL_S).then(|| {
            format!(
                "each CPU folds its memory counters every {now}s, also an isolated one; readers of \
                 /proc/vmstat see them later"
            )
        })
    });
    lower(situation, draft, Sysctl::TimerMigration, 0, |now| {
        (now != 0).then(|| {
            "timers of idle CPUs move to busy ones, and the application's CPUs are always busy; \
             idle CPUs wake up for their own timers instead"
                .to_owned()
        })
    });
}

/// Plans a sysctl if its value gives a reason to, and nothing else has planned it.
fn lower(
    situation: &Situation<'_>,
    draft: &mut Draft,
    sysctl: Sysctl,
    after: u64,
    why: impl Fn(u64) -> Option<String>,
) {
    let Some(before) = situation.host.sysctls.get(sysctl.name()) else { return };
    let target = sysctl.into();
    let Some(why) = before.trim().parse().ok().and_then(why) else { return };
    if draft.has(&target) {
        return;
    }
    draft.add(DraftChange {
        id: sysctl.name().to_owned(),
        target,
        before: before.as_str().into(),
        after: after.to_string().as_str().into(),
        why,
        finding: None,
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TWO_NODES, eth0, host, planned_for, set};
    use super::*;
    use crate::planners::Request;
    use nearpath_model::Value;
    use nearpath_testing::trees::Machine;
    use std::collections::BTreeMap;

    #[test]
    fn periodic_work_is_lowered_for_isolated_applications_only() {
        let all: &[u32] = &[];
        let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[all; 2])));
        let mut planned = |goal, cpus: Option<&str>, interval: &str, migration: &str| {
            for (name, value) in
                [("vm.stat_interval", interval), ("kernel.timer_migration", migration)]
            {
                host.sysctls.insert(name.to_owned(), value.to_owned());
            }
            let request = Request { goal, app_cpus: cpus.map(set), ..Request::default() };
            let plan = planned_for(&host, &request, &[]).unwrap();
            let sysctls = plan.changes.iter().filter(|change| change.kind() == "sysctl");
            let text = |value: &Value| value.text().unwrap().to_owned();
            sysctls.map(|c| (c.id.clone(), text(&c.after))).collect::<BTreeMap<_, _>>()
        };
        let both = planned(Goal::Isolation, Some("2-7,10-15"), "1", "1");
        assert_eq!(both["vm.stat_interval"], "10");
        assert_eq!(both["kernel.timer_migration"], "0");
        assert!(planned(Goal::Isolation, Some("2-7,10-15"), "60", "0").is_empty());
        assert!(planned(Goal::Isolation, None, "1", "1").is_empty());
        assert!(planned(Goal::Latency, Some("2-7,10-15"), "1", "1").is_empty());
    }
}
