//! The topology of hosts that are hard to read: each tree has one peculiarity that careless code gets wrong.

use nearpath_host::{Root, Wanted};
use nearpath_model::{CpuId, Host, LlcId, Nearness, NodeId, Topology};
use nearpath_testing::trees::{Cache, Layout, Machine};

const CPUS: &str = "/sys/devices/system/cpu";
const NODES: &str = "/sys/devices/system/node";

fn host(machine: &Machine) -> Host {
    let tree = machine.write();
    nearpath_host::read(&Root::tree(tree.path()).unwrap(), &Wanted::default()).unwrap()
}

fn topology(machine: &Machine) -> Topology {
    host(machine).topology
}

/// The CPUs of each last-level cache, by its id.
fn llcs(topology: &Topology) -> Vec<(u32, String)> {
    topology.llcs.iter().map(|llc| (llc.llc.0, llc.cpus.to_string())).collect()
}

/// The reason why a fact is unknown.
fn reason<'a>(host: &'a Host, subject: &str, fact: &str) -> &'a str {
    let found = host.unknown.iter().find(|u| u.subject == subject && u.fact == fact);
    &found.unwrap_or_else(|| panic!("{subject} {fact}: {:?}", host.unknown)).reason
}

fn two_packages() -> Machine {
    Machine::regular(Layout { packages: 2, nodes: 2, llcs: 2, cores: 2, threads: 2 })
}

#[test]
fn a_regular_host() {
    let topology = topology(&two_packages());
    assert_eq!(topology.online.to_string(), "0-31");
    let cpu = topology.cpu(CpuId(25)).unwrap();
    assert_eq!((cpu.core, cpu.package, cpu.die, cpu.cluster), (Some(1), Some(1), Some(0), None));
    assert_eq!((cpu.llc, cpu.node), (Some(LlcId(4)), Some(NodeId(2))));
    assert_eq!(cpu.siblings.to_string(), "9,25");
    assert_eq!(llcs(&topology)[..2], [(0, "0-1,16-17".into()), (1, "2-3,18-19".into())]);
    assert_eq!(topology.llcs[0].level, Some(3));
    assert_eq!(topology.llcs[0].size_bytes, Some(8 << 20));
    let node = topology.node(NodeId(3)).unwrap();
    assert_eq!(node.cpus.to_string(), "12-15,28-31");
    assert_eq!((node.memory_bytes, node.free_bytes), (Some(16 << 30), Some(4 << 30)));
    assert_eq!(node.distances.values().copied().collect::<Vec<_>>(), [20, 20, 20, 10]);
    assert_eq!(node.numastat["numa_miss"], 20);
    assert_eq!(node.hugepages[&(2 << 20)].total, 0);
    assert_eq!(topology.nearness(CpuId(0), CpuId(16)), Some(Nearness::SameCore));
    assert_eq!(topology.nearness(CpuId(0), CpuId(1)), Some(Nearness::SameLlc));
    assert_eq!(topology.nearness(CpuId(0), CpuId(2)), Some(Nearness::SameNode));
    assert_eq!(topology.nearness(CpuId(0), CpuId(4)), Some(Nearness::OtherNode));
}

#[test]
fn offline_cpus_are_listed_with_their_node() {
    // The first CPU, one in the middle, and both threads of a core.
    let topology = topology(&two_packages().offline(&[0, 5, 9, 25]));
    assert_eq!(topology.online.to_string(), "1-4,6-8,10-24,26-31");
    assert_eq!(topology.cpus.len(), 32);
    for (cpu, node) in [(0, 0), (5, 1), (9, 2), (25, 2)] {
        let cpu = topology.cpu(CpuId(cpu)).unwrap();
        assert_eq!((cpu.online, cpu.core, cpu.llc), (false, None, None));
        assert_eq!(cpu.node, Some(NodeId(node)));
        assert!(cpu.siblings.is_empty());
    }
    assert_eq!(topology.cpu(CpuId(16)).unwrap().siblings.to_string(), "16");
    assert_eq!(topology.llcs[0].cpus.to_string(), "1,16-17");
}

#[test]
fn offline_cpus_in_shared_lists_do_not_count() {
    let stale = "0-1,16-17\n";
    let index = |cpu: u32| format!("{CPUS}/cpu{cpu}/cache/index3/shared_cpu_list");
    let siblings = format!("{CPUS}/cpu0/topology/core_cpus_list");
    let machine = two_packages().offline(&[16]).file(&siblings, "0,16\n");
    let machine = [0, 1, 17].iter().fold(machine, |m, &cpu| m.file(&index(cpu), stale));
    let topology = topology(&machine);
    assert_eq!(topology.llcs[0].cpus.to_string(), "0-1,17");
    assert_eq!(topology.cpu(CpuId(0)).unwrap().siblings.to_string(), "0");
}

#[test]
fn sparse_numbers() {
    // As on ppc64: nodes 0, 8, 252; SMT4 with only the first thread on.
    let layout = Layout { nodes: 3, cores: 2, ..Layout::default() };
    let machine = Machine::regular(layout)
        .renumber_cpus(|cpu| cpu * 4)
        .renumber_nodes(|node| [0, 8, 252][node as usize])
        .each_cpu(|number, cpu| cpu.core = Some(i64::from(number) + 2000))
        .node(8, |node| node.distances.extend([(0, 40), (252, 80)]));
    let topology = topology(&machine);
    assert_eq!(topology.present.to_string(), "0,4,8,12,16,20");
    assert_eq!(topology.node(NodeId(252)).unwrap().cpus.to_string(), "16,20");
    let distances = &topology.node(NodeId(8)).unwrap().distances;
    let distances: Vec<_> = distances.iter().map(|(node, d)| (node.0, *d)).collect();
    assert_eq!(distances, [(0, 40), (8, 10), (252, 80)]);
    assert_eq!(topology.cpu(CpuId(20)).unwrap().core, Some(2020));
    assert_eq!(topology.cpus.iter().map(|cpu| cpu.cpu.0).max(), Some(20));
}

#[test]
fn distances_are_of_the_online_nodes() {
    let machine = two_packages()
        .file(&format!("{NODES}/online"), "0,2-3\n")
        .file(&format!("{NODES}/node0/distance"), "10 21 22\n");
    let host = host(&machine);
    let distances = &host.topology.node(NodeId(0)).unwrap().distances;
    assert_eq!(distances.keys().map(|node| node.0).collect::<Vec<_>>(), [0, 2, 3]);
    assert!(reason(&host, "node 2", "distances").contains("4 columns, but 3 nodes"));
}

#[test]
fn a_node_without_cpus_and_a_cpu_without_node() {
    let machine = Machine::regular(Layout { nodes: 2, cores: 2, ..Layout::default() })
        .each_cpu(|_, cpu| cpu.node = Some(0))
        .cpu(3, |cpu| cpu.node = None);
    let host = host(&machine);
    let memory_only = host.topology.node(NodeId(1)).unwrap();
    assert!(memory_only.cpus.is_empty());
    assert_eq!(memory_only.memory_bytes, Some(16 << 30));
    assert_eq!(host.topology.node_of(CpuId(2)), Some(NodeId(0)));
    assert_eq!(host.topology.node_of(CpuId(3)), None);
    assert_eq!(reason(&host, "cpu 3", "node"), "not listed by any node");
}

#[test]
fn no_numa() {
    let mut machine = Machine::regular(Layout { cores: 4, ..Layout::default() });
    machine.nodes.clear();
    let host = host(&machine.each_cpu(|_, cpu| cpu.node = None));
    assert!(host.topology.nodes.is_empty());
    assert!(host.topology.cpus.iter().all(|cpu| cpu.node.is_none() && cpu.llc.is_some()));
    assert!(reason(&host, "cpu 0-3", "node").contains("no nodes"));
}

#[test]
fn more_than_1024_cpus_with_four_threads() {
    let layout = Layout { packages: 2, nodes: 2, llcs: 5, cores: 15, threads: 4 };
    let topology = topology(&Machine::regular(layout));
    assert_eq!(topology.cpus.len(), 1200);
    assert_eq!(topology.llcs.len(), 20);
    let cpu = topology.cpu(CpuId(1199)).unwrap();
    assert_eq!(cpu.siblings.to_string(), "299,599,899,1199");
    assert_eq!((cpu.package, cpu.node, cpu.llc), (Some(1), Some(NodeId(3)), Some(LlcId(19))));
}

#[test]
fn masks_instead_of_lists() {
    let mut machine = two_packages();
    let lists = topology(&machine);
    machine.masks_only = true;
    let masks = topology(&machine);
    assert_eq!(masks, lists);
    // A CPU above 63, so that the masks have several groups.
    let mut machine = Machine::regular(Layout { cores: 40, threads: 2, ..Layout::default() });
    machine.masks_only = true;
    assert_eq!(topology(&machine).cpu(CpuId(79)).unwrap().siblings.to_string(), "39,79");
}

#[test]
fn hybrid_cores_with_different_last_levels() {
    // As on Meteor Lake: 0-5 share an L3, the two low-power cores 6-7 have only an L2.
    let mut machine = Machine::regular(Layout { cores: 8, ..Layout::default() });
    machine.caches.get_mut(&0).unwrap().id = Some(0);
    machine.caches.insert(9, Cache { level: 2, id: Some(0), size_kib: 2048 });
    let machine = machine.each_cpu(|number, cpu| {
        cpu.kind = Some(if number < 2 { "core" } else { "atom" });
        cpu.capacity = Some(if number < 2 { 1024 } else { 600 });
        cpu.cache = Some(if number < 6 { 0 } else { 9 });
    });
    let topology = topology(&machine);
    assert_eq!(llcs(&topology), [(0, "0-5".into()), (1, "6-7".into())]);
    let levels: Vec<_> = topology.llcs.iter().map(|llc| llc.level).collect();
    assert_eq!(levels, [Some(3), Some(2)]);
    assert_eq!(topology.cpu(CpuId(1)).unwrap().kind.as_deref(), Some("core"));
    assert_eq!(topology.cpu(CpuId(7)).unwrap().kind.as_deref(), Some("atom"));
    assert_eq!(topology.cpu(CpuId(7)).unwrap().capacity, Some(600));
}

#[test]
fn sub_numa_clustering_one_cache_over_two_nodes() {
    let machine = Machine::regular(Layout { nodes: 2, cores: 4, ..Layout::default() })
        .each_cpu(|_, cpu| cpu.cache = Some(0));
    let topology = topology(&machine);
    assert_eq!(llcs(&topology), [(0, "0-7".into())]);
    assert_eq!(topology.node_of(CpuId(7)), Some(NodeId(1)));
    assert_eq!(topology.nearness(CpuId(0), CpuId(7)), Some(Nearness::SameLlc));
}

#[test]
fn cache_ids_that_are_not_unique_are_renumbered() {
    // As in a guest whose CPUs each report cache 0 of their own package.
    let mut machine = two_packages();
    machine.caches.values_mut().for_each(|cache| cache.id = Some(cache.id.unwrap() % 4));
    let ids: Vec<_> = llcs(&topology(&machine)).iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
    let mut machine = two_packages();
    machine.caches.values_mut().for_each(|cache| cache.id = Some(cache.id.unwrap() * 64));
    let ids: Vec<_> = llcs(&topology(&machine)).iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [0, 64, 128, 192, 256, 320, 384, 448]);
}

#[test]
fn arm64_without_cache_ids_packages_and_dies() {
    let mut machine = Machine::regular(Layout { llcs: 2, cores: 4, ..Layout::default() });
    machine.caches.values_mut().for_each(|cache| cache.id = None);
    let host = host(&machine.each_cpu(|number, cpu| {
        (cpu.package, cpu.die, cpu.cluster) = (Some(-1), None, Some(i64::from(number / 4)));
        cpu.core = Some((number % 4).into());
        cpu.capacity = Some(if number < 4 { 446 } else { 1024 });
    }));
    let topology = &host.topology;
    assert_eq!(llcs(topology), [(0, "0-3".into()), (1, "4-7".into())]);
    let cpu = topology.cpu(CpuId(5)).unwrap();
    assert_eq!((cpu.package, cpu.die, cpu.cluster), (None, None, Some(1)));
    assert_eq!(cpu.capacity, Some(1024));
    // core_id is numbered within the cluster there, and cores of different clusters are distinct.
    assert_eq!(cpu.core, Some(5));
    assert!(reason(&host, "host", "core").contains("lowest CPU"));
    assert!(reason(&host, "cpu 0-7", "package").contains("the kernel reports -1"));
    assert!(reason(&host, "cpu 0-7", "die").contains("not found"));
}

/// util-linux's dump of a RISC-V machine: its kernel compared one unset id with another.
#[test]
fn all_cpus_are_siblings_where_ids_are_not_set() {
    let unset = |threads| {
        let layout = Layout { packages: 1, nodes: 1, llcs: 1, cores: 4, threads };
        let mut machine = Machine::regular(layout);
        machine.private_caches = false;
        machine.each_cpu(|_, cpu| {
            (cpu.core, cpu.package, cpu.die, cpu.smt_group) = (Some(-1), Some(-1), None, 0);
        })
    };
    let with_first_caches = |mut machine: Machine, shared: &dyn Fn(u32) -> String| {
        for cpu in machine.online() {
            let index = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index9");
            machine = machine
                .file(&format!("{index}/level"), "1\n")
                .file(&format!("{index}/type"), "Data\n")
                .file(&format!("{index}/shared_cpu_list"), shared(cpu) + "\n");
        }
        host(&machine)
    };
    let siblings = |host: &Host| -> Vec<String> {
        host.topology.cpus.iter().map(|cpu| cpu.siblings.to_string()).collect()
    };
    let own = with_first_caches(unset(1), &|cpu| cpu.to_string());
    assert_eq!(siblings(&own), ["0", "1", "2", "3"]);
    assert!(reason(&own, "host", "siblings").contains("core_id is not set"));
    // Cores of two threads, and one core of four.
    let pairs = with_first_caches(unset(1), &|cpu| format!("{}-{}", cpu & !1, cpu | 1));
    assert_eq!(siblings(&pairs), ["0-1", "0-1", "2-3", "2-3"]);
    let one = with_first_caches(unset(1), &|_| "0-3".to_owned());
    assert_eq!(siblings(&one), ["0-3"; 4]);
    // Nothing tells.
    assert_eq!(siblings(&host(&unset(1))), [""; 4]);
    // Ids that are set are believed, also where one core has all CPUs.
    let set = unset(1).each_cpu(|_, cpu| cpu.core = Some(0));
    assert_eq!(siblings(&with_first_caches(set, &|cpu| cpu.to_string())), ["0-3"; 4]);
}

#[test]
fn ids_that_mean_unknown() {
    let host = host(&two_packages().each_cpu(|_, cpu| {
        (cpu.core, cpu.package, cpu.cluster) = (Some(-1), Some(4_294_967_295), Some(65_535));
    }));
    for cpu in &host.topology.cpus {
        assert_eq!((cpu.core, cpu.package, cpu.cluster), (None, None, None));
        assert_eq!(cpu.siblings.len(), 2);
    }
    assert!(reason(&host, "cpu 0-31", "cluster").contains("65535"));
}

#[test]
fn s390_packages_that_repeat_in_each_book() {
    // Two books, each with a package 1; the kernel's lists distinguish them.
    let mut machine = Machine::regular(Layout { packages: 2, cores: 3, ..Layout::default() })
        .each_cpu(|number, cpu| (cpu.package, cpu.core) = (Some(1), Some(number.into())));
    for cpu in 0..6 {
        let list = if cpu < 3 { "0-2\n" } else { "3-5\n" };
        for name in ["package_cpus_list", "core_siblings_list"] {
            machine = machine.file(&format!("{CPUS}/cpu{cpu}/topology/{name}"), list);
        }
    }
    let host = host(&machine);
    let packages: Vec<_> = host.topology.cpus.iter().map(|cpu| cpu.package.unwrap()).collect();
    assert_eq!(packages, [0, 0, 0, 3, 3, 3]);
    assert!(reason(&host, "host", "package").contains("lowest CPU"));
}

/// Writes the kernel's lists of the CPUs of each package, whatever the ids.
fn package_lists(machine: Machine, packages: &[&[u32]]) -> Machine {
    let all = packages.iter().flat_map(|package| package.iter().map(move |cpu| (cpu, package)));
    all.fold(machine, |machine, (cpu, package)| {
        let list: Vec<String> = package.iter().map(u32::to_string).collect();
        ["package_cpus_list", "core_siblings_list"].iter().fold(machine, |machine, name| {
            machine.file(&format!("{CPUS}/cpu{cpu}/topology/{name}"), list.join(","))
        })
    })
}

/// The package of each online CPU.
fn packages(topology: &Topology) -> Vec<(u32, Option<u32>)> {
    let online = topology.cpus.iter().filter(|cpu| cpu.online);
    online.map(|cpu| (cpu.cpu.0, cpu.package)).collect()
}

#[test]
fn s390_lpar_with_packages_only_in_lists() {
    // As in lscpu's s390-lpar: no package ids, core ids that number packages within a book, CPUs offline at
    // both ends of a package.
    let lists: [&[u32]; 4] = [&[1, 2], &[3, 4, 5], &[8, 9], &[10]];
    let machine = Machine::regular(Layout { cores: 12, ..Layout::default() })
        .offline(&[0, 6, 7, 11])
        .each_cpu(|number, cpu| {
            (cpu.package, cpu.core) = (Some(-1), Some(if number % 8 < 3 { 1 } else { 2 }));
        });
    let host = host(&package_lists(machine, &lists));
    let expected = [(1, 1), (2, 1), (3, 3), (4, 3), (5, 3), (8, 8), (9, 8), (10, 10)];
    assert_eq!(packages(&host.topology), expected.map(|(cpu, package)| (cpu, Some(package))));
    // Every CPU is a core, although 1 and 2 both report core 1.
    let cores: Vec<_> = host.topology.cpus.iter().filter_map(|cpu| cpu.core).collect();
    assert_eq!(cores, [1, 2, 3, 4, 5, 8, 9, 10]);
    assert!(reason(&host, "host", "package").contains("lists of their CPUs"));
}

#[test]
fn power7_lpar_with_a_package_for_each_core() {
    // As in lscpu's ppc64-POWER7-64cpu: SMT4, no package ids, all CPUs on the first of two nodes, a cache of
    // the first level and none above.
    let layout = Layout { cores: 4, threads: 4, nodes: 2, ..Layout::default() };
    let mut machine = Machine::regular(layout).each_cpu(|number, cpu| {
        let core = number / 4;
        (cpu.smt_group, cpu.core) = (core, Some(i64::from(core) * 4));
        (cpu.package, cpu.die, cpu.node) = (Some(-1), None, Some(0));
        cpu.cache = Some(core);
    });
    machine.caches = (0..8).map(|i| (i, Cache { level: 1, id: None, size_kib: 32 })).collect();
    let lists: Vec<Vec<u32>> = (0..8).map(|core| (core * 4..core * 4 + 4).collect()).collect();
    let lists: Vec<&[u32]> = lists.iter().map(Vec::as_slice).collect();
    let host = host(&package_lists(machine, &lists));
    let topology = &host.topology;
    assert!(packages(topology).iter().all(|(cpu, package)| *package == Some(cpu / 4 * 4)));
    assert_eq!(topology.cpu(CpuId(7)).unwrap().core, Some(4));
    assert_eq!(topology.cpu(CpuId(7)).unwrap().siblings.to_string(), "4-7");
    // The second and third level of POWER7 exist, but are not shown.
    assert_eq!(llcs(topology), []);
    assert!(reason(&host, "cpu 0-31", "llc").contains("no shared cache is shown"));
    assert!(topology.node(NodeId(1)).unwrap().cpus.is_empty());
}

/// Each core has a private cache.
fn private(layout: Layout, level: u32) -> Machine {
    let machine = Machine::regular(Layout { llcs: layout.llcs * layout.cores, cores: 1, ..layout });
    let mut machine = machine.each_cpu(|_, cpu| cpu.die = None);
    machine.caches.values_mut().for_each(|cache| cache.level = level);
    machine
}

#[test]
fn private_caches_are_no_last_level_caches() {
    // As Ampere Altra: an L2 for each of many cores, and a system-level cache that is not described.
    let layout = Layout { cores: 64, ..Layout::default() };
    let host = host(&private(layout, 2));
    assert_eq!((host.topology.llcs.len(), host.topology.llc_of(CpuId(5))), (0, None));
    assert!(reason(&host, "cpu 0-63", "llc").contains("no shared cache is shown"));
    assert_eq!(host.topology.nearness(CpuId(0), CpuId(63)), Some(Nearness::SameNode));
    // With threads, the cache is still private to the core.
    let threads = Layout { cores: 4, threads: 2, ..Layout::default() };
    assert_eq!(topology(&private(threads, 2)).llcs, []);
    // As EPYC 72F3: an L3 for each core, really.
    assert_eq!(topology(&private(Layout { cores: 8, ..layout }, 3)).llcs.len(), 8);
    // A cluster of four cores shares its L2; a machine with one core has nothing to share.
    let mut cluster = Machine::regular(Layout { llcs: 2, cores: 4, ..Layout::default() });
    cluster.caches.values_mut().for_each(|cache| cache.level = 2);
    assert_eq!(topology(&cluster).llcs.len(), 2);
    assert_eq!(topology(&private(Layout::default(), 2)).llcs.len(), 1);
}

#[test]
fn a_guest_whose_cpus_are_sockets_has_no_cache_for_each() {
    let sockets = Layout { packages: 8, ..Layout::default() };
    // All on one node, or on two as a guest with virtual NUMA.
    for nodes in [1, 2] {
        let machine = Machine::regular(sockets).each_cpu(|n, cpu| cpu.node = Some(n % nodes));
        let host = host(&machine);
        assert_eq!(host.topology.llcs, []);
        assert!(reason(&host, "cpu 0-7", "llc").contains("hypervisor presents as a package"));
    }
    // A package on each node is what real machines have.
    assert_eq!(topology(&Machine::regular(sockets)).llcs.len(), 8);
}

#[test]
fn bulldozer_whose_siblings_have_two_core_ids() {
    // As in lscpu's vmware_fpe: two threads of a module have different core ids, which repeat on the package's
    // other node. The lists of siblings define the cores.
    let machine = Machine::regular(Layout { packages: 2, nodes: 2, cores: 4, ..Layout::default() })
        .each_cpu(|number, cpu| {
            (cpu.smt_group, cpu.core) = (number / 2, Some(i64::from(number % 4)));
        });
    let topology = topology(&machine);
    for cpu in &topology.cpus {
        assert_eq!((cpu.core, cpu.siblings.len()), (Some(cpu.cpu.0 / 2 * 2), 2));
        assert_eq!((cpu.package, cpu.node), (Some(cpu.cpu.0 / 8), Some(NodeId(cpu.cpu.0 / 4))));
    }
}

#[test]
fn a_node_that_only_links_to_its_cpus() {
    // Captures without the node's files and without the links of the CPUs.
    let mut machine = two_packages().each_cpu(|_, cpu| cpu.node = cpu.node.filter(|n| *n != 1));
    for file in ["cpulist", "cpumap"] {
        machine = machine.without(&format!("{NODES}/node1/{file}"));
    }
    for cpu in [4, 5, 20] {
        machine = machine.file(&format!("{NODES}/node1/cpu{cpu}/uevent"), "");
    }
    let topology = topology(&machine);
    assert_eq!(topology.node(NodeId(1)).unwrap().cpus.to_string(), "4-5,20");
    assert_eq!(topology.node_of(CpuId(20)), Some(NodeId(1)));
    assert_eq!(topology.node_of(CpuId(6)), None);
}

#[test]
fn a_node_that_lists_missing_cpus() {
    // As in lscpu's s390-lpar-drawer: node 0 lists all possible CPUs.
    let machine = Machine::regular(Layout { cores: 4, ..Layout::default() })
        .file(&format!("{NODES}/node0/cpulist"), "0-140\n");
    assert_eq!(topology(&machine).node(NodeId(0)).unwrap().cpus.to_string(), "0-3");
}

#[test]
fn no_sys_or_no_proc() {
    let host = host(&two_packages().without("/sys"));
    assert!(host.topology.cpus.is_empty() && host.topology.nodes.is_empty());
    assert_eq!(reason(&host, "host", "cpus"), "/sys/devices/system/cpu: not found");
    let host = self::host(&two_packages().without("/proc"));
    assert_eq!(host.topology, topology(&two_packages()));
    assert!(reason(&host, "host", "irqs").contains("/proc/interrupts: not found"));
}

#[test]
fn core_ids_that_are_all_zero() {
    // Old sparc: the generic values, while the lists of siblings are correct.
    let machine = Machine::regular(Layout { cores: 3, threads: 2, ..Layout::default() })
        .each_cpu(|_, cpu| (cpu.core, cpu.package) = (Some(0), Some(-1)));
    let topology = topology(&machine);
    let cores: Vec<_> = topology.cpus.iter().map(|cpu| cpu.core.unwrap()).collect();
    assert_eq!(cores, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_cpu_without_files_is_placed_by_the_lists_of_others() {
    let host = host(&two_packages().cpu(17, |cpu| cpu.bare = true));
    let cpu = host.topology.cpu(CpuId(17)).unwrap();
    assert_eq!(cpu.siblings.to_string(), "1,17");
    assert_eq!((cpu.core, cpu.llc, cpu.node), (Some(1), Some(LlcId(0)), Some(NodeId(0))));
    // If no other CPU lists it, it stays unknown.
    let machine = Machine::regular(Layout { nodes: 4, ..Layout::default() });
    let host = self::host(&machine.cpu(2, |cpu| cpu.bare = true));
    let cpu = host.topology.cpu(CpuId(2)).unwrap();
    assert_eq!((cpu.core, cpu.llc, cpu.siblings.len()), (None, None, 0));
    assert!(cpu.online);
    assert_eq!(cpu.node, Some(NodeId(2)));
    assert!(reason(&host, "cpu 2", "llc").contains("no data cache"));
}

#[test]
fn no_lists_of_cpus_at_all() {
    // A capture of only the CPUs' own directories.
    let mut machine = two_packages().offline(&[3]);
    for file in ["possible", "present", "online"] {
        machine = machine.without(&format!("{CPUS}/{file}"));
    }
    let topology = topology(&machine.without(&format!("{NODES}/online")));
    assert_eq!(topology.present.to_string(), "0-31");
    assert_eq!(topology.online.to_string(), "0-2,4-31");
    assert_eq!(topology.nodes.len(), 4);
    assert_eq!(topology.node(NodeId(1)).unwrap().distances.len(), 4);
}

#[test]
fn nodes_that_do_not_list_their_cpus() {
    let machine = two_packages().offline(&[6]);
    let machine = machine.without(&format!("{NODES}/node1/cpulist"));
    let topology = topology(&machine.without(&format!("{NODES}/node1/cpumap")));
    assert_eq!(topology.node(NodeId(1)).unwrap().cpus.to_string(), "4-5,7,20-23");
    assert_eq!(topology.node_of(CpuId(6)), Some(NodeId(1)));
}

#[test]
fn contradictory_lists_are_not_used() {
    // CPU 0 lists CPU 1 as its sibling and cache mate, CPU 1 does not.
    let file = |cpu: u32, name: &str| format!("{CPUS}/cpu{cpu}/{name}");
    let machine = Machine::regular(Layout { llcs: 3, ..Layout::default() })
        .file(&file(0, "topology/core_cpus_list"), "0-1\n")
        .file(&file(0, "cache/index3/shared_cpu_list"), "0-1\n");
    let topology = topology(&machine);
    assert_eq!(topology.cpu(CpuId(0)).unwrap().siblings.to_string(), "0");
    assert_eq!(topology.cpu(CpuId(1)).unwrap().siblings.to_string(), "1");
    assert_eq!(llcs(&topology), [(0, "0".into()), (1, "1".into()), (2, "2".into())]);
    assert_eq!(topology.cpu(CpuId(1)).unwrap().core, Some(1));
}

#[test]
fn a_list_of_missing_cpus_costs_nothing() {
    let machine = Machine::regular(Layout { cores: 2, ..Layout::default() })
        .file(&format!("{CPUS}/present"), "0-65535\n")
        .file(&format!("{CPUS}/online"), "0-65535\n");
    let host = host(&machine);
    assert_eq!(host.topology.cpus.len(), 65536);
    assert_eq!(host.topology.llc_of(CpuId(1)), Some(LlcId(0)));
    assert!(reason(&host, "cpu 2-65535", "topology").contains("no directory"));
    assert!(host.unknown.len() < 200, "{}", host.unknown.len());
}

/// Number of read system calls of this thread, if the kernel counts them.
fn reads() -> Option<u64> {
    let io = std::fs::read_to_string("/proc/thread-self/io").ok()?;
    io.lines().find_map(|line| line.strip_prefix("syscr: ")?.parse().ok())
}

#[test]
fn few_files_are_read() {
    if reads().is_none() {
        nearpath_testing::skip("the kernel does not count system calls (/proc/thread-self/io)");
        return;
    }
    let layout = Layout { packages: 2, nodes: 2, llcs: 4, cores: 8, threads: 2 };
    let mut machine = Machine::regular(layout);
    machine.nics.clear();
    let (cpus, tree) = (machine.cpus.len() as u64, machine.write());
    let root = Root::tree(tree.path()).unwrap();
    let before = reads().unwrap();
    let host = nearpath_host::read(&root, &Wanted::default()).unwrap();
    let after = reads().unwrap();
    assert_eq!(host.topology.llcs.len(), 16);
    // Each CPU confirms its core and its cache (2 files); a core's ids (4, one of them absent) are read once,
    // and a cache once. A file takes two reads: its content and the end of file.
    let per_cpu = (after - before) as f64 / cpus as f64;
    assert!(per_cpu < 12.0, "{per_cpu} read calls per CPU");
}
