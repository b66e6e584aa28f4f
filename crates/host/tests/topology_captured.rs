//! The topology of captured real machines, compared with the output of `lscpu` on them.
//!
//! Numbers in `lscpu -p` are its own, so groups are compared: two CPUs are in one core (package, node, cache)
//! here if and only if they are there.

use nearpath_host::{Root, Wanted};
use nearpath_model::{Cpu, Topology};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

type Groups = BTreeSet<BTreeSet<u32>>;

/// CPUs with the same value; those without one are in no group.
fn groups<T: Ord>(values: impl IntoIterator<Item = (u32, Option<T>)>) -> Groups {
    let mut groups: BTreeMap<T, BTreeSet<u32>> = BTreeMap::new();
    for (cpu, value) in values {
        if let Some(value) = value {
            groups.entry(value).or_default().insert(cpu);
        }
    }
    groups.into_values().collect()
}

/// The groups that were read, restricted to the CPUs in `among`.
fn read_groups<T: Ord>(
    topology: &Topology,
    among: &BTreeSet<u32>,
    of: impl Fn(&Cpu) -> Option<T>,
) -> Groups {
    let cpus = topology.cpus.iter().filter(|cpu| among.contains(&cpu.cpu.0));
    groups(cpus.map(|cpu| (cpu.cpu.0, of(cpu))))
}

/// The groups by each column of the table that `lscpu -p` prints.
fn lscpu_columns(text: &str) -> BTreeMap<String, Groups> {
    let table: Vec<&str> =
        text.lines().skip_while(|line| !line.starts_with("# CPU,Core")).collect();
    let names = table[0].trim_start_matches("# ").split(',');
    let rows: Vec<Vec<&str>> = table[1..]
        .iter()
        .take_while(|line| line.starts_with(|c: char| c.is_ascii_digit()))
        .map(|line| line.split(',').collect())
        .collect();
    assert!(!rows.is_empty());
    let column = |i: usize| {
        groups(rows.iter().map(|row| {
            let value = row.get(i).copied().filter(|value| !value.is_empty());
            (row[0].parse().unwrap(), value)
        }))
    };
    names.enumerate().map(|(i, name)| (name.to_owned(), column(i))).collect()
}

#[test]
fn captured_hosts_match_lscpu() {
    let Some(dir) = nearpath_testing::hosts_dir() else { return };
    let mut compared = 0;
    for archive in fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()) {
        let name = archive.file_name().unwrap().to_str().unwrap();
        let Some(name) = name.strip_suffix(".tar.gz") else { continue };
        let unpacked = tempfile::tempdir().unwrap();
        let mut tar = Command::new("tar");
        // Most captured files belong to other readers.
        for folder in ["power", "cpuidle", "cpufreq", "microcode", "hotplug", "vulnerabilities"] {
            tar.arg(format!("--exclude=*/{folder}"));
        }
        tar.arg("-xzf").arg(&archive).arg("-C").arg(unpacked.path());
        assert!(tar.status().unwrap().success(), "{name}");
        let lscpu = fs::read_to_string(dir.join(format!("{name}.lscpu.txt"))).unwrap();
        compare(name, &unpacked.path().join(name), &lscpu);
        compared += 1;
    }
    if compared == 0 {
        nearpath_testing::skip("the folder of captured hosts is empty");
    }
}

fn compare(name: &str, tree: &Path, lscpu: &str) {
    let host = nearpath_host::read(&Root::tree(tree).unwrap(), &Wanted::default()).unwrap();
    let topology = &host.topology;
    let columns = lscpu_columns(lscpu);
    // The table may be truncated; the summary above it is of all CPUs.
    let listed: BTreeSet<u32> = columns["CPU"].iter().flatten().copied().collect();
    let siblings = read_groups(topology, &listed, |cpu| Some(cpu.siblings.clone()));
    assert_eq!(siblings, columns["Core"], "{name}: siblings");
    let cores = read_groups(topology, &listed, |cpu| Some((cpu.package, cpu.die, cpu.core?)));
    assert_eq!(cores, columns["Core"], "{name}: cores");
    let packages = read_groups(topology, &listed, |cpu| cpu.package);
    assert_eq!(packages, columns["Socket"], "{name}: packages");
    assert_eq!(read_groups(topology, &listed, |cpu| cpu.node), columns["Node"], "{name}: nodes");
    // lscpu accepts caches that are not shared.
    if let Some(caches) = columns.get("L3").filter(|_| !topology.llcs.is_empty()) {
        assert_eq!(&read_groups(topology, &listed, |cpu| cpu.llc), caches, "{name}: caches");
    }
    compare_summary(name, topology, lscpu);
}

fn compare_summary(name: &str, topology: &Topology, lscpu: &str) {
    let value = |key: &str| {
        let lines = lscpu.lines().filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(k, _)| *k == key).map(|(_, value)| value.trim().to_owned())
    };
    assert_eq!(Some(topology.online.to_string()), value("On-line CPU(s) list"), "{name}");
    assert_eq!(Some(topology.nodes.len().to_string()), value("NUMA node(s)"), "{name}");
    for node in &topology.nodes {
        let cpus = value(&format!("NUMA node{} CPU(s)", node.node));
        assert_eq!(Some(node.cpus.to_string()), cpus, "{name}: node {}", node.node);
    }
    let threads = topology.cpus.iter().map(|cpu| cpu.siblings.len()).max();
    assert_eq!(threads.map(|t| t.to_string()), value("Thread(s) per core"), "{name}");
    let packages: BTreeSet<_> = topology.cpus.iter().filter_map(|cpu| cpu.package).collect();
    assert_eq!(Some(packages.len().to_string()), value("Socket(s)"), "{name}");
    if let Some(l3) = value("L3 cache").filter(|_| !topology.llcs.is_empty()) {
        let instances = topology.llcs.iter().filter(|llc| llc.level == Some(3)).count();
        assert!(l3.ends_with(&format!("({instances} instances)")), "{name}: {l3}");
    }
}
