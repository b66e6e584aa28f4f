//! Power management of the CPUs that handle packets, on request: full frequency, and no deep idle states.
//!
//! Input: the CPUs of the interrupts and of the application, their frequency policies and their limits of wake-up latency.
//! Output: the governor `performance`, or where the hardware chooses frequencies the preference `performance`; and
//! `pm_qos_resume_latency_us`, with which the kernel uses no idle state that takes longer to leave. Each reason has the
//! price, which the whole package pays: power, heat, and less boost for other cores.
//!
//! Rules: Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst (preferences are fixed with the governor
//! `performance`), cpuidle.rst ("Power Management Quality of Service"), Documentation/ABI/testing/sysfs-devices-power
//! (`n/a`: no latency at all, the CPU polls; 0: no limit).

use super::Planner;
use super::draft::{Draft, DraftChange};
use super::situation::{Situation, cpus};
use nearpath_model::{CpuFile, CpuSet, FileOf, FrequencyFile, SettingFile, Target};

pub(super) const PLANNER: Planner = Planner {
    name: "power",
    plans: "full frequency and no deep idle states where packets are handled (--performance, --wakeup-latency)",
    run,
};

/// No latency at all, as the kernel names it.
const NONE_AT_ALL: &str = "n/a";
const PERFORMANCE: &str = "performance";

fn run(situation: &Situation<'_>, draft: &mut Draft) {
    let request = situation.request;
    if !request.performance && request.wakeup_us.is_none() {
        return;
    }
    let used = used(situation, draft);
    if used.is_empty() {
        return draft.note("no CPU is known to handle packets: power management is not changed");
    }
    if request.performance {
        frequencies(situation, draft, &used);
    }
    if let Some(limit) = request.wakeup_us {
        wakeups(situation, draft, &used, limit);
    }
}

/// The CPUs that interrupts go to, and those of the application.
fn used(situation: &Situation<'_>, draft: &Draft) -> CpuSet {
    let mut used = draft.cpus_of_irqs(situation, situation.hardware());
    for nic in situation.hardware() {
        let division = situation.division(nic.numa_node);
        if division.is_apart() && !situation.workloads.is_empty() {
            used = used.union(&division.app.iter().copied().collect());
        }
    }
    for worker in situation.workloads.iter().flat_map(|workload| &workload.threads) {
        let cpus = draft.thread_cpus(worker.thread.tid, &worker.cpus);
        // A thread that may run anywhere says nothing.
        if !situation.host.topology.online.is_subset(cpus) {
            used = used.union(cpus);
        }
    }
    used.intersection(&situation.host.topology.online)
}

fn frequencies(situation: &Situation<'_>, draft: &mut Draft, used: &CpuSet) {
    let system = &situation.request.system;
    if system.policies().is_empty() {
        return draft
            .note("the kernel does not set frequencies here (no cpufreq), as in most guests");
    }
    for (&policy, of_policy) in system.policies() {
        if of_policy.intersection(used).is_empty() {
            continue;
        }
        let of = |file| FileOf::Frequency { policy, file };
        let text = |file| system.setting(&of(file));
        let Some(governor) = text(FrequencyFile::Governor) else { continue };
        if governor == PERFORMANCE {
            continue;
        }
        // With a preference the hardware chooses, between a floor and all it can.
        let (file, before) = match text(FrequencyFile::Preference) {
            Some(PERFORMANCE) => continue,
            Some(preference) => (FrequencyFile::Preference, preference),
            None => (FrequencyFile::Governor, governor),
        };
        let why = format!(
            "{} handle packets, and {before} lets them slow down between bursts; the price is their power \
             at full frequency, also without load",
            cpus(of_policy)
        );
        add(draft, format!("policy{policy}/{file}"), of(file), before, PERFORMANCE, why);
    }
}

fn wakeups(situation: &Situation<'_>, draft: &mut Draft, used: &CpuSet, limit: u32) {
    let states = situation.host.power.idle_states.as_deref().unwrap_or_default();
    let enabled = || states.iter().filter(|state| !state.disabled);
    let deepest = enabled().max_by_key(|state| state.latency_us);
    let Some(deepest) = deepest.filter(|state| state.latency_us > u64::from(limit)) else {
        return draft.note(format!(
            "no idle state takes longer than {limit}µs to leave: wake-ups are not limited"
        ));
    };
    let price = match enabled().rfind(|its| its.latency_us <= u64::from(limit)) {
        Some(state) if limit > 0 => format!("they stay in {} or above when idle", state.name),
        _ => "they poll when idle, at full power".to_owned(),
    };
    let after = if limit == 0 { NONE_AT_ALL.to_owned() } else { limit.to_string() };
    for cpu in used.iter() {
        let file = CpuFile::ResumeLatency;
        let of = FileOf::Cpu { cpu, file };
        let Some(before) = situation.request.system.setting(&of) else { continue };
        if is_as_strict(before, limit) {
            continue;
        }
        let why = format!(
            "CPU {cpu} handles packets, and {} takes {}µs to leave; the price is power: {price}",
            deepest.name, deepest.latency_us
        );
        add(draft, format!("cpu{cpu}/{file}"), of, before, &after, why);
    }
}

/// Whether a limit is there already: 0 is none.
fn is_as_strict(now: &str, limit: u32) -> bool {
    now == NONE_AT_ALL || now.parse().is_ok_and(|now: u32| now > 0 && now <= limit)
}

fn add(draft: &mut Draft, id: String, of: FileOf, before: &str, after: &str, why: String) {
    draft.add(DraftChange {
        id,
        target: Target::from(SettingFile::from(of)),
        before: before.into(),
        after: after.into(),
        why,
        finding: None,
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TWO_NODES, eth0, host, planned_for, workload};
    use super::super::{Plan, Request, System};
    use super::*;
    use nearpath_model::IdleState;
    use nearpath_testing::trees::Machine;
    use std::collections::BTreeMap;

    const CPUS: &str = "/sys/devices/system/cpu";

    /// The plan for interrupts on CPUs 4 and 5, where CPUs 4, 5 and 6 have these settings.
    fn planned(
        request: Request,
        latencies: [&str; 3],
        policies: &[(u32, &str, [&str; 2])],
    ) -> Plan {
        let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[4], &[5]])));
        let state = |name: &str, latency_us, disabled| IdleState {
            name: name.to_owned(),
            latency_us,
            disabled,
        };
        let states = [("POLL", 0, false), ("C1", 2, false), ("C6", 133, false), ("C8", 500, true)];
        host.power.idle_states = Some(states.map(|(n, us, off)| state(n, us, off)).to_vec());
        let mut files: Vec<(String, &str)> = Vec::new();
        for (cpu, latency) in (4..).zip(latencies) {
            files.push((format!("{CPUS}/cpu{cpu}/power/pm_qos_resume_latency_us"), latency));
        }
        for (number, _, [governor, preference]) in policies {
            let folder = format!("{CPUS}/cpufreq/policy{number}");
            files.push((format!("{folder}/scaling_governor"), governor));
            if !preference.is_empty() {
                files.push((format!("{folder}/energy_performance_preference"), preference));
            }
        }
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let cpus: Vec<(u32, &str)> =
            policies.iter().map(|(number, cpus, _)| (*number, *cpus)).collect();
        let system = System::default().with_settings(&files, &cpus);
        let app = [workload(&["6"])];
        planned_for(&host, &Request { system, ..request }, &app).unwrap()
    }

    fn changes(plan: &Plan) -> BTreeMap<&str, &str> {
        let power = |kind: &str| {
            kind.starts_with("pm_qos") || kind.starts_with("scaling") || kind.starts_with("energy")
        };
        let found = plan.changes.iter().filter(|change| power(change.kind()));
        found.map(|change| (change.id.as_str(), change.after.text().unwrap())).collect()
    }

    fn limit(wakeup_us: u32) -> Request {
        Request { wakeup_us: Some(wakeup_us), ..Request::default() }
    }

    #[test]
    fn wake_ups_are_limited_where_packets_are_handled_and_the_price_is_said() {
        let plan = planned(limit(20), ["0", "50", "20"], &[]);
        let id = |cpu: u32| format!("cpu{cpu}/pm_qos_resume_latency_us");
        let (four, five) = (id(4), id(5));
        assert_eq!(changes(&plan), [(four.as_str(), "20"), (five.as_str(), "20")].into());
        let why = &plan.changes.iter().find(|change| change.id == four).unwrap().why;
        assert!(
            why.contains("C6 takes 133µs") && why.contains("they stay in C1 or above"),
            "{why}"
        );
        // The kernel's name for none.
        let plan = planned(limit(0), ["0", "n/a", "7"], &[]);
        let six = id(6);
        assert_eq!(changes(&plan), [(four.as_str(), "n/a"), (six.as_str(), "n/a")].into());
        let why = &plan.changes.iter().find(|change| change.id == six).unwrap().why;
        assert!(why.contains("they poll when idle"), "{why}");
        // Disabled states do not count.
        let plan = planned(limit(133), ["0", "0", "0"], &[]);
        assert!(changes(&plan).is_empty());
        assert!(
            plan.notes.iter().any(|note| note.contains("no idle state takes longer than 133µs"))
        );
        assert!(changes(&planned(Request::default(), ["0"; 3], &[])).is_empty(), "not requested");
    }

    #[test]
    fn frequencies_are_full_by_the_governor_or_by_the_preference() {
        let request = || Request { performance: true, ..Request::default() };
        let policies = [
            (4, "4,12", ["schedutil", ""]),
            (5, "5,13", ["powersave", "balance_performance"]),
            (6, "6,14", ["performance", "performance"]),
            (7, "7,15", ["powersave", "balance_power"]),
        ];
        let plan = planned(request(), ["0"; 3], &policies);
        let expected = [
            ("policy4/scaling_governor", PERFORMANCE),
            ("policy5/energy_performance_preference", PERFORMANCE),
        ];
        assert_eq!(changes(&plan), expected.into(), "CPU 7 handles none");
        let why = &plan.changes.iter().find(|change| change.id == expected[0].0).unwrap().why;
        assert!(why.contains("the price is their power"), "{why}");
        let guest = planned(request(), ["0"; 3], &[]);
        assert!(guest.notes.iter().any(|note| note.contains("no cpufreq")), "{:?}", guest.notes);
    }
}
