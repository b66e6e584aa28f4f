//! Randomly generated topologies are read back unchanged, and arbitrary bytes in any of the files give unknown
//! facts, never a panic or contradictory facts.

use nearpath_host::{Root, Wanted};
use nearpath_model::{Cpu, CpuId, CpuSet, Host, Topology};
use nearpath_testing::trees::{Cache, Layout, Machine};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A small machine with random numbers, ids and missing files.
fn machines() -> impl Strategy<Value = Machine> {
    let counts = (1..3u32, 1..3u32, 1..3u32, 1..4u32, 1..4u32);
    let numbers = (prop_oneof![Just(1u32), Just(4), Just(70)], prop_oneof![Just(1u32), Just(8)]);
    let ids = (0..3i64, any::<bool>(), any::<bool>());
    let forms = (any::<bool>(), any::<bool>());
    // For each CPU in turn: offline, without files, without node, another last level.
    let quirks = proptest::collection::vec((0..6u8, 0..8u8, 0..8u8, 0..8u8), 1..40);
    (counts, numbers, ids, forms, quirks).prop_map(|(counts, numbers, ids, forms, quirks)| {
        let (packages, nodes, llcs, cores, threads) = counts;
        let mut machine = Machine::regular(Layout { packages, nodes, llcs, cores, threads });
        (machine.masks_only, machine.private_caches) = forms;
        let (id_base, cache_ids, die) = ids;
        for cache in machine.caches.values_mut() {
            cache.id = cache.id.filter(|_| cache_ids).map(|id| id * 3 + 1);
        }
        machine.caches.insert(1000, Cache { level: 2, id: None, size_kib: 512 });
        let mut quirks = quirks.into_iter().cycle();
        let machine = machine.each_cpu(|_, cpu| {
            let quirk = quirks.next().expect("an endless iterator");
            cpu.online = quirk.0 != 0;
            cpu.bare = quirk.1 == 0;
            if quirk.2 == 0 {
                cpu.node = None;
            }
            if quirk.3 == 0 {
                cpu.cache = Some(1000);
            }
            cpu.core = cpu.core.map(|id| id * 2 + id_base);
            cpu.package = cpu.package.map(|id| id - i64::from(id_base == 2));
            cpu.die = cpu.die.filter(|_| die);
        });
        machine.renumber_cpus(|cpu| cpu * numbers.0).renumber_nodes(|node| node * numbers.1)
    })
}

fn read(tree: &Path) -> Host {
    nearpath_host::read(&Root::tree(tree).unwrap(), &Wanted::default()).unwrap()
}

/// The online CPUs of cores with at least one CPU that has files.
fn cpus_where(machine: &Machine, which: impl Fn(&nearpath_testing::trees::Cpu) -> bool) -> CpuSet {
    let group = machine.cpus.iter().filter(|(_, cpu)| cpu.online && which(cpu));
    let group: Vec<_> = group.collect();
    if group.iter().all(|(_, cpu)| cpu.bare) {
        return CpuSet::new();
    }
    group.into_iter().map(|(number, _)| CpuId(*number)).collect()
}

fn id(id: Option<i64>) -> Option<u32> {
    u32::try_from(id?).ok()
}

/// Whether each package is one core, and some node is unknown: a hypervisor may show CPUs like that, whose caches are
/// not trusted.
fn may_be_presented_by_a_hypervisor(machine: &Machine) -> bool {
    let online = || machine.cpus.values().filter(|cpu| cpu.online);
    let packages: BTreeSet<_> = online().map(|cpu| cpu.package).collect();
    let cores: BTreeSet<_> = online().map(|cpu| cpu.smt_group).collect();
    packages.len() > 1 && cores.len() == packages.len() && online().any(|cpu| cpu.node.is_none())
}

fn compare(machine: &Machine, topology: &Topology) {
    assert_eq!(topology.cpus.len(), machine.cpus.len());
    let package_known = machine.cpus.values().all(|cpu| cpu.package != Some(-1));
    for (read, (number, made)) in topology.cpus.iter().zip(&machine.cpus) {
        assert_eq!((read.cpu.0, read.online), (*number, made.online));
        let siblings = cpus_where(machine, |cpu| cpu.smt_group == made.smt_group);
        let siblings = if made.online { siblings } else { CpuSet::new() };
        assert_eq!(read.siblings, siblings, "siblings of {number}");
        let speaks = !siblings.is_empty();
        // Without the first package's number its cores cannot be distinguished by id.
        if package_known {
            assert_eq!(read.core, id(made.core).filter(|_| speaks), "core of {number}");
        }
        assert_eq!(read.package, id(made.package).filter(|_| speaks), "package of {number}");
        assert_eq!(read.die, id(made.die).filter(|_| speaks), "die of {number}");
        // An offline CPU without files has no link to its node.
        let placed = made.node.filter(|_| made.online || !made.bare);
        assert_eq!(read.node.map(|node| node.0), placed, "node of {number}");
        let sharing = cpus_where(machine, |cpu| cpu.cache == made.cache);
        let llc = topology.llcs.iter().find(|llc| Some(llc.llc) == read.llc);
        let expected = Some(sharing).filter(|cpus| made.online && !cpus.is_empty());
        if topology.llcs.is_empty() && may_be_presented_by_a_hypervisor(machine) {
            continue;
        }
        assert_eq!(llc.map(|llc| llc.cpus.clone()), expected, "cache of {number}");
        if let (Some(llc), Some(cache)) = (llc, made.cache) {
            assert_eq!(llc.level, Some(machine.caches[&cache].level));
            assert_eq!(llc.size_bytes, Some(machine.caches[&cache].size_kib * 1024));
        }
    }
    for node in &topology.nodes {
        let cpus = machine.cpus.iter().filter(|(_, c)| c.online && c.node == Some(node.node.0));
        assert_eq!(node.cpus, cpus.map(|(number, _)| CpuId(*number)).collect());
        assert_eq!(node.distances.len(), machine.nodes.len());
    }
}

/// Invariants of every topology, whatever its source.
fn consistent(topology: &Topology) {
    let ascending = topology.cpus.windows(2).all(|pair| pair[0].cpu < pair[1].cpu);
    assert!(ascending);
    assert!(topology.nodes.windows(2).all(|pair| pair[0].node < pair[1].node));
    assert!(topology.llcs.windows(2).all(|pair| pair[0].llc < pair[1].llc));
    for Cpu { cpu, online, siblings, llc, .. } in &topology.cpus {
        assert_eq!(*online, topology.online.contains(*cpu));
        assert!(siblings.is_empty() || siblings.contains(*cpu));
        assert!(siblings.is_subset(&topology.online));
        for other in siblings.iter().filter_map(|other| topology.cpu(other)) {
            assert!(other.siblings.contains(*cpu), "{cpu} and {} disagree", other.cpu);
        }
        let in_llcs = topology.llcs.iter().filter(|l| l.cpus.contains(*cpu));
        assert_eq!(in_llcs.map(|l| l.llc).collect::<Vec<_>>(), Vec::from_iter(*llc));
    }
    let cores: BTreeSet<_> = topology.cpus.iter().filter_map(|c| c.core).collect();
    assert!(cores.len() <= topology.cpus.len());
}

/// Every file of a tree.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            files(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

/// Content for a file: noise, or the right format with a wrong meaning.
fn contents() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        proptest::sample::select(vec![
            "",
            "\n",
            "-1\n",
            "0-65535\n",
            "1,0,3\n",
            "99999999999999999999\n",
            "(null)\n",
            "ffffffff,ffffffff,ffffffff\n",
            "65535\n",
            "4294967295\n",
            "0-3:0/0\n",
            "K\n",
            "18446744073709551615K\n",
            "Instruction\n",
            "3\n",
            "Node 0 MemTotal: -1 kB\n",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_topologies_are_read_back(machine in machines()) {
        let tree = machine.write();
        let host = read(tree.path());
        consistent(&host.topology);
        compare(&machine, &host.topology);
    }

    #[test]
    fn bytes_in_any_file_give_no_panic_and_no_contradiction(
        machine in machines(),
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), contents()), 1..30),
    ) {
        let tree = machine.write();
        let mut all = Vec::new();
        files(&tree.path().join("sys/devices"), &mut all);
        files(&tree.path().join("proc"), &mut all);
        for (file, content) in &damage {
            fs::write(file.get(&all), content).unwrap();
        }
        consistent(&read(tree.path()).topology);
    }
}
