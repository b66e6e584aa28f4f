//! Plans for services, their memory, daemons and boot parameters, on synthetic hosts.

use super::cgroup_state::CgroupState;
use super::tests::{TWO_NODES, eth0, host, of_kind, planned, planned_for, set, workload};
use super::*;
use nearpath_model::{
    Finding, Goal, HugepagePools, Irqbalance, ProposedChange, Severity, Target, Value,
};
use nearpath_testing::trees::Machine;
use std::collections::BTreeMap;

#[test]
fn irqbalance_is_reported() {
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[0]])));
    host.daemons.irqbalance = Some(true);
    let plan = planned(&host);
    assert!(plan.notes.iter().any(|note| note.contains("--banirq=100")), "{:?}", plan.notes);
}

/// A workload of the service.
fn of_service(cpus: &[&str]) -> Workload {
    Workload { service: Some("nginx.service".to_owned()), ..workload(cpus) }
}

const DROP_IN: &str = "/etc/systemd/system/nginx.service.d/50-nearpath.conf";

#[test]
fn a_service_starts_on_the_cpus_of_its_moved_threads() {
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[0], &[0]])));
    let planned = |text: &str, cpus: &[&str]| {
        let system = System::with(&[(DROP_IN, text)]);
        let request = Request { system, ..Request::default() };
        planned_for(&host, &request, &[of_service(cpus)]).unwrap()
    };
    let plan = planned("", &["0-15"]);
    let change = plan.changes.iter().find(|change| change.kind() == "unit_drop_in").unwrap();
    assert_eq!((&*change.target.to_string(), change.before.text().unwrap()), (DROP_IN, ""));
    let lines: Vec<&str> = change.after.text().unwrap().lines().skip(1).collect();
    // The interrupts are on 4 and 5.
    let expected = [
        "[Service]",
        "CPUAffinity=",
        "CPUAffinity=6-7,12-15",
        "NUMAPolicy=bind",
        "NUMAMask=",
        "NUMAMask=1",
    ];
    assert_eq!(lines, expected);
    assert!(change.why.contains("systemctl restart nginx.service") && !change.reboot);
    assert_eq!(change.persist, ["file"]);
    // An existing file waits for the restart; a well placed service needs none.
    let again = planned(change.after.text().unwrap(), &["0-15"]);
    assert!(of_kind(&again, "unit_drop_in").is_empty());
    assert!(
        again.notes.iter().any(|note| note.contains("restart the service")),
        "{:?}",
        again.notes
    );
    assert!(of_kind(&planned("", &["6-7"]), "unit_drop_in").is_empty());
    // On other hosts than the running one the file is unknown.
    let unknown = planned_for(&host, &Request::default(), &[of_service(&["0-15"])]).unwrap();
    assert!(of_kind(&unknown, "unit_drop_in").is_empty());
    assert!(unknown.notes.iter().any(|note| note.contains("no drop-in for nginx.service")));
}

const FRAGMENT: &str = "/etc/default/grub.d/50-nearpath.cfg";

#[test]
fn cpus_are_isolated_at_boot_for_isolation() {
    let all: &[u32] = &[];
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[all; 2])));
    let planned = |host: &Host, cpus: &str, irq_cpus: Option<&str>, text: &str| {
        let request = Request {
            goal: Goal::Isolation,
            app_cpus: Some(set(cpus)),
            irq_cpus: irq_cpus.map(set),
            hugepages: vec!["1G:8".parse().unwrap()],
            boot_parameters: vec![BootParameter::Nowatchdog],
            system: System::with(&[(FRAGMENT, text)]),
            ..Request::default()
        };
        planned_for(host, &request, &[])
    };
    let plan = planned(&host, "2-7,10-15", Some("0-1"), "").unwrap();
    let change = plan.changes.iter().find(|change| change.kind() == "kernel_command_line").unwrap();
    assert_eq!((&*change.target.to_string(), change.before.text().unwrap()), (FRAGMENT, ""));
    assert!(change.reboot && change.why.contains("run update-grub, and reboot"), "{change:?}");
    assert_eq!(
        change.after.text().unwrap().lines().last(),
        Some(
            "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT \
             isolcpus=managed_irq,domain,2-7,10-15 nohz_full=2-7,10-15 rcu_nocbs=2-7,10-15 \
             nmi_watchdog=0 skew_tick=1 default_hugepagesz=1G hugepagesz=1G hugepages=8 \
             irqaffinity=0-1,8-9 nowatchdog\""
        )
    );
    // Written, but not booted with.
    let again = planned(&host, "2-7,10-15", None, change.after.text().unwrap()).unwrap();
    assert!(of_kind(&again, "kernel_command_line").is_empty());
    assert!(again.notes.iter().any(|note| note.contains("not in effect yet")), "{:?}", again.notes);
    // Booted with.
    host.kernel.isolated = Some(set("2-7,10-15"));
    host.kernel.nohz_full = Some(set("2-7,10-15"));
    host.kernel.rcu_nocbs = Some(set("2-7,10-15"));
    host.kernel.cmdline = Some(
        "quiet nmi_watchdog=0 skew_tick=1 default_hugepagesz=1G hugepagesz=1G hugepages=8 \
         irqaffinity=0-1,8-9 nowatchdog"
            .to_owned(),
    );
    let booted = planned(&host, "2-7,10-15", None, change.after.text().unwrap()).unwrap();
    assert!(of_kind(&booted, "kernel_command_line").is_empty());
    assert!(!booted.notes.iter().any(|note| note.contains("in effect")), "{:?}", booted.notes);
    // Other CPUs; the old parameter is our own.
    let other = planned(&host, "4-7", None, change.after.text().unwrap()).unwrap();
    let why = &other.changes.iter().find(|c| c.kind() == "kernel_command_line").unwrap().why;
    assert!(
        why.contains("lacks isolcpus=managed_irq,domain,4-7 nohz_full=4-7 rcu_nocbs=4-7 irqaffinity=0-3,8-15;"),
        "{why}"
    );
}

#[test]
fn hugepages_are_planned_on_the_node_of_the_nic() {
    let all: &[u32] = &[];
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[all; 2])));
    let planned = |host: &Host, pages: &str| {
        let hugepages = vec![pages.parse().unwrap()];
        let sysctls = vec![("kernel.numa_balancing".to_owned(), "0".to_owned())];
        planned_for(host, &Request { hugepages, sysctls, ..Request::default() }, &[]).unwrap()
    };
    host.sysctls.insert("kernel.numa_balancing".to_owned(), "1".to_owned());
    let plan = planned(&host, "2M:512");
    let of = |plan: &Plan| {
        let change = plan.changes.iter().find(|change| change.kind() == "hugepages")?;
        let text = |value: &Value| value.text().unwrap().to_owned();
        Some((text(&change.before), text(&change.after)))
    };
    // eth0 is on node 1.
    assert_eq!(of(&plan), Some(("0:0,1:0".to_owned(), "0:0,1:512".to_owned())));
    assert_eq!(of_kind(&plan, "sysctl"), [("/proc/sys/kernel/numa_balancing", "0")].into());
    let persist = &plan.changes.iter().find(|c| c.kind() == "hugepages").unwrap().persist;
    assert!(persist.contains(&"grub".to_owned()) && persist.contains(&"systemd".to_owned()));
    assert_eq!(of(&planned(&host, "2M:0:7")), Some(("0:0,1:0".to_owned(), "0:7,1:0".to_owned())));
    for (pages, reason) in [
        ("2M:0:0", "it has them already"),
        ("2M:9:1", "node 9 has no hugepages of 2M"),
        ("1G:1", "the kernel has pages of 2M only"),
    ] {
        let plan = planned(&host, pages);
        assert_eq!(of(&plan), None, "{pages}");
        assert!(plan.notes.iter().any(|note| note.contains(reason)), "{pages} {:?}", plan.notes);
    }
    // More than the node has free is said beforehand.
    host.topology.nodes[1].free_bytes = Some(100 << 20);
    let plan = planned(&host, "2M:1:100");
    assert!(
        plan.notes.iter().any(|n| n.contains("node 1 has 100 MiB too little")),
        "{:?}",
        plan.notes
    );
}

#[test]
fn hugepages_that_a_warning_proposes_are_planned_if_there_is_memory() {
    let all: &[u32] = &[];
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[all; 2])));
    host.topology.nodes[1].free_bytes = Some(100 << 20);
    let pools = Target::Hugepages(HugepagePools::new(2048).unwrap());
    let finding = |severity, after: &str| Finding {
        check: "hugepages_node".to_owned(),
        ..Finding::new(severity, "none on the node").change(ProposedChange::new(
            pools.clone(),
            Some("0:0,1:0".to_owned()),
            after,
            "why",
        ))
    };
    let planned = |findings: &[Finding], request: Request| {
        let plan = plan(&host, findings, &request, &[], Some("boot".to_owned()), None).unwrap();
        let change = plan.changes.iter().find(|change| change.kind() == "hugepages");
        let after = change.map(|change| change.after.text().unwrap().to_owned());
        (after, plan.notes.join("; "))
    };
    let (after, _) = planned(&[finding(Severity::Warning, "0:0,1:50")], Request::default());
    assert_eq!(after.as_deref(), Some("0:0,1:50"));
    let (after, notes) = planned(&[finding(Severity::Warning, "0:0,1:51")], Request::default());
    assert!(after.is_none() && notes.contains("node 1 has 2 MiB too little free"), "{notes}");
    let (after, notes) = planned(&[finding(Severity::Info, "0:0,1:1")], Request::default());
    assert!(after.is_none() && notes.contains("not planned without need"), "{notes}");
    // What was requested counts.
    let hugepages = vec!["2M:0:7".parse().unwrap()];
    let request = Request { hugepages, ..Request::default() };
    let (after, _) = planned(&[finding(Severity::Warning, "0:0,1:50")], request);
    assert_eq!(after.as_deref(), Some("0:7,1:0"));
}

#[test]
fn threads_on_isolated_cpus_have_one_each() {
    let all: &[u32] = &[];
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[all; 2])));
    let planned = |host: &Host, goal: Goal, cpus: Option<&str>, threads: &[&str]| {
        let request = Request { goal, app_cpus: cpus.map(set), ..Request::default() };
        planned_for(host, &request, &[workload(threads)]).unwrap()
    };
    let cpus = |plan: &Plan| -> Vec<String> {
        let changes = plan.changes.iter().filter(|change| change.kind() == "thread_affinity");
        changes.map(|change| change.after.to_string()).collect()
    };
    let said = |plan: &Plan| plan.notes.iter().any(|note| note.contains("share a CPU"));
    // Isolated at the next boot; one is pinned there already.
    let plan = planned(&host, Goal::Isolation, Some("4-7"), &["0-15", "4-7", "5", "0-15"]);
    assert_eq!(cpus(&plan), ["4", "6", "7"]);
    assert!(!said(&plan), "{:?}", plan.notes);
    let why = &plan.changes.iter().find(|c| c.kind() == "thread_affinity").unwrap().why;
    assert!(why.contains("does not balance load"), "{why}");
    // If there are more threads than CPUs they share them evenly, with a note.
    let plan = planned(&host, Goal::Isolation, Some("4-5"), &["0-15"; 5]);
    assert_eq!(cpus(&plan), ["4", "5", "4", "5", "4"]);
    assert!(said(&plan), "{:?}", plan.notes);
    // Nothing is isolated: the kernel balances.
    let plan = planned(&host, Goal::Isolation, None, &["0-15"]);
    assert!(cpus(&plan)[0].contains('-'), "{plan:?}");
    // They are isolated, whatever the goal.
    host.kernel.isolated = Some(set("6-7"));
    assert_eq!(cpus(&planned(&host, Goal::Latency, Some("6-7"), &["0-15"; 2])), ["6", "7"]);
    assert_eq!(cpus(&planned(&host, Goal::Latency, Some("4-5"), &["0-15"; 2])), ["4-5", "4-5"]);
    assert_eq!(cpus(&planned(&host, Goal::Isolation, None, &["6-7"; 2])), ["6", "7"]);
}

#[test]
fn no_service_or_cgroup_gets_several_cpus_without_balancing() {
    let all: &[u32] = &[];
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[all; 2])));
    let planned = |host: &Host, goal: Goal, cpus: &str, cpuset: bool| {
        let system =
            System::with(&[(DROP_IN, ""), (FRAGMENT, "")]).with_cgroup(70, cgroup("0-15", &[70]));
        let request =
            Request { goal, app_cpus: Some(set(cpus)), cpuset, system, ..Request::default() };
        planned_for(host, &request, &[of_service(&["0-15"; 2])]).unwrap()
    };
    let line = |plan: &Plan| -> String {
        let change = plan.changes.iter().find(|c| c.kind() == "kernel_command_line").unwrap();
        change.after.text().unwrap().to_owned()
    };
    let lines = |plan: &Plan| -> String {
        let change = plan.changes.iter().find(|c| c.kind() == "unit_drop_in").unwrap();
        change.after.text().unwrap().to_owned()
    };
    // At the next boot its CPUs are balanced: its threads may use all of them.
    let plan = planned(&host, Goal::Isolation, "4-7", false);
    assert!(line(&plan).contains(" isolcpus=managed_irq,4-7 "), "{plan:?}");
    assert!(lines(&plan).contains("CPUAffinity=4-7\n"), "{plan:?}");
    let affinities = of_kind(&plan, "thread_affinity");
    assert!(affinities.values().all(|cpus| *cpus == "4-7"), "{affinities:?}");
    assert!(plan.notes.iter().any(|note| note.contains("not isolated with isolcpus=domain")));
    let plan = planned(&host, Goal::Isolation, "4-7", true);
    assert!(line(&plan).contains(" isolcpus=managed_irq,4-7 "), "{plan:?}");
    assert_eq!(of_kind(&plan, "cpuset").len(), 2, "{plan:?}");
    // One CPU needs no balancing.
    let plan = planned(&host, Goal::Isolation, "4", false);
    assert!(line(&plan).contains(" isolcpus=managed_irq,domain,4 "), "{plan:?}");
    assert!(lines(&plan).contains("CPUAffinity=4\n"), "{plan:?}");

    // They are isolated already: each running thread is pinned, and nothing else is planned.
    host.kernel.isolated = Some(set("4-7"));
    for (goal, cpuset) in [(Goal::Isolation, false), (Goal::Latency, false), (Goal::Latency, true)]
    {
        let plan = planned(&host, goal, "4-7", cpuset);
        assert!(of_kind(&plan, "unit_drop_in").is_empty(), "{plan:?}");
        assert!(of_kind(&plan, "cpuset").is_empty(), "{plan:?}");
        let affinities: Vec<&str> = of_kind(&plan, "thread_affinity").into_values().collect();
        assert!(affinities.iter().all(|cpus| set(cpus).len() == 1), "{affinities:?}");
        assert!(plan.notes.iter().any(|note| note.contains("does not balance load")), "{plan:?}");
    }
}

#[test]
fn neither_the_first_core_nor_all_cpus_are_isolated() {
    let all: &[u32] = &[];
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[all; 2])));
    let planned = |cpus: &str, irq_cpus: Option<&str>| {
        let request = Request {
            goal: Goal::Isolation,
            app_cpus: Some(set(cpus)),
            irq_cpus: irq_cpus.map(set),
            system: System::with(&[(FRAGMENT, "")]),
            ..Request::default()
        };
        planned_for(&host, &request, &[])
    };
    let said = |cpus, kept| planned(cpus, kept).unwrap_err().to_string();
    assert!(said("0-15", None).contains("isolates all CPUs"));
    assert!(said("2-7", Some("0-2")).contains("CPU 2 cannot be both"));
    let plan = planned("0,4,8,12", None).unwrap();
    let text = of_kind(&plan, "kernel_command_line")[FRAGMENT].to_owned();
    assert!(text.contains("nohz_full=4,12 "), "{text}");
    assert!(
        plan.notes.iter().any(|n| n.contains("CPUs 0,8 of the first core")),
        "{:?}",
        plan.notes
    );
    let plan = planned("0,8", None).unwrap();
    assert!(of_kind(&plan, "kernel_command_line").is_empty());
}

fn cgroup(cpus: &str, processes: &[u32]) -> CgroupState {
    CgroupState {
        cgroup: "/system.slice/nginx.service".to_owned(),
        inode: 99,
        service: None,
        cpus: cpus.to_owned(),
        mems: "0-1".to_owned(),
        partition: None,
        effective: set("0-15"),
        allowed: set("0-15"),
        processes: processes.iter().copied().collect(),
    }
}

/// The plan with --cpuset for a process in this cgroup, whose threads may run on these CPUs.
fn bound(host: &Host, state: Result<CgroupState, String>, cpus: &[&str]) -> Plan {
    let system = System::with_cgroups(BTreeMap::from([(70, state)]));
    let request = Request { cpuset: true, system, ..Request::default() };
    planned_for(host, &request, &[workload(cpus)]).unwrap()
}

#[test]
fn an_isolated_application_gets_a_partition_without_a_reboot() {
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[0], &[0]])));
    host.kernel.release = Some("6.12.1".to_owned());
    let planned = |goal, partition: Option<&str>, cpus: &str, threads: &[&str]| {
        let state = CgroupState { partition: partition.map(str::to_owned), ..cgroup(cpus, &[70]) };
        let system = System::with_cgroups(BTreeMap::from([(70, Ok(state))]));
        let app_cpus = Some(set("5-7"));
        let request = Request { goal, app_cpus, cpuset: true, system, ..Request::default() };
        let plan = planned_for(&host, &request, &[workload(threads)]).unwrap();
        let partition = plan.changes.iter().find(|its| its.id.ends_with("cpuset.cpus.partition"));
        let after = partition.map(|change| change.after.text().unwrap().to_owned());
        // Its CPUs are set before.
        let cpus = plan.changes.iter().position(|its| its.id.ends_with("/cpuset.cpus"));
        let at = plan.changes.iter().position(|its| its.id.ends_with("cpuset.cpus.partition"));
        assert!(at.is_none_or(|at| cpus.is_none_or(|cpus| cpus < at)), "{plan:?}");
        (after, plan.notes.iter().any(|note| note.contains("without a reboot: it needs")))
    };
    let some = |kind: &str| (Some(kind.to_owned()), false);
    let isolated = |partition, cpus, threads| planned(Goal::Isolation, partition, cpus, threads);
    assert_eq!(isolated(Some("member"), "0-15", &["0-15", "0-15"]), some("root"));
    // Bound already.
    assert_eq!(isolated(Some("member"), "5-7", &["5-7", "5-7"]), some("root"));
    assert_eq!(isolated(Some("member"), "5-7", &["5", "7"]), some("isolated"));
    // It would take other CPUs with it.
    assert_eq!(isolated(Some("member"), "0-15", &["5", "7"]), (None, false));
    assert_eq!(isolated(Some("root"), "5-7", &["5-7"]), (None, false));
    assert_eq!(isolated(None, "0-15", &["0-15"]), (None, true));
    assert_eq!(planned(Goal::Latency, Some("member"), "0-15", &["0-15"]), (None, false));
}

#[test]
fn a_cgroup_is_bound_instead_of_its_threads() {
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[0], &[0]])));
    let free = || Ok(cgroup("0-15", &[70]));
    let plan = bound(&host, free(), &["0-15", "0-15"]);
    assert_eq!(
        of_kind(&plan, "cpuset"),
        BTreeMap::from([
            ("cpuset.cpus inode 99 cgroup /system.slice/nginx.service", "6-7,12-15"),
            ("cpuset.mems inode 99 cgroup /system.slice/nginx.service", "1"),
        ])
    );
    assert!(of_kind(&plan, "thread_affinity").is_empty());
    assert_eq!((plan.now.other_node, plan.predicted.other_node), (Some(1.0), Some(0.0)));
    // Per thread if that is not possible, with the reason.
    let by_threads = |host: &Host, state, cpus: &[&str], reason: &str| {
        let plan = bound(host, state, cpus);
        assert!(of_kind(&plan, "cpuset").is_empty(), "{reason}");
        assert_eq!(of_kind(&plan, "thread_affinity").len(), cpus.len(), "{reason}");
        assert!(plan.notes.iter().any(|note| note.contains(reason)), "{:?}", plan.notes);
    };
    by_threads(&host, Err("not enabled".to_owned()), &["0-15"], "not enabled");
    by_threads(&host, Ok(cgroup("0-15", &[70, 71])), &["0-15"], "process 71 is also in it");
    let narrow = CgroupState { allowed: set("0-12"), ..cgroup("0-15", &[70]) };
    by_threads(&host, Ok(narrow), &["0-15"], "does not have CPU 13-15");
    by_threads(&host, free(), &["0"], "a kernel before 6.2 would discard");
    host.kernel.release = Some("6.12.1".to_owned());
    assert_eq!(of_kind(&bound(&host, free(), &["0"]), "cpuset").len(), 2);
}

#[test]
fn memory_that_a_device_may_write_to_stays() {
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[0], &[0]])));
    for (device, reason) in [
        (Ok("it has /dev/vfio/12 open"), "it has /dev/vfio/12 open"),
        (Err("/proc/70/fd: permission denied"), "writes to its memory: /proc/70/fd"),
    ] {
        let cgroups = BTreeMap::from([(70, Ok(cgroup("0-15", &[70])))]);
        let system = System::with_cgroups(cgroups).with_memory_that_stays(70, device);
        let request = Request { cpuset: true, system, ..Request::default() };
        let plan = planned_for(&host, &request, &[workload(&["0-15"])]).unwrap();
        let targets: Vec<&str> = of_kind(&plan, "cpuset").into_keys().collect();
        assert_eq!(targets, ["cpuset.cpus inode 99 cgroup /system.slice/nginx.service"]);
        assert!(plan.notes.iter().any(|note| note.contains(reason)), "{:?}", plan.notes);
    }
}

#[test]
fn memory_moves_only_since_linux_5_15() {
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[0], &[0]])));
    for (release, said) in [
        (None, "memory on other nodes stays there"),
        (Some("5.14.21"), "memory on other nodes stays there"),
        (Some("5.15.0"), "memory on other nodes moves to node 1"),
    ] {
        host.kernel.release = release.map(str::to_owned);
        let plan = bound(&host, Ok(cgroup("0-15", &[70])), &["0-15"]);
        let mems =
            plan.changes.iter().find(|change| change.target.to_string().starts_with("cpuset.mems"));
        let why = &mems.unwrap().why;
        assert!(why.contains(said), "{release:?}: {why}");
    }
}

#[test]
fn the_cpuset_of_a_service_is_set_by_systemd() {
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[0], &[0]])));
    // Empty, which the kernel would not accept again, but systemd does.
    let state = CgroupState {
        service: Some("nginx.service".to_owned()),
        mems: String::new(),
        ..cgroup("", &[70])
    };
    let plan = bound(&host, Ok(state), &["0-15"]);
    assert_eq!(
        of_kind(&plan, "unit_cpuset"),
        BTreeMap::from([
            ("unit nginx.service AllowedCPUs", "6-7,12-15"),
            ("unit nginx.service AllowedMemoryNodes", "1"),
        ])
    );
    assert!(of_kind(&plan, "thread_affinity").is_empty());
    assert_eq!((plan.now.other_node, plan.predicted.other_node), (Some(1.0), Some(0.0)));
}

#[test]
fn irqbalance_is_stopped_on_request() {
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[0], &[0]])));
    host.daemons.irqbalance = Some(true);
    let planned = |system: System| {
        let request = Request { stop_irqbalance: true, system, ..Request::default() };
        planned_for(&host, &request, &[]).unwrap()
    };
    let plan = planned(System::default().with_irqbalance_service("active"));
    let first = &plan.changes[0];
    assert_eq!(
        (&*first.target.to_string(), first.before.text().unwrap(), first.after.text().unwrap()),
        ("unit irqbalance.service ActiveState", "active", "inactive")
    );
    assert!(first.why.contains("100 101"), "{}", first.why);
    assert!(of_kind(&plan, "irqbalance_arguments").is_empty());
    for (system, reason) in [
        (System::default(), "systemd is not running"),
        (System::default().with_irqbalance_service("inactive"), "not started as a service"),
    ] {
        let plan = planned(system);
        assert!(of_kind(&plan, "unit_state").is_empty(), "{reason}");
        assert!(plan.notes.iter().any(|note| note.contains(reason)), "{:?}", plan.notes);
    }
}

#[test]
fn irqbalance_is_configured_first_and_for_this_boot_only() {
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[0], &[0]])));
    host.daemons.irqbalance = Some(true);
    let planned = |banned: &str| {
        let running = Irqbalance { pid: 7, start_ticks: 99 };
        let args = "/etc/default/irqbalance IRQBALANCE_ARGS";
        let line = "IRQBALANCE_ARGS=\"--oneshot --banirq=100\"";
        let system = System::with(&[(args, line)]).with_irqbalance(running, banned);
        planned_for(&host, &Request { system, ..Request::default() }, &[]).unwrap()
    };
    let plan = planned("55");
    let first = &plan.changes[0];
    assert_eq!(
        [&first.target.to_string(), &first.before.to_string(), &first.after.to_string()],
        ["irqbalance pid 7 start 99 banned", "55", "55 100 101"]
    );
    // The numbers differ after a reboot.
    assert!(of_kind(&plan, "irqbalance_arguments").is_empty(), "{:?}", plan.changes);
    assert!(plan.notes.iter().any(|note| note.contains("tune watch")), "{:?}", plan.notes);
    // They are excluded already.
    let plan = planned("100 101");
    assert!(of_kind(&plan, "irqbalance").is_empty(), "{:?}", plan.changes);
    assert!(!plan.notes.iter().any(|note| note.contains("irqbalance")), "{:?}", plan.notes);
}

#[test]
fn unchanged_sysctls_are_explained() {
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[4]])));
    host.softnet[0].processed = 1_000_000;
    host.softnet[0].dropped = 5_000;
    host.sysctls.insert("net.core.rmem_max".to_owned(), "212992".to_owned());
    let request = Request { reasons: true, ..Request::default() };
    let plan = planned_for(&host, &request, &[]).unwrap();
    let said = |start: &str| plan.notes.iter().filter(|note| note.starts_with(start)).count();
    assert_eq!(said("net.core.rmem_max stays 212992, not 134217728: no finding proposes more"), 1);
    assert_eq!(said("net.core.netdev_max_backlog"), 0, "it is planned");
}
