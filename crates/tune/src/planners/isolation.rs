//! Isolation without a reboot: what the kernel does on every CPU now and then, and need not do on isolated ones.
//!
//! Input: the sysctls. Output: for the goal isolation with CPUs for the application, `vm.stat_interval` (the fold of each
//! CPU's counters, a work item on each) every ten seconds instead of every second, and no `kernel.timer_migration`, so
//! that timers of other CPUs do not move to one that happens to be busy. Both are what tuned's cpu-partitioning sets.
//!
//! Unbound work of the kernel and interrupts that are requested later go to the other CPUs: the masks of workqueues and
//! `default_smp_affinity` without them.
//!
//! Rules: Documentation/admin-guide/sysctl/vm.rst (stat_interval), kernel.rst (timer_migration);
//! Documentation/admin-guide/kernel-per-CPU-kthreads.rst,
//! Documentation/core-api/workqueue.rst ("Affinity Scopes": the mask limits all unbound workqueues).

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::{Situation, cpus};
use nearpath_model::{CpuSet, FileOf, Goal, SettingFile, Sysctl};

pub(super) const PLANNER: Planner = Planner {
    name: "isolation",
    plans: "less periodic work of the kernel on isolated CPUs, without a reboot (--goal isolation)",
    run,
};

/// Seconds between two folds of the counters.
const STAT_INTERVAL_S: u64 = 10;

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    let request = situation.request;
    let Some(app) = request.app_cpus.as_ref().filter(|_| request.goal == Goal::Isolation) else {
        return;
    };
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
    keep_off(
        situation,
        draft,
        ("workqueue/cpumask", FileOf::WorkqueueCpumask),
        app,
        "unbound work of the kernel, such as writeback, runs on the application's CPUs, too",
    );
    keep_off(
        situation,
        draft,
        ("default_smp_affinity", FileOf::DefaultAffinity),
        app,
        "interrupts of devices that come later go to the application's CPUs, too",
    );
}

/// Takes CPUs out of a mask, unless none would be left that is online.
fn keep_off(
    situation: &Situation<'_>,
    draft: &mut Draft,
    (id, of): (&str, FileOf),
    app: &CpuSet,
    why: &str,
) {
    let Some(text) = situation.request.system.setting(&of) else { return };
    let Ok(before) = CpuSet::from_mask(text) else { return };
    let after = before.difference(app);
    if after == before || after.intersection(&situation.host.topology.online).is_empty() {
        return;
    }
    draft.add(DraftChange {
        id: id.to_owned(),
        target: SettingFile::from(of).into(),
        before: text.into(),
        after: after.to_mask().into(),
        why: format!("{why}; now {}", cpus(&before)),
        finding: None,
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

    #[test]
    fn masks_of_work_and_later_interrupts_leave_the_applications_cpus_out() {
        const WORK: &str = "/sys/devices/virtual/workqueue/cpumask";
        const LATER: &str = "/proc/irq/default_smp_affinity";
        let all: &[u32] = &[];
        let host = host(Machine::regular(TWO_NODES).nic(eth0(&[all; 2])));
        let planned = |goal, app: &str, work: &str, later: &str| {
            let system = crate::planners::System::default()
                .with_settings(&[(WORK, work), (LATER, later)], &[]);
            let request = Request { goal, app_cpus: Some(set(app)), system, ..Request::default() };
            let plan = planned_for(&host, &request, &[]).unwrap();
            let masks = |kind: &str| {
                let found = plan.changes.iter().find(|change| change.kind() == kind)?;
                Some(CpuSet::from_mask(found.after.text().unwrap()).unwrap().to_string())
            };
            (masks("workqueue_cpumask"), masks("default_smp_affinity"))
        };
        let some = |text: &str| Some(text.to_owned());
        let isolated = planned(Goal::Isolation, "2-7,10-15", "ffff", "ffffffff");
        // CPUs that may come later stay in.
        assert_eq!(isolated, (some("0-1,8-9"), some("0-1,8-9,16-31")));
        assert_eq!(planned(Goal::Isolation, "2-7", "0003", "ff07"), (None, some("0-1,8-15")));
        assert_eq!(
            planned(Goal::Isolation, "4-7", "00f0", "000f"),
            (None, None),
            "none would be left"
        );
        assert_eq!(planned(Goal::Latency, "4-7", "ffff", "ffff"), (None, None));
    }
}
