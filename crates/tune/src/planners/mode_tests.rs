//! Interrupts and application on the same CPUs and apart, on synthetic hosts.

use super::tests::{host, irq_cpus, nic, of_kind, planned_for, set, workload};
use super::*;
use nearpath_model::{Channels, CpuId, CpuSet, CpuTime, Goal};
use nearpath_testing::trees::{Layout, Machine};
use std::collections::BTreeSet;

/// One node of this many cores with two threads, and a NIC of this many queues that may have 32.
fn one_node(cores: u32, queues: usize) -> Host {
    let layout = Layout { packages: 1, nodes: 1, llcs: 1, cores, threads: 2 };
    with_channels(host(Machine::regular(layout).nic(on_node(0, queues))))
}

fn on_node(node: i64, queues: usize) -> nearpath_testing::trees::Nic {
    let anywhere: &[u32] = &[];
    nic("eth0", "0000:5e:00.0", node, 100, &vec![anywhere; queues])
}

/// Two nodes of two caches, each of 4 cores with two threads: CPUs 8-11,24-27 and 12-15,28-31 are on node 1.
fn two_llcs(queues: usize) -> Host {
    let layout = Layout { packages: 2, nodes: 1, llcs: 2, cores: 4, threads: 2 };
    with_channels(host(Machine::regular(layout).nic(on_node(1, queues))))
}

fn with_channels(mut host: Host) -> Host {
    let combined = u32::try_from(host.nics[0].rx_queues.len()).unwrap();
    host.nics[0].channels =
        Some(Channels { combined: Some(combined), combined_max: Some(32), ..Channels::default() });
    host
}

fn mode(mode: Mode) -> Request {
    Request { mode: Some(mode), ..Request::default() }
}

fn cpus_of(plan: &Plan) -> CpuSet {
    irq_cpus(plan).into_iter().map(CpuId).collect()
}

/// The CPUs that threads are moved to.
fn threads(plan: &Plan) -> BTreeSet<&str> {
    of_kind(plan, "thread_affinity").into_values().collect()
}

fn channels(plan: &Plan) -> Option<&str> {
    of_kind(plan, "channels").into_values().next()
}

fn noted(plan: &Plan, words: &str) -> bool {
    plan.notes.iter().any(|note| note.contains(words))
}

/// This many threads that may run anywhere.
fn server(threads: usize) -> [Workload; 1] {
    [workload(&vec!["0-1023"; threads])]
}

#[test]
fn the_mode_follows_the_cores_the_goal_and_the_application() {
    let planned = |cores, goal, threads| {
        let request = Request { goal, channels: Some(ChannelCount::Keep), ..Request::default() };
        let server = if threads == 0 { vec![] } else { server(threads).to_vec() };
        planned_for(&one_node(cores, 2), &request, &server).unwrap()
    };
    for (cores, goal, threads, expected) in [
        // Without an application, for throughput, and with few cores, all CPUs do both.
        (32, Goal::Latency, 0, None),
        (32, Goal::Throughput, 8, None),
        (4, Goal::Latency, 2, None),
        (8, Goal::Latency, 4, Some("eth0 (sq_split): CPUs 0,8 for interrupts, CPUs 1-7,9-15")),
        (16, Goal::Latency, 4, Some("eth0 (sq_split): CPUs 0,16 for interrupts")),
        (17, Goal::Latency, 4, Some("eth0 (split): CPUs 0-1,17-18 for interrupts")),
        (40, Goal::Latency, 4, Some("eth0 (split): CPUs 0-2,40-42 for interrupts")),
        (4, Goal::Isolation, 2, Some("eth0 (sq_split): CPUs 0,4 for interrupts, CPUs 1-3,5-7")),
        (
            1,
            Goal::Isolation,
            1,
            Some("eth0 (sq_split): CPU 0 for interrupts, CPU 1 for the application"),
        ),
    ] {
        let plan = planned(cores, goal, threads);
        let said = plan.notes.iter().find(|note| note.contains("split)"));
        match expected {
            None => assert_eq!(said, None, "{cores} {goal:?} {threads}"),
            Some(words) => assert!(said.is_some_and(|s| s.starts_with(words)), "{said:?}"),
        }
    }
}

#[test]
fn interrupts_and_threads_never_meet_where_they_are_apart() {
    for (request, irq, app) in [
        (mode(Mode::SqSplit), "0,8", "1-7,9-15"),
        (mode(Mode::Split), "0,8", "1-7,9-15"),
        (Request { irq_cpus: Some(set("2,10")), ..Request::default() }, "2,10", "0-1,3-9,11-15"),
        (Request { app_cpus: Some(set("4-6")), ..mode(Mode::SqSplit) }, "0,8", "4-6"),
        (Request { exclude_cpus: Some(set("0,8")), ..mode(Mode::SqSplit) }, "1,9", "2-7,10-15"),
    ] {
        let request = Request { channels: Some(ChannelCount::Keep), ..request };
        let host = one_node(8, 8);
        let plan = planned_for(&host, &request, &server(3)).unwrap();
        assert_eq!((cpus_of(&plan), threads(&plan)), (set(irq), BTreeSet::from([app])));
        // Two queues per CPU: well placed ones stay, and so do threads.
        let again = applied(&host, &plan);
        let again = planned_for(&again, &request, &[workload(&[app; 3])]).unwrap();
        assert!(irq_cpus(&again).is_empty() && threads(&again).is_empty(), "{again:?}");
    }
    // All of them do both.
    let plan = planned_for(&one_node(8, 16), &mode(Mode::Mq), &[workload(&["0-15"; 16])]).unwrap();
    assert_eq!(cpus_of(&plan), set("0-15"));
    assert!(threads(&plan).is_empty(), "they may run anywhere already");
}

/// The host with the interrupts where the plan puts them.
fn applied(host: &Host, plan: &Plan) -> Host {
    let mut host = host.clone();
    for change in plan.changes.iter().filter(|change| change.kind() == "irq_affinity") {
        let number: u32 = change.id.trim_start_matches("irq-").parse().unwrap();
        let irq = host.irqs.iter_mut().find(|irq| irq.irq.0 == number).unwrap();
        irq.affinity = Some(set(change.after.text().unwrap()));
        irq.effective_affinity = irq.affinity.clone();
    }
    host
}

#[test]
fn channels_follow_the_cpus_for_interrupts_down_and_up() {
    let planned =
        |request: &Request, queues| planned_for(&one_node(8, queues), request, &server(3)).unwrap();
    let irq_cpus = Request { irq_cpus: Some(set("0-2")), ..Request::default() };
    assert_eq!(channels(&planned(&mode(Mode::SqSplit), 8)), Some("combined 2"));
    assert_eq!(channels(&planned(&irq_cpus, 8)), Some("combined 3"));
    assert_eq!(channels(&planned(&irq_cpus, 1)), Some("combined 3"));
    assert_eq!(channels(&planned(&irq_cpus, 3)), None);
    // What others leave is a limit, not a number to reach.
    let isolated = |app: &str| Request {
        goal: Goal::Isolation,
        app_cpus: Some(set(app)),
        ..Request::default()
    };
    assert_eq!(channels(&planned(&isolated("2-7,10-15"), 8)), Some("combined 4"));
    assert_eq!(channels(&planned(&isolated("4-7"), 2)), None);
    // A number, or none, is requested; nothing is.
    let few = Request { channels: Some(ChannelCount::Number(1)), ..irq_cpus.clone() };
    assert_eq!(channels(&planned(&few, 8)), Some("combined 1"));
    let keep = Request { channels: Some(ChannelCount::Keep), ..irq_cpus };
    assert_eq!(channels(&planned(&keep, 8)), None);
    let auto = planned(&Request::default(), 8);
    assert_eq!(channels(&auto), None);
    assert!(noted(&auto, "eth0 has 8 queues for the CPUs 0,8"), "{:?}", auto.notes);
    // At most what the NIC has.
    let mut small = one_node(8, 1);
    small.nics[0].channels.as_mut().unwrap().combined_max = Some(2);
    let three = Request { irq_cpus: Some(set("0-2")), ..Request::default() };
    assert_eq!(channels(&planned_for(&small, &three, &[]).unwrap()), Some("combined 2"));
}

#[test]
fn load_takes_more_cores_until_all_share_it() {
    let planned = |percent: u64, mode| {
        let mut host = one_node(20, 2);
        let time = |cpu| CpuTime {
            cpu: CpuId(cpu),
            user: 0,
            nice: 0,
            system: 0,
            idle: 1000 - percent * 10,
            iowait: 0,
            irq: 0,
            softirq: percent * 10,
            steal: None,
        };
        host.cpu_time = (0..40).map(time).collect();
        let request = Request { mode, channels: Some(ChannelCount::Keep), ..Request::default() };
        planned_for(&host, &request, &server(4)).unwrap()
    };
    assert!(noted(&planned(0, None), "eth0 (split): CPUs 0-1,20-21 for"));
    // 40 CPUs at 5 % are two CPUs, or four half busy.
    let busy = planned(5, None);
    assert!(noted(&busy, "CPUs 0-3,20-23 for interrupts"), "{:?}", busy.notes);
    assert!(noted(&busy, "kept 4 of 20 cores half busy"), "{:?}", busy.notes);
    let loaded = planned(50, None);
    assert!(!loaded.notes.iter().any(|note| note.contains("split)")), "{:?}", loaded.notes);
    // As requested, but one core stays for the application.
    assert!(noted(&planned(90, Some(Mode::Split)), "for the application"));
}

#[test]
fn cpus_for_two_purposes_are_refused() {
    let host = one_node(8, 2);
    let said = |request: &Request| planned_for(&host, request, &[]).unwrap_err().to_string();
    let irq = |cpus: &str| Request { irq_cpus: Some(set(cpus)), ..Request::default() };
    let both = Request { app_cpus: Some(set("1-3")), ..irq("0-1") };
    for apart in [
        Request { goal: Goal::Isolation, ..both.clone() },
        Request { mode: Some(Mode::Split), ..both.clone() },
    ] {
        assert!(said(&apart).contains("CPU 1 cannot be both in --irq-cpus and in --app-cpus"));
    }
    assert!(planned_for(&host, &both, &[]).is_ok(), "shared unless it is to be apart");
    let excluded = Request { exclude_cpus: Some(set("1,4")), ..both };
    assert!(said(&excluded).contains("CPU 1 cannot be both in --irq-cpus and in --exclude-cpus"));
    let shared = Request { goal: Goal::Isolation, ..mode(Mode::Mq) };
    assert!(said(&shared).contains("--mode mq"));
}

#[test]
fn one_cpu_cannot_be_divided_and_isolated_ones_are_the_applications() {
    let layout = Layout::default();
    let host = host(Machine::regular(layout).nic(on_node(0, 2)));
    let plan = planned_for(&host, &mode(Mode::Split), &[]).unwrap();
    assert!(noted(&plan, "eth0 has one CPU near it"), "{:?}", plan.notes);
    let mut host = one_node(8, 2);
    host.kernel.isolated = Some(set("4-7,12-15"));
    let goal = Goal::Isolation;
    let request = Request { goal, channels: Some(ChannelCount::Keep), ..mode(Mode::SqSplit) };
    let plan = planned_for(&host, &request, &[workload(&["0-3"])]).unwrap();
    assert_eq!(cpus_of(&plan), set("0,8"));
    assert_eq!(threads(&plan), BTreeSet::from(["4"]));
    // Also where a cgroup has isolated them: the list of those isolated at boot does not have them.
    host.kernel.isolated = Some(set(""));
    host.kernel.isolated_by_cgroups = Some(set("6-7,14-15"));
    let plan = planned_for(&host, &request, &[workload(&["0-3", "0-3"])]).unwrap();
    assert_eq!((cpus_of(&plan), threads(&plan)), (set("0,8"), BTreeSet::from(["6", "7"])));
}

#[test]
fn interrupts_and_readers_share_a_last_level_cache() {
    let keep = |request: Request| Request { channels: Some(ChannelCount::Keep), ..request };
    let planned = |request: &Request, threads| {
        planned_for(&two_llcs(4), &keep(request.clone()), &server(threads)).unwrap()
    };
    // Six threads fit beside one core into one cache, seven do not.
    let near = planned(&Request::default(), 6);
    assert_eq!((cpus_of(&near), threads(&near)), (set("8,24"), BTreeSet::from(["9-11,25-27"])));
    assert_eq!(near.predicted.other_llc, Some(0.0));
    let large = planned(&Request::default(), 7);
    assert_eq!(cpus_of(&large), set("8,12,24,28"), "a core of each cache");
    assert_eq!(threads(&large), BTreeSet::from(["9-11,13-15,25-27,29-31"]));
    assert!(noted(&large, "in each of 2 last-level caches"), "{:?}", large.notes);
    // Half of the packets are for the other cache.
    assert_eq!(large.predicted.other_llc, Some(0.5));
    // The cache where the application is pinned already.
    let pinned = [workload(&["13", "14"])];
    let plan = planned_for(&two_llcs(4), &keep(Request::default()), &pinned).unwrap();
    assert_eq!((cpus_of(&plan), threads(&plan)), (set("12,28"), BTreeSet::new()));
    // Nine threads that share two CPUs need no more than these.
    let pinned = [workload(&["0", "0", "0", "0", "0", "0", "0", "0", "1"])];
    let plan = planned_for(&two_llcs(4), &keep(Request::default()), &pinned).unwrap();
    assert_eq!((cpus_of(&plan), threads(&plan)), (set("8,24"), BTreeSet::from(["9", "10"])));
    // On the CPUs of one cache, also where they do both.
    let pinned = [workload(&["13", "30"])];
    let plan = planned_for(&two_llcs(2), &keep(mode(Mode::Mq)), &pinned).unwrap();
    assert_eq!(cpus_of(&plan), set("12-13"));
    assert!(noted(&plan, "eth0 (mq): CPUs 12-15,28-31 do both"), "{:?}", plan.notes);
    assert_eq!(plan.predicted.other_llc, Some(0.0));
    // Where the application is said to be.
    let app = Request { app_cpus: Some(set("13-15,29-31")), ..mode(Mode::SqSplit) };
    assert_eq!(cpus_of(&planned(&app, 2)), set("12,28"));
    // A cache of one core keeps it for the application.
    let layout = Layout { packages: 1, nodes: 1, llcs: 6, cores: 1, threads: 2 };
    let host = host(Machine::regular(layout).nic(on_node(0, 2)));
    let plan = planned_for(&host, &keep(mode(Mode::Split)), &server(9)).unwrap();
    assert_eq!(cpus_of(&plan).len(), 2, "one core: {:?}", plan.notes);
}

#[test]
fn rps_stays_in_the_cache_of_the_queue() {
    let goal = Goal::Throughput;
    let request = Request { goal, channels: Some(ChannelCount::Keep), ..Request::default() };
    let plan = planned_for(&two_llcs(5), &request, &[]).unwrap();
    assert_eq!(cpus_of(&plan), set("8-12"));
    let masks: BTreeSet<String> = of_kind(&plan, "rps_cpus")
        .into_values()
        .map(|mask| CpuSet::from_mask(mask).unwrap().to_string())
        .collect();
    assert_eq!(masks, ["13-15,28-31", "24-27"].map(str::to_owned).into());
    assert_eq!(plan.predicted.other_llc, Some(0.0));
}

#[test]
fn the_smallest_hosts_are_divided_without_panic() {
    for (cores, threads_each, queues) in [(1, 1, 1), (1, 2, 3), (2, 1, 1), (2, 2, 7), (3, 4, 2)] {
        let layout = Layout { packages: 1, nodes: 1, llcs: 1, cores, threads: threads_each };
        let host = host(Machine::regular(layout).nic(on_node(0, queues)));
        for mode in Mode::ALL.map(Some).into_iter().chain([None]) {
            for goal in [Goal::Latency, Goal::Throughput, Goal::Isolation] {
                if (mode, goal) == (Some(Mode::Mq), Goal::Isolation) {
                    continue;
                }
                let request = Request { mode, goal, ..Request::default() };
                let plan = planned_for(&host, &request, &server(3)).unwrap();
                let irq = irq_cpus(&plan);
                assert!(irq.len() <= queues, "{plan:?}");
            }
        }
    }
}
