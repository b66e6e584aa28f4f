//! Interrupts and application apart, on hosts with several last-level caches: beside perftune.py's documented modes and
//! tuned's profiles. The share of packets that cross is computed here from sysfs alone: each packet arrives on a queue and
//! is read by a thread, all of them equally likely.

use nearpath_host::{Root, Wanted};
use nearpath_model::{Channels, CpuId, CpuSet, Host, NodeId, Thread};
use nearpath_testing::trees::{Layout, Machine, Nic};
use nearpath_tune::planners::{Mode, Request, Worker, Workload, plan};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// Where a CPU is, as sysfs says: its core, last-level cache and node, each by its list of CPUs.
struct Places(BTreeMap<u32, [String; 3]>);

impl Places {
    fn read(tree: &Path) -> Self {
        let system = tree.join("sys/devices/system");
        let text = |path: &Path| fs::read_to_string(path).map(|text| text.trim().to_owned());
        let mut nodes: BTreeMap<u32, String> = BTreeMap::new();
        for node in 0..64 {
            // A captured host has only masks.
            let folder = system.join(format!("node/node{node}"));
            let list = text(&folder.join("cpulist")).ok();
            let mask = text(&folder.join("cpumap")).ok();
            let cpus = list.map(|list| CpuSet::from_list(&list).unwrap());
            let cpus = cpus.or_else(|| mask.map(|mask| CpuSet::from_mask(&mask).unwrap()));
            for cpu in cpus.iter().flat_map(CpuSet::iter) {
                nodes.insert(cpu.0, format!("node{node}"));
            }
        }
        let of = |(cpu, node): (u32, String)| {
            let folder = system.join(format!("cpu/cpu{cpu}"));
            let level = |i: u32| {
                let cache = folder.join(format!("cache/index{i}"));
                let level: u32 = text(&cache.join("level")).ok()?.parse().ok()?;
                Some((level, text(&cache.join("shared_cpu_list")).ok()?))
            };
            let last = (0..8).filter_map(level).max_by_key(|(level, _)| *level);
            let core = text(&folder.join("topology/thread_siblings_list")).unwrap();
            (cpu, [core, last.map(|(_, list)| list).unwrap_or_default(), node])
        };
        Self(nodes.into_iter().map(of).collect())
    }

    fn of_node(&self, node: u32) -> Vec<u32> {
        let name = format!("node{node}");
        self.0.iter().filter(|(_, place)| place[2] == name).map(|(cpu, _)| *cpu).collect()
    }

    fn all(&self) -> Vec<u32> {
        self.0.keys().copied().collect()
    }

    /// The first core of some CPUs, with all of its threads.
    fn first_core(&self, cpus: &[u32]) -> Vec<u32> {
        let core = &self.0[&cpus[0]][0];
        cpus.iter().copied().filter(|cpu| self.0[cpu][0] == *core).collect()
    }

    /// perftune.py's `auto_detect_irq_mask`, for hosts with more than 4 cores: the first core of the host with up to 16
    /// cores, else one core in 16 of each node, at least one.
    fn perftune_irq_cpus(&self) -> Vec<u32> {
        let cores =
            |cpus: &[u32]| cpus.iter().map(|cpu| &self.0[cpu][0]).collect::<BTreeSet<_>>().len();
        let all = self.all();
        if cores(&all) <= 16 {
            return self.first_core(&all);
        }
        let nodes: BTreeSet<&String> = self.0.values().map(|place| &place[2]).collect();
        let of = |node: &&String| -> Vec<u32> {
            let its = self.0.iter().filter(|(_, place)| place[2] == **node);
            its.map(|(cpu, _)| *cpu).collect()
        };
        let taken = nodes.iter().flat_map(|node| {
            let (mut left, mut taken) = (of(node), Vec::new());
            for _ in 0..cores(&left).div_ceil(16) {
                let core = self.first_core(&left);
                left = self.without(&left, &core);
                taken.extend(core);
            }
            taken
        });
        taken.collect()
    }

    /// The shares of packets whose reader is on another core, cache or node than their interrupt.
    fn crossing(&self, irqs: &[Vec<u32>], readers: &[Vec<u32>]) -> [f64; 3] {
        [0, 1, 2].map(|level| {
            let mut share = 0.0;
            for (from, to) in irqs.iter().flat_map(|from| readers.iter().map(move |to| (from, to)))
            {
                let pairs = from.iter().flat_map(|a| to.iter().map(move |b| (a, b)));
                let crosses = |(a, b): (&u32, &u32)| self.0[a][level] != self.0[b][level];
                let crossed = pairs.clone().filter(|&pair| crosses(pair)).count() as f64;
                share += crossed / pairs.count() as f64;
            }
            share / (irqs.len() * readers.len()) as f64
        })
    }

    fn without(&self, cpus: &[u32], taken: &[u32]) -> Vec<u32> {
        cpus.iter().copied().filter(|cpu| !taken.contains(cpu)).collect()
    }
}

/// A host with a NIC of this many queues on a node, that may have 64, and its interrupts anywhere.
fn with_nic(host: &Host, node: u32, queues: u32) -> Host {
    let layout = Layout { packages: 1, nodes: 1, llcs: 1, cores: 2, threads: 1 };
    let nic = Nic::pci("eth0", "mlx5_core", "0000:5e:00.0").on_node(0).queues(queues, 100);
    let tree = Machine::regular(layout).nic(nic).write();
    let other = nearpath_host::read(&Root::tree(tree.path()).unwrap(), &Wanted::default()).unwrap();
    let mut host = host.clone();
    host.nics = other.nics;
    host.irqs = other.irqs;
    let all = host.topology.online.clone();
    for irq in &mut host.irqs {
        irq.affinity = Some(all.clone());
        irq.effective_affinity = [CpuId(0)].into_iter().collect::<CpuSet>().into();
    }
    host.nics.retain(|nic| nic.name == "eth0");
    for nic in &mut host.nics {
        nic.numa_node = Some(NodeId(node));
        nic.channels = Some(Channels {
            combined: Some(queues),
            combined_max: Some(64),
            ..Channels::default()
        });
    }
    host
}

fn server(threads: u32, online: &CpuSet) -> Workload {
    let worker = |tid| Worker { thread: Thread::new(70, tid, 5), cpus: online.clone() };
    let threads = (70..70 + threads).map(worker).collect();
    Workload { pid: 70, comm: "server".to_owned(), service: None, threads }
}

fn numbers(list: &str) -> Vec<u32> {
    CpuSet::from_list(list).unwrap().iter().map(|cpu| cpu.0).collect()
}

/// The CPUs of the interrupts and of the threads, as nearpath places them: the channels first, then the rest.
fn placed(host: &Host, node: u32, mode: Option<Mode>, threads: u32) -> [Vec<Vec<u32>>; 2] {
    let server = [server(threads, &host.topology.online)];
    let planned = |host: &Host, request: &Request| {
        plan(host, &[], request, &server, Some("boot".to_owned()), None).unwrap()
    };
    let request = Request { mode, ..Request::default() };
    let first = planned(&with_nic(host, node, 16), &request);
    let channels = first.changes.iter().find(|change| change.kind() == "channels");
    let queues = channels.map_or(16, |change| {
        change.after.text().unwrap().trim_start_matches("combined ").parse().unwrap()
    });
    let host = with_nic(host, node, queues);
    let plan = planned(&host, &request);
    let values = |kind: &str| {
        let changes = plan.changes.iter().filter(|change| change.kind() == kind);
        changes.map(|change| numbers(change.after.text().unwrap())).collect::<Vec<_>>()
    };
    let [irqs, readers] = [values("irq_affinity"), values("thread_affinity")];
    assert_eq!((irqs.len(), readers.len()), (queues as usize, threads as usize), "{plan:?}");
    [irqs, readers]
}

/// What others make of the same host, by their documentation: where interrupts and threads may be.
fn others(places: &Places, node: u32) -> Vec<(&'static str, [Vec<Vec<u32>>; 2])> {
    let (all, near) = (places.all(), places.of_node(node));
    let one_each = |cpus: &[u32]| cpus.iter().map(|&cpu| vec![cpu]).collect::<Vec<_>>();
    let first = places.first_core(&all);
    let irq_cores = places.perftune_irq_cpus();
    let housekeeping = places.first_core(&near);
    vec![
        ("perftune.py mq", [one_each(&all), vec![all.clone()]]),
        ("perftune.py sq_split", [one_each(&first), vec![places.without(&all, &first)]]),
        ("perftune.py auto", [one_each(&irq_cores), vec![places.without(&all, &irq_cores)]]),
        // They place neither; irqbalance spreads interrupts over the NIC's node.
        ("tuned network-latency", [one_each(&near), vec![all.clone()]]),
        ("tuned network-throughput", [one_each(&near), vec![all.clone()]]),
        // As an expert would set it up: all cores of the node but the first isolated.
        (
            "tuned cpu-partitioning",
            [one_each(&housekeeping), vec![places.without(&near, &housekeeping)]],
        ),
    ]
}

fn compare(name: &str, tree: &Path, node: u32) {
    let host = nearpath_host::read(&Root::tree(tree).unwrap(), &Wanted::default()).unwrap();
    let places = Places::read(tree);
    let show = |who: &str, shares: [f64; 3]| {
        let [core, llc, node] = shares.map(|share| share * 100.0);
        let _ = writeln!(
            std::io::stderr(),
            "{name}: {who:28} core {core:5.1}%  LLC {llc:5.1}%  node {node:5.1}%"
        );
    };
    let few = 3;
    let [irqs, readers] = placed(&host, node, Some(Mode::SqSplit), few);
    let near = places.crossing(&irqs, &readers);
    show("nearpath sq_split, 3 threads", near);
    assert_eq!((near[1], near[2]), (0.0, 0.0), "{irqs:?} {readers:?}");
    let many = u32::try_from(places.of_node(node).len()).unwrap();
    let [irqs, readers] = placed(&host, node, Some(Mode::Split), many);
    let large = places.crossing(&irqs, &readers);
    show("nearpath split, large", large);
    let caches = |cpus: &[Vec<u32>]| {
        cpus.iter().flatten().map(|cpu| &places.0[cpu][1]).collect::<BTreeSet<_>>()
    };
    assert_eq!(caches(&irqs), caches(&readers), "an interrupt in each cache that has readers");
    assert!(large[2] == 0.0 && large[1] <= 0.5, "{large:?}");
    let [irqs, readers] = placed(&host, node, None, few);
    let auto = places.crossing(&irqs, &readers);
    show("nearpath auto, 3 threads", auto);
    for (who, [irqs, readers]) in others(&places, node) {
        let its = places.crossing(&irqs, &readers);
        show(who, its);
        for (level, what) in ["core", "cache", "node"].iter().enumerate().skip(1) {
            assert!(near[level] <= its[level], "{who} crosses to another {what} less: {its:?}");
            assert!(large[level] <= its[level] + 1e-9, "{who}, {what}: {its:?} and {large:?}");
        }
    }
}

#[test]
fn two_nodes_of_two_caches_with_smt() {
    let layout = Layout { packages: 2, nodes: 1, llcs: 2, cores: 4, threads: 2 };
    let tree = Machine::regular(layout).write();
    compare("2 nodes x 2 LLCs x 4 cores x 2", tree.path(), 1);
}

#[test]
fn captured_hosts_with_several_caches_in_a_node() {
    let Some(dir) = nearpath_testing::hosts_dir() else { return };
    let mut compared = 0;
    for archive in fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()) {
        let name = archive.file_name().unwrap().to_str().unwrap();
        let Some(name) = name.strip_suffix(".tar.gz").filter(|name| name.contains("epyc")) else {
            continue;
        };
        let unpacked = tempfile::tempdir().unwrap();
        let mut tar = Command::new("tar");
        for folder in ["power", "cpuidle", "cpufreq", "microcode", "hotplug", "vulnerabilities"] {
            tar.arg(format!("--exclude=*/{folder}"));
        }
        tar.arg("-xzf").arg(&archive).arg("-C").arg(unpacked.path());
        assert!(tar.status().unwrap().success(), "{name}");
        compare(name, &unpacked.path().join(name), 3);
        compared += 1;
    }
    if compared == 0 {
        nearpath_testing::skip("no captured EPYC");
    }
}
