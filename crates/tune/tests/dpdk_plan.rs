//! Plans for DPDK on random hosts: what is written for DPVS passes the check, and every plan keeps the rules of
//! DPVS's guide to worker tuning, which are tested here from the topology alone.

use nearpath_model::eal::parse_lcores;
use nearpath_model::{
    Cpu, CpuId, CpuSet, DpdkApplication, DpdkNic, DpdkPlan, DpvsRole, DpvsVerdict, Node, NodeId,
    Topology,
};
use nearpath_tune::dpdk::{DpdkError, Request, plan};
use nearpath_tune::dpvs::{DpvsOptions, check};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A host of the given cores by node; CPU numbers go over all first threads, then the second ones, with gaps.
fn host(cores: &[u32], threads: u32, gap: u32, offline: &BTreeSet<u32>) -> Topology {
    let all: u32 = cores.iter().sum();
    let mut topology = Topology::default();
    let mut node_cpus: BTreeMap<u32, CpuSet> = BTreeMap::new();
    let mut core = 0;
    for (node, count) in cores.iter().enumerate() {
        let node = u32::try_from(node).unwrap();
        node_cpus.entry(node).or_default();
        for _ in 0..*count {
            let numbers: Vec<CpuId> =
                (0..threads).map(|thread| CpuId((core + thread * all) * (gap + 1))).collect();
            let online: CpuSet =
                numbers.iter().copied().filter(|cpu| !offline.contains(&cpu.0)).collect();
            for cpu in numbers {
                let is_online = online.contains(cpu);
                topology.present.insert(cpu);
                topology.cpus.push(Cpu {
                    cpu,
                    online: is_online,
                    core: Some(core),
                    package: Some(node),
                    die: None,
                    cluster: None,
                    llc: None,
                    node: Some(NodeId(node)),
                    siblings: if is_online { online.clone() } else { CpuSet::new() },
                    kind: None,
                    capacity: None,
                });
                if is_online {
                    topology.online.insert(cpu);
                    node_cpus.entry(node).or_default().insert(cpu);
                }
            }
            core += 1;
        }
    }
    topology.cpus.sort_by_key(|cpu| cpu.cpu);
    topology.possible = topology.present.clone();
    let nodes: Vec<u32> = node_cpus.keys().copied().collect();
    for (node, cpus) in node_cpus {
        let distance = |other: u32| if other == node { 10 } else { 20 + node.abs_diff(other) };
        topology.nodes.push(Node {
            node: NodeId(node),
            cpus,
            memory_bytes: Some(64 << 30),
            free_bytes: None,
            distances: nodes.iter().map(|other| (NodeId(*other), distance(*other))).collect(),
            hugepages: BTreeMap::new(),
            numastat: BTreeMap::new(),
        });
    }
    topology
}

fn nic(number: u32, node: Option<u32>, vectors: Option<u32>) -> DpdkNic {
    let address = format!("0000:{:02x}:00.{}", 0x10 + number / 8, number % 8);
    DpdkNic { address, driver: Some("ixgbe".to_owned()), node: node.map(NodeId), vectors }
}

/// Each rule, from the topology alone.
fn assert_rules(topology: &Topology, request: &Request, plan: &DpdkPlan) {
    let cpus: BTreeSet<CpuId> = plan.workers.iter().map(|worker| worker.cpu).collect();
    assert_eq!(cpus.len(), plan.workers.len(), "a CPU for each worker");
    assert!(cpus.iter().all(|cpu| topology.online.contains(*cpu)), "online CPUs only");
    let ids: Vec<u32> = plan.workers.iter().map(|worker| worker.lcore).collect();
    assert_eq!(ids, (0..u32::try_from(ids.len()).unwrap()).collect::<Vec<_>>(), "dense ids");
    assert!(ids.len() <= 128);

    let core_of = |cpu: CpuId| {
        let of = topology.cpus.iter().find(|known| known.cpu == cpu).unwrap();
        of.core.unwrap()
    };
    let first = core_of(topology.online.first().unwrap());
    let on_first: Vec<_> = plan.workers.iter().filter(|w| core_of(w.cpu) == first).collect();
    assert!(
        on_first.iter().all(|worker| worker.role == DpvsRole::Master),
        "the first core is spared"
    );
    if !on_first.is_empty() {
        assert!(plan.notes.iter().any(|note| note.contains("first core")), "{:?}", plan.notes);
    }
    for worker in plan.workers.iter().filter(|worker| worker.role != DpvsRole::IsolatedRx) {
        let same = plan.workers.iter().filter(|other| core_of(other.cpu) == core_of(worker.cpu));
        let others: Vec<u32> = same.map(|o| o.lcore).filter(|id| *id != worker.lcore).collect();
        assert!(
            others.is_empty() || others == worker.partner.into_iter().collect::<Vec<_>>(),
            "SMT siblings only as a pair: {others:?} beside {worker:?}"
        );
    }
    for nic in &plan.nics {
        if let Some(vectors) = nic.vectors {
            assert!(plan.queues <= vectors.saturating_sub(1).max(1), "no more queues than the NIC");
        }
    }
    for index in 0..u32::try_from(plan.nics.len()).unwrap() {
        let mut served: Vec<u32> = plan
            .workers
            .iter()
            .filter(|worker| worker.role != DpvsRole::IsolatedRx)
            .flat_map(|worker| worker.queues.get(&index).into_iter().flatten().copied())
            .collect();
        served.sort_unstable();
        assert_eq!(served, (0..plan.queues).collect::<Vec<_>>(), "each queue has one worker");
    }
    let forwarding = plan.workers.iter().filter(|w| w.role == DpvsRole::Forwarding).count();
    if request.application == DpdkApplication::Dpvs {
        assert!(forwarding.is_power_of_two());
    }
    // Where a worker of one NIC is on another node, the NIC's node has no core left.
    for worker in plan.workers.iter().filter(|w| w.role == DpvsRole::Forwarding) {
        let near = worker.queues.keys().next().and_then(|at| plan.nics[*at as usize].node);
        if let (Some(near), 1) = (near, worker.queues.len())
            && worker.node != Some(near)
        {
            // (EAL's sets of CPUs have 1,024: a core whose other threads are offline may have none that it can name.)
            let is_named = |cpu: &&Cpu| cpu.online && cpu.cpu.0 < 1024;
            let of_node = topology.cpus.iter().filter(is_named);
            let of_node = of_node.filter(|cpu| cpu.node == Some(near));
            let cores: BTreeSet<u32> = of_node.map(|cpu| cpu.core.unwrap()).collect();
            let used: BTreeSet<u32> = plan.workers.iter().map(|w| core_of(w.cpu)).collect();
            assert!(cores.iter().all(|core| used.contains(core) || *core == first));
        }
    }
    let isolated = plan.kernel_command_line.iter().flat_map(|option| &option.words);
    for list in isolated.filter_map(|word| word.strip_prefix("nohz_full=")) {
        let set = CpuSet::from_list(list).unwrap();
        assert!(!set.contains(topology.online.first().unwrap()));
    }
}

fn assert_dpvs_accepts(topology: &Topology, plan: &DpdkPlan) {
    let word = |name: &str| {
        let option = plan.eal.iter().find(|option| option.words[0] == name).unwrap();
        option.words[1].clone()
    };
    assert!(parse_lcores(&word("--lcores")).is_ok());
    let least = plan.nics.iter().filter_map(|nic| nic.vectors).min();
    let nodes = u32::try_from(topology.nodes.len()).unwrap();
    let options = DpvsOptions {
        lcores: Some(word("--lcores")),
        main_lcore: Some(word("--main-lcore").parse().unwrap()),
        ports: Some(u32::try_from(plan.nics.len()).unwrap()),
        max_queues: least.map(|vectors| vectors.saturating_sub(1).max(1)),
        nodes: Some(nodes).filter(|nodes| *nodes <= 2),
        ..DpvsOptions::default()
    };
    let configuration = plan.configuration.as_ref().unwrap();
    let found = check(configuration.as_bytes(), &options);
    assert_eq!(found.verdict, DpvsVerdict::Accepted, "{:?}\n{configuration}", found.problems);
    assert!(found.problems.is_empty() && found.notes.is_empty());
    assert_eq!(found.workers.len(), plan.workers.len());
    for (planned, runs) in plan.workers.iter().zip(&found.workers) {
        assert_eq!((planned.lcore, Some(planned.cpu.0)), (runs.lcore, runs.cpu));
        assert_eq!(planned.role, runs.role);
    }
    if nodes > 2 {
        assert!(plan.notes.iter().any(|note| note.contains("DPVS_MAX_SOCKET")));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn plans_keep_the_rules_and_pass_the_check(
        cores in prop::collection::vec(0u32..40, 1..=8),
        threads in 1u32..=2,
        gap in 0u32..3,
        offline in prop::collection::btree_set(0u32..1000, 0..60),
        nics in prop::collection::vec((prop::option::of(0u32..8), prop::option::of(0u32..70)), 1..6),
        workers in prop::option::of(1u32..40),
        application in 0usize..3,
        isolated_rx: bool,
        kni: bool,
    ) {
        let topology = host(&cores, threads, gap, &offline);
        prop_assume!(!topology.online.is_empty());
        let application = [DpdkApplication::Testpmd, DpdkApplication::Ovs, DpdkApplication::Dpvs][application];
        let is_dpvs = application == DpdkApplication::Dpvs;
        let nics = (0..).zip(nics).map(|(number, (node, vectors))| nic(number, node, vectors)).collect();
        let request = Request {
            application, nics, workers, isolated_rx: isolated_rx && is_dpvs, kni: kni && is_dpvs,
        };
        match plan(&topology, &request) {
            Ok(plan) => {
                assert_rules(&topology, &request, &plan);
                if is_dpvs {
                    assert_dpvs_accepts(&topology, &plan);
                }
            }
            Err(DpdkError::TooFewCores { .. }) => {
                let online = topology.cpus.iter().filter(|cpu| cpu.online);
                let cores: BTreeSet<_> = online.map(|cpu| cpu.core).collect();
                // A master and, for each NIC or for all, one worker, its receiver, and KNI.
                let need = if is_dpvs { 4 } else { 1 + request.nics.len() };
                prop_assert!(cores.len() < need + 1, "{} cores", cores.len());
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}

/// The only core left near the NICs has a thread that EAL cannot name, and one that is offline.
#[test]
fn a_core_without_a_cpu_that_eal_names_is_left() {
    let topology = host(&[24, 33, 23, 37, 22, 39], 2, 2, &BTreeSet::from([498]));
    let nics = (0..).zip([5, 6, 5]).map(|(number, node)| nic(number, Some(node), None)).collect();
    let request = Request {
        application: DpdkApplication::Testpmd,
        nics,
        workers: Some(19),
        isolated_rx: false,
        kni: false,
    };
    let plan = plan(&topology, &request).unwrap();
    assert_rules(&topology, &request, &plan);
    assert!(plan.workers.iter().all(|worker| worker.cpu.0 < 1024));
}

/// Document 003's host: 20 cores, SMT off, two sockets, the NIC on the first.
#[test]
fn document_003s_examples() {
    let topology = host(&[10, 10], 1, 0, &BTreeSet::new());
    let request = Request {
        application: DpdkApplication::Dpvs,
        nics: vec![nic(0, Some(0), Some(64))],
        workers: Some(4),
        isolated_rx: false,
        kni: false,
    };
    let lcores = |request: &Request| plan(&topology, request).unwrap().eal[0].words[1].clone();
    assert_eq!(lcores(&request), "0@1,1@2,2@3,3@4,4@5", "example 1");
    // Example 2 has the receivers on the other socket; here they are on the NIC's.
    let receivers = Request { isolated_rx: true, ..request.clone() };
    assert_eq!(lcores(&receivers), "0@1,1@2,2@3,3@4,4@5,5@6,6@7,7@8,8@9");
    let kni = Request { kni: true, ..request };
    let plan = plan(&topology, &kni).unwrap();
    assert_eq!((plan.queues, plan.workers[5].role), (5, DpvsRole::Kni));
    assert!(plan.commands.iter().any(|c| c.command.starts_with("dpip flow add type kni")));
}

#[test]
fn a_plan_for_1024_cpus_and_8_nics_is_quick() {
    let topology = host(&[64; 8], 2, 0, &BTreeSet::new());
    assert_eq!(topology.online.len(), 1024);
    for application in [DpdkApplication::Testpmd, DpdkApplication::Ovs, DpdkApplication::Dpvs] {
        let is_dpvs = application == DpdkApplication::Dpvs;
        let request = Request {
            application,
            nics: (0..8).map(|number| nic(number, Some(number), Some(64))).collect(),
            workers: Some(15),
            isolated_rx: is_dpvs,
            kni: is_dpvs,
        };
        // Of this thread's own time on a CPU, whatever else the machine does: 50 ms is over ten times what it
        // takes without optimisation.
        let start = own_cpu_time();
        let plan = plan(&topology, &request).unwrap();
        let took = own_cpu_time() - start;
        assert_rules(&topology, &request, &plan);
        assert!(took < Duration::from_millis(50), "{application:?}: {took:?}");
    }
}

/// How long this thread has run on a CPU (Documentation/scheduler/sched-stats.rst).
fn own_cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

#[test]
fn nics_are_named_once_each_and_options_belong_to_dpvs() {
    let topology = host(&[8], 1, 0, &BTreeSet::new());
    let request = Request {
        application: DpdkApplication::Ovs,
        nics: vec![nic(0, Some(0), Some(9)), nic(0, Some(0), Some(9))],
        workers: None,
        isolated_rx: false,
        kni: false,
    };
    assert!(matches!(plan(&topology, &request), Err(DpdkError::Nics(_))));
    let none = Request { nics: Vec::new(), ..request.clone() };
    assert!(matches!(plan(&topology, &none), Err(DpdkError::Nics(_))));
    let kni = Request { kni: true, ..request };
    assert_eq!(plan(&topology, &kni), Err(DpdkError::OnlyDpvs("--kni")));
}
