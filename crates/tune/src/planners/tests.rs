//! Plans for synthetic hosts: which CPUs are allocated, what is not changed, and what is refused.

use super::*;
use nearpath_diagnose::diagnose;
use nearpath_host::{Root, Wanted};
use nearpath_model::{
    CpuId, CpuSet, Goal, InterfaceFile, Measurement, NicKind, NodeId, PlannedChange, SettingFile,
    Share, ShareKind, Thread,
};
use nearpath_testing::trees::{Layout, Machine, Nic};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

/// Two packages of one node, each of 4 cores with 2 threads: CPUs 0-3 and 8-11 are on node 0.
pub(super) const TWO_NODES: Layout =
    Layout { packages: 2, nodes: 1, llcs: 1, cores: 4, threads: 2 };

pub(super) fn set(list: &str) -> CpuSet {
    CpuSet::from_list(list).unwrap()
}

/// A NIC on a node, with the interrupts of its queues on these CPUs.
pub(super) fn nic(name: &str, bus: &str, node: i64, first_irq: u32, affinities: &[&[u32]]) -> Nic {
    let count = u32::try_from(affinities.len()).unwrap();
    let mut nic = Nic::pci(name, "mlx5_core", bus).on_node(node).queues(count, first_irq);
    for (i, cpus) in affinities.iter().enumerate() {
        nic = nic.queue(i, |queue| queue.affinity = cpus.to_vec());
    }
    nic
}

pub(super) fn eth0(affinities: &[&[u32]]) -> Nic {
    nic("eth0", "0000:5e:00.0", 1, 100, affinities)
}

pub(super) fn host(machine: Machine) -> Host {
    let tree = machine.write();
    nearpath_host::read(&Root::tree(tree.path()).unwrap(), &Wanted::default()).unwrap()
}

pub(super) fn planned_for(
    host: &Host,
    request: &Request,
    workloads: &[Workload],
) -> Result<Plan, TuneError> {
    let findings = diagnose(host, None, None).findings;
    plan(host, &findings, request, workloads, Some("boot".to_owned()), None)
}

pub(super) fn planned(host: &Host) -> Plan {
    planned_for(host, &Request::default(), &[]).unwrap()
}

/// The new values of changes of a kind, by target.
pub(super) fn of_kind<'a>(plan: &'a Plan, kind: &str) -> BTreeMap<&'a str, &'a str> {
    let changes = plan.changes.iter().filter(|change| change.kind() == kind);
    changes.map(|change| (target_of(change), change.after.text().unwrap())).collect()
}

/// The text of a change's target, leaked for the test.
fn target_of(change: &PlannedChange) -> &'static str {
    String::leak(change.target.to_string())
}

/// The CPU that each interrupt is moved to, in the order of the interrupts.
pub(super) fn irq_cpus(plan: &Plan) -> Vec<u32> {
    let number = |change: &&PlannedChange| change.id.trim_start_matches("irq-").parse::<u32>();
    let mut changes: Vec<_> =
        plan.changes.iter().filter(|change| change.kind() == "irq_affinity").collect();
    changes.sort_by_key(|change| number(change).unwrap());
    changes.iter().map(|change| change.after.text().unwrap().parse().unwrap()).collect()
}

#[test]
fn interrupts_go_to_cores_of_the_nics_node_then_to_siblings() {
    let far: &[u32] = &[0];
    let plan = planned(&host(Machine::regular(TWO_NODES).nic(eth0(&[far; 6]))));
    assert_eq!(irq_cpus(&plan), [4, 5, 6, 7, 12, 13]);
    let first = &plan.changes[0];
    assert_eq!(first.target.to_string(), "/proc/irq/100/smp_affinity_list");
    assert_eq!(
        (first.before.text().unwrap(), first.finding.as_deref()),
        ("0", Some("nic_irq_node"))
    );
    assert!(first.optional && first.why.contains("CPU 4 is on node 1, as eth0 is"), "{first:?}");
    assert_eq!(plan.now.other_node, Some(1.0));
    assert_eq!(plan.predicted.other_node, Some(0.0));
}

#[test]
fn well_placed_interrupts_stay_and_keep_their_cpu() {
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[0], &[4], &[12], &[6]])));
    let plan = planned(&host);
    // 12 is the sibling of 4, and there are free cores.
    assert_eq!(
        of_kind(&plan, "irq_affinity"),
        BTreeMap::from([
            ("/proc/irq/100/smp_affinity_list", "5"),
            ("/proc/irq/102/smp_affinity_list", "7"),
        ])
    );
    let again =
        planned(&self::host(Machine::regular(TWO_NODES).nic(eth0(&[&[5], &[4], &[7], &[6]]))));
    assert_eq!(of_kind(&again, "irq_affinity"), BTreeMap::new());
}

#[test]
fn interrupts_of_a_nic_on_a_node_of_memory_only_go_to_the_nearest_node() {
    let far: &[u32] = &[0];
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[far; 2])));
    let memory_only = NodeId(2);
    let distances = [(NodeId(0), 23), (NodeId(1), 13), (memory_only, 10)];
    let mut node = host.topology.nodes[0].clone();
    (node.node, node.cpus) = (memory_only, CpuSet::new());
    node.distances = distances.into_iter().collect();
    host.topology.nodes.push(node);
    host.nics[0].numa_node = Some(memory_only);
    let plan = planned(&host);
    assert_eq!(irq_cpus(&plan), [4, 5]);
    assert!(plan.changes[0].why.contains("is on node 1, near node 2 of eth0, which has no CPUs"));
    assert_eq!((plan.now.other_node, plan.predicted.other_node), (Some(1.0), Some(0.0)));
}

#[test]
fn an_upper_interface_means_its_lower_ones() {
    let far: &[u32] = &[0];
    let other = nic("eth1", "0000:5f:00.0", 1, 200, &[far]);
    let upper = |name: &str| Nic::software(name);
    let machine = Machine::regular(TWO_NODES).nic(eth0(&[far; 2])).nic(other);
    let mut host = host(machine.nic(upper("bond0")).nic(upper("bond0.7")).nic(upper("veth0")));
    let nic = |host: &mut Host, name: &str, change: &dyn Fn(&mut nearpath_model::Nic)| {
        change(host.nics.iter_mut().find(|nic| nic.name == name).unwrap());
    };
    nic(&mut host, "bond0", &|nic| nic.kind = NicKind::Bond);
    nic(&mut host, "eth0", &|nic| nic.master = Some("bond0".to_owned()));
    nic(&mut host, "bond0.7", &|nic| {
        (nic.kind, nic.link) = (NicKind::Vlan, Some("bond0".to_owned()));
    });
    // The other end of a veth is no part of it.
    nic(&mut host, "veth0", &|nic| {
        (nic.kind, nic.link) = (NicKind::Veth, Some("eth1".to_owned()));
    });
    let irqs = |host: &Host, name: &str| {
        let request = Request { nics: vec![name.to_owned()], ..Request::default() };
        irq_cpus(&planned_for(host, &request, &[]).unwrap()).len()
    };
    for (name, interrupts) in [("eth0", 2), ("bond0", 2), ("bond0.7", 2), ("veth0", 0), ("eth1", 1)]
    {
        assert_eq!(irqs(&host, name), interrupts, "{name}");
    }
    let none = Request { nics: vec!["eth9".to_owned()], ..Request::default() };
    let refused = planned_for(&host, &none, &[]).unwrap_err().to_string();
    assert!(refused.contains("no interface \"eth9\""), "{refused}");
}

/// seastar pulls 742 and 3196 (Azure): all packets of the synthetic interface go through its virtual function.
#[test]
fn the_virtual_function_of_a_synthetic_interface_is_planned_in_its_place() {
    let far: &[u32] = &[0];
    let synthetic =
        Nic { driver: "hv_netvsc".to_owned(), ..nic("eth9", "0000:60:00.0", 1, 300, &[far]) };
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[far; 2])).nic(synthetic));
    let both = planned(&host);
    assert_eq!(irq_cpus(&both).len(), 3);
    host.nics.iter_mut().find(|nic| nic.name == "eth0").unwrap().master = Some("eth9".to_owned());
    for nics in [vec![], vec!["eth9".to_owned()]] {
        let request = Request { nics, ..Request::default() };
        let plan = planned_for(&host, &request, &[]).unwrap();
        assert_eq!(irq_cpus(&plan), [4, 5]);
        assert!(plan.notes.iter().any(|note| note.starts_with("eth9: eth0 carries its packets")));
    }
    // While the function is down (it is replaced, or the machine migrates), the synthetic interface carries them.
    host.nics.iter_mut().find(|nic| nic.name == "eth0").unwrap().state = Some("down".to_owned());
    assert_eq!(irq_cpus(&planned(&host)).len(), 1);
}

#[test]
fn an_interface_that_is_down_is_not_planned_and_said_to_be_down() {
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[0]])));
    let request = Request { nics: vec!["eth0".to_owned()], ..Request::default() };
    assert!(!planned_for(&host, &request, &[]).unwrap().changes.is_empty());
    host.nics.iter_mut().for_each(|nic| nic.state = Some("down".to_owned()));
    let plan = planned_for(&host, &request, &[]).unwrap();
    assert!(plan.changes.is_empty());
    assert!(plan.notes.iter().any(|note| note.starts_with("eth0 is down")), "{:?}", plan.notes);
}

#[test]
fn two_nics_share_the_cores_of_a_node() {
    let all: &[u32] = &[];
    let eth1 = nic("eth1", "0000:5f:00.0", 1, 200, &[all; 4]);
    let machine = Machine::regular(TWO_NODES).nic(eth0(&[all; 4])).nic(eth1);
    let host = host(machine);
    assert_eq!(irq_cpus(&planned(&host)), [4, 5, 6, 7, 12, 13, 14, 15]);
    // The CPUs of other NICs are taken as well.
    let taken = nic("eth1", "0000:5f:00.0", 1, 200, &[&[4], &[5]]);
    let machine = Machine::regular(TWO_NODES).nic(eth0(&[all; 2])).nic(taken);
    let request = Request { nics: vec!["eth0".to_owned()], ..Request::default() };
    let plan = planned_for(&self::host(machine), &request, &[]).unwrap();
    assert_eq!(irq_cpus(&plan), [6, 7]);
}

#[test]
fn interrupts_go_to_their_cpus_and_never_to_excluded_ones() {
    let all: &[u32] = &[];
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[all; 2])));
    let irqs = |goal, irq: Option<&str>, app: Option<&str>, exclude: Option<&str>| {
        let [irq_cpus, app_cpus, exclude_cpus] = [irq, app, exclude].map(|cpus| cpus.map(set));
        let request = Request { goal, irq_cpus, app_cpus, exclude_cpus, ..Request::default() };
        super::tests::irq_cpus(&planned_for(&host, &request, &[]).unwrap())
    };
    assert_eq!(irqs(Goal::Latency, None, None, Some("4-5,12-13")), [6, 7]);
    assert_eq!(irqs(Goal::Latency, Some("0-3,5,7"), None, None), [5, 7]);
    assert_eq!(irqs(Goal::Latency, None, Some("4-6"), None), [7, 12]);
    assert_eq!(irqs(Goal::Isolation, None, Some("4-6"), None), [7, 12]);
    assert_eq!(irqs(Goal::Isolation, None, Some("4-6"), Some("7")), [12, 13]);
    assert_eq!(irqs(Goal::Isolation, Some("12-13"), Some("4-6"), None), [12, 13]);
    let nothing = Request { irq_cpus: Some(set("0")), ..Request::default() };
    let plan = planned_for(&host, &nothing, &[]).unwrap();
    assert_eq!(irq_cpus(&plan), [0; 0]);
    assert!(plan.notes.iter().any(|n| n.contains("no CPU near eth0 is left")), "{:?}", plan.notes);
}

#[test]
fn unknown_interfaces_and_cpus_are_refused() {
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[0]])));
    let said = |request: Request| planned_for(&host, &request, &[]).unwrap_err().to_string();
    let nic = Request { nics: vec!["eth9".to_owned()], ..Request::default() };
    assert!(said(nic).contains("no interface \"eth9\""));
    let default = Request::default;
    for request in [
        Request { irq_cpus: Some(set("3,99")), ..default() },
        Request { app_cpus: Some(set("3,99")), ..default() },
        Request { exclude_cpus: Some(set("3,99")), ..default() },
    ] {
        assert!(said(request).contains("not online: 99"));
    }
}

#[test]
fn xps_partitions_the_cpus_among_the_queues() {
    let all: &[u32] = &[];
    let plan = planned(&host(Machine::regular(TWO_NODES).nic(eth0(&[all; 4]))));
    let masks: Vec<String> = of_kind(&plan, "xps_cpus")
        .values()
        .map(|mask| CpuSet::from_mask(mask).unwrap().to_string())
        .collect();
    // Its own CPU, the sibling, and its share of the other node.
    assert_eq!(masks, ["0,4,8,12", "1,5,9,13", "2,6,10,14", "3,7,11,15"]);
}

#[test]
fn xps_partitions_the_cpus_among_the_queues_of_each_traffic_class() {
    let all: &[u32] = &[];
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[all; 4])));
    let masks = |classes: &[(u32, u32)]| {
        let system = System::default().with_traffic_classes("eth0", classes);
        let plan = planned_for(&host, &Request { system, ..Request::default() }, &[]).unwrap();
        let masks = of_kind(&plan, "xps_cpus").into_iter().map(|(path, mask)| {
            let queue = path.trim_end_matches("/xps_cpus").rsplit('/').next().unwrap().to_owned();
            (queue, CpuSet::from_mask(mask).unwrap().to_string())
        });
        masks.collect::<BTreeMap<_, _>>()
    };
    let pairs = |pairs: &[(&str, &str)]| {
        let pair = |(queue, cpus): &(&str, &str)| ((*queue).to_owned(), (*cpus).to_owned());
        pairs.iter().map(pair).collect::<BTreeMap<_, _>>()
    };
    // Interrupts are on 4 to 7; each class has all CPUs, its own CPUs and cores first.
    let two = masks(&[(0, 0), (1, 0), (2, 1), (3, 1)]);
    let each = |a: &str, b: &str| set(&two[a]).union(&set(&two[b]));
    assert_eq!((each("tx-0", "tx-1"), each("tx-2", "tx-3")), (set("0-15"), set("0-15")));
    assert!(set("4,12").is_subset(&set(&two["tx-0"])), "{two:?}");
    assert!(set("7,15").is_subset(&set(&two["tx-3"])), "{two:?}");
    // A class of one queue, and a queue of no class.
    let uneven = masks(&[(0, 0), (1, 1), (2, 1)]);
    assert_eq!(uneven["tx-0"], "0-15");
    assert!(!uneven.contains_key("tx-3"), "{uneven:?}");
    let one = masks(&[(0, 0), (1, 0), (2, 0), (3, 0)]);
    assert_eq!(
        one,
        pairs(&[
            ("tx-0", "0,4,8,12"),
            ("tx-1", "1,5,9,13"),
            ("tx-2", "2,6,10,14"),
            ("tx-3", "3,7,11,15")
        ])
    );
}

#[test]
fn rps_of_a_nic_with_queues_is_turned_off() {
    let far: &[u32] = &[0];
    let nic = eth0(&[far; 4]).queue(1, |queue| queue.rps_cpus = vec![0, 1]);
    let plan = planned(&host(Machine::regular(TWO_NODES).nic(nic)));
    let rps = of_kind(&plan, "rps_cpus");
    let off = CpuSet::new().to_mask();
    assert_eq!(rps, BTreeMap::from([("/sys/class/net/eth0/queues/rx-1/rps_cpus", off.as_str())]));
}

#[test]
fn rps_of_a_single_queue_stays_on_the_node() {
    let one: &[u32] = &[4];
    let nic = eth0(&[one]).queue(0, |queue| queue.rps_cpus = vec![1, 5, 6]);
    let plan = planned(&host(Machine::regular(TWO_NODES).nic(nic)));
    let masks: Vec<&str> = of_kind(&plan, "rps_cpus").into_values().collect();
    assert_eq!(masks, [set("5-6").to_mask()]);
}

#[test]
fn for_throughput_free_cpus_help_a_nic_with_few_queues() {
    let all: &[u32] = &[];
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[all; 2])));
    let request = Request { goal: Goal::Throughput, ..Request::default() };
    let plan = planned_for(&host, &request, &[]).unwrap();
    assert_eq!(irq_cpus(&plan), [4, 5]);
    let helpers = set("6-7,12-15").to_mask();
    assert!(of_kind(&plan, "rps_cpus").values().all(|mask| *mask == helpers));
    assert_eq!(of_kind(&plan, "rps_cpus").len(), 2);
    assert_eq!(of_kind(&plan, "sysctl").into_values().collect::<Vec<_>>(), ["32768"]);
    assert!(of_kind(&plan, "rps_flow_cnt").values().all(|count| *count == "16384"));
    // For latency none of it.
    assert!(of_kind(&planned(&host), "rps_cpus").is_empty());
}

/// An OVS bridge with eth0 in it and RPS on its internal port.
fn ovs(queues: usize) -> Host {
    let all: &[u32] = &[];
    let port = Nic::software("br0").queue(0, |queue| queue.rps_cpus = vec![4, 5]);
    let machine = Machine::regular(TWO_NODES).nic(eth0(&vec![all; queues])).nic(port);
    let mut host = host(machine.nic(Nic::software("ovs-system")));
    for nic in &mut host.nics {
        match nic.name.as_str() {
            "eth0" => nic.master = Some("ovs-system".to_owned()),
            _ => nic.kind = NicKind::OvsInternal,
        }
    }
    host
}

#[test]
fn rps_on_an_ovs_port_is_moved_to_the_nic() {
    let plan = planned(&ovs(2));
    let rps = of_kind(&plan, "rps_cpus");
    assert_eq!(rps["/sys/class/net/br0/queues/rx-0/rps_cpus"], CpuSet::new().to_mask());
    assert_eq!(rps["/sys/class/net/eth0/queues/rx-0/rps_cpus"], set("6-7,12-15").to_mask());
    let change = plan.changes.iter().find(|change| change.id == "br0/rx-0/rps_cpus").unwrap();
    assert!(change.why.contains("only packets of queue 0 of eth0"), "{}", change.why);
    // With a queue per CPU of the node there is nothing to steer.
    let plan = planned(&ovs(8));
    let rps: Vec<&str> = of_kind(&plan, "rps_cpus").into_keys().collect();
    assert_eq!(rps, ["/sys/class/net/br0/queues/rx-0/rps_cpus"]);
}

pub(super) fn workload(cpus: &[&str]) -> Workload {
    let worker =
        |(tid, cpus): (u32, &&str)| Worker { thread: Thread::new(70, tid, 5), cpus: set(cpus) };
    let threads = (70..).zip(cpus).map(worker).collect();
    Workload { pid: 70, comm: "server".to_owned(), service: None, threads }
}

#[test]
fn threads_go_to_the_node_and_off_the_interrupts() {
    let far: &[u32] = &[0];
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[far; 2])));
    let moved = |cpus: &[&str]| -> Vec<String> {
        let plan = planned_for(&host, &Request::default(), &[workload(cpus)]).unwrap();
        let changes = plan.changes.into_iter().filter(|change| change.kind() == "thread_affinity");
        changes.map(|change| change.after.to_string()).collect()
    };
    // The interrupts are on 4 and 5.
    assert_eq!(moved(&["0-15"]), ["6-7,12-15"]);
    // Pinned workers keep a CPU each; two on one stay together; one is there already.
    assert_eq!(moved(&["0", "1", "1", "6"]), ["7", "12", "12"]);
    assert_eq!(moved(&["4-7"]), Vec::<String>::new());
    // Too many for the CPUs without interrupts.
    assert_eq!(moved(&["0-15"; 9]), ["4-7,12-15"; 9]);
    let plan = planned_for(&host, &Request::default(), &[workload(&["0-3"])]).unwrap();
    assert_eq!((plan.now.other_node, plan.predicted.other_node), (Some(1.0), Some(0.0)));
    assert!(plan.notes.iter().any(|note| note.contains("numactl")), "{:?}", plan.notes);
}

#[test]
fn threads_avoid_the_interrupts_of_other_nics() {
    let far: &[u32] = &[0];
    // 6 and 12 are the other NIC's.
    let other = nic("eth1", "0000:5f:00.0", 1, 200, &[&[6], &[12]]);
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[far; 2])).nic(other));
    let request = Request { nics: vec!["eth0".to_owned()], ..Request::default() };
    let plan = planned_for(&host, &request, &[workload(&["0", "1", "0-15"])]).unwrap();
    // One queue per core: the core of 6 is taken, and so is that of 12 and 4.
    assert_eq!(irq_cpus(&plan), [5, 7]);
    let threads = of_kind(&plan, "thread_affinity");
    assert_eq!(threads.into_values().collect::<Vec<_>>(), ["4", "13", "4,13-15"]);
}

#[test]
fn a_plan_that_moves_the_problem_elsewhere_is_refused() {
    let near: &[u32] = &[4];
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[near])));
    let request = Request { app_cpus: Some(set("0-3")), ..Request::default() };
    let error = planned_for(&host, &request, &[workload(&["4-7"])]).unwrap_err().to_string();
    assert!(error.contains("only moves the problem elsewhere"), "{error}");
}

#[test]
fn threads_stay_if_nics_are_on_several_nodes() {
    let all: &[u32] = &[];
    let eth1 = nic("eth1", "0000:3b:00.0", 0, 200, &[all; 2]);
    let host = host(Machine::regular(TWO_NODES).nic(eth0(&[all; 2])).nic(eth1));
    let plan = planned_for(&host, &Request::default(), &[workload(&["0-15"])]).unwrap();
    assert!(of_kind(&plan, "thread_affinity").is_empty());
    assert!(plan.notes.iter().any(|n| n.contains("on several nodes")), "{:?}", plan.notes);
}

#[test]
fn readers_poll_only_for_latency_and_if_packets_wait_for_idle_cpus() {
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[4]])));
    for name in ["net.core.busy_read", "net.core.busy_poll"] {
        host.sysctls.insert(name.to_owned(), "0".to_owned());
    }
    let measured = Measurement {
        duration_s: 10.0,
        slow: serde_json::from_str(
            r#"{"seen": 200, "lost": 0, "complete": 200, "span_ns": 40000000}"#,
        )
        .unwrap(),
        budget_totals: vec![Share { share: ShareKind::Idle, ns: 30_000_000, who: None }],
        ..Measurement::default()
    };
    let findings = diagnose(&host, None, Some(&measured)).findings;
    let planned = |goal| {
        let request = Request { goal, ..Request::default() };
        plan(&host, &findings, &request, &[], Some("boot".to_owned()), None).unwrap()
    };
    assert_eq!(
        of_kind(&planned(Goal::Latency), "sysctl"),
        BTreeMap::from([
            ("/proc/sys/net/core/busy_poll", "50"),
            ("/proc/sys/net/core/busy_read", "50"),
        ])
    );
    let plan = planned(Goal::Throughput);
    assert!(!of_kind(&plan, "sysctl").keys().any(|path| path.contains("busy")));
    assert!(plan.notes.iter().any(|n| n.contains("busy_poll is not changed")), "{:?}", plan.notes);
}

#[test]
fn sysctls_are_planned_only_with_evidence() {
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[4]])));
    assert!(of_kind(&planned(&host), "sysctl").is_empty());
    host.softnet[0].processed = 1_000_000;
    host.softnet[0].dropped = 5_000;
    let plan = planned(&host);
    let backlog = plan.changes.iter().find(|c| c.id == "net.core.netdev_max_backlog").unwrap();
    assert_eq!(backlog.target.to_string(), "/proc/sys/net/core/netdev_max_backlog");
    assert_eq!([backlog.before.text().unwrap(), backlog.after.text().unwrap()], ["1000", "2000"]);
    assert_eq!(backlog.finding.as_deref(), Some("softnet"));
    assert!(
        backlog.why.starts_with("5000 packets were dropped from a full backlog"),
        "{backlog:?}"
    );
    // A few since boot are only a hint.
    host.softnet[0].dropped = 5;
    let plan = planned(&host);
    assert!(of_kind(&plan, "sysctl").is_empty());
    assert!(plan.notes.iter().any(|n| n.contains("no current harm (softnet)")), "{:?}", plan.notes);
}

/// 1,024 CPUs on 8 nodes, and 512 queues of 8 NICs.
fn large() -> Host {
    let layout = Layout { packages: 8, nodes: 1, llcs: 8, cores: 8, threads: 2 };
    let all: &[u32] = &[0];
    let nics = (0..8u32).map(|i| {
        let (name, bus) = (format!("eth{i}"), format!("0000:{i:02x}:00.0"));
        nic(&name, &bus, i.into(), 1000 + 64 * i, &vec![all; 64])
    });
    host(nics.fold(Machine::regular(layout), Machine::nic))
}

#[test]
#[allow(clippy::print_stdout, reason = "the time is worth reading")]
fn a_large_host_is_planned_quickly() {
    let host = large();
    assert_eq!(host.topology.online.len(), 1024);
    let findings = diagnose(&host, None, None).findings;
    // Time of this thread: others use the CPU meanwhile.
    let time = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let begin = time();
    let plan =
        plan(&host, &findings, &Request::default(), &[], Some("boot".to_owned()), None).unwrap();
    let took = Duration::try_from(time() - begin).unwrap();
    let mut cpus = irq_cpus(&plan);
    cpus.sort_unstable();
    cpus.dedup();
    // One is there already.
    assert_eq!(cpus.len(), 511, "no CPU is allocated twice");
    assert_eq!(of_kind(&plan, "xps_cpus").len(), 512);
    println!(
        "a plan of {} changes for 1,024 CPUs and 512 queues took {took:?}",
        plan.changes.len()
    );
    // In a release build; a test build is not optimised.
    let limit_ms = if cfg!(debug_assertions) { 3_000 } else { 300 };
    assert!(took.as_millis() < limit_ms, "{took:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// For any host: no CPU is allocated twice while others are free, all are near, every online CPU sends on exactly one
    /// queue, and planning again after the plan changes nothing.
    #[test]
    fn any_host_is_planned_soundly(
        packages in 1u32..4,
        cores in 1u32..5,
        threads in 1u32..3,
        queues in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 1..3), 1..9),
        node in 0i64..3,
    ) {
        let layout = Layout { packages, nodes: 1, llcs: 1, cores, threads };
        let machine = Machine::regular(layout);
        let online = machine.online();
        let affinities: Vec<Vec<u32>> = queues
            .iter()
            .map(|cpus| cpus.iter().map(|cpu| *cpu.get(&online)).collect())
            .collect();
        let affinities: Vec<&[u32]> = affinities.iter().map(Vec::as_slice).collect();
        let node = node % i64::from(packages);
        let mut host = host(machine.nic(nic("eth0", "0000:5e:00.0", node, 100, &affinities)));
        let plan = planned(&host);
        let near = host.topology.node(NodeId(u32::try_from(node).unwrap())).unwrap().cpus.clone();
        apply(&mut host, &plan);

        let mut given: BTreeMap<CpuId, usize> = BTreeMap::new();
        for irq in &host.irqs {
            let cpus = irq.affinity.as_ref().unwrap();
            prop_assert!(cpus.len() == 1 && cpus.is_subset(&near), "{cpus}");
            *given.entry(cpus.first().unwrap()).or_default() += 1;
        }
        let most = affinities.len().div_ceil(near.len());
        prop_assert!(given.values().all(|&count| count <= most), "{given:?}");
        let queues = &host.nics[0].tx_queues;
        if queues.len() > 1 && host.topology.online.len() > 1 {
            let senders: usize = queues.iter().map(|q| q.xps_cpus.as_ref().unwrap().len()).sum();
            prop_assert_eq!(senders, host.topology.online.len());
        }
        prop_assert_eq!(planned(&host).changes, vec![]);
    }
}

/// Applies the changes of a plan to the facts.
fn apply(host: &mut Host, plan: &Plan) {
    for change in &plan.changes {
        let number = |text: &str| -> u32 {
            text.rsplit(['-', '/']).find_map(|part| part.parse().ok()).unwrap()
        };
        match change.kind() {
            "irq_affinity" => {
                let irq = number(&change.id);
                let irq = host.irqs.iter_mut().find(|other| other.irq.0 == irq).unwrap();
                irq.affinity = Some(set(change.after.text().unwrap()));
                irq.effective_affinity = Some(set(change.after.text().unwrap()));
            }
            "xps_cpus" => {
                let queue = number(&change.id) as usize;
                let mask = CpuSet::from_mask(change.after.text().unwrap()).unwrap();
                host.nics[0].tx_queues[queue].xps_cpus = Some(mask);
            }
            other => panic!("{other}"),
        }
    }
}

/// A plan for a host whose `eth0` has these values in sysfs files, with or without polling programs.
pub(super) fn with_files(goal: Goal, files: &[(InterfaceFile, &str)], busy_poll: &str) -> Plan {
    let mut host = host(Machine::regular(TWO_NODES).nic(eth0(&[&[4]])));
    host.sysctls.insert("net.core.busy_poll".to_owned(), busy_poll.to_owned());
    let files: Vec<(SettingFile, &str)> =
        files.iter().map(|(file, value)| (SettingFile::interface("eth0", *file), *value)).collect();
    let system = System::default().with_interface_files(&files);
    planned_for(&host, &Request { goal, system, ..Request::default() }, &[]).unwrap()
}

#[test]
fn gro_holds_no_packets_for_latency_if_nothing_polls() {
    let planned = |goal, now, busy_poll| {
        let plan = with_files(goal, &[(InterfaceFile::GroFlushTimeout, now)], busy_poll);
        of_kind(&plan, "gro_flush_timeout").into_values().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(planned(Goal::Latency, "200000", "0"), ["0"]);
    assert!(planned(Goal::Latency, "0", "0").is_empty());
    assert!(planned(Goal::Latency, "200000", "50").is_empty());
    assert!(planned(Goal::Throughput, "200000", "0").is_empty());
}
