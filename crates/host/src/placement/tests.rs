use super::*;
use crate::Wanted;
use nearpath_model::memory::RanOnBasis;
use std::fs;
use std::path::Path;

fn put(tree: &Path, path: &str, text: &str) {
    let file = tree.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

/// Two nodes with a CPU each, one without; process 70 runs on node 0, with memory on all.
fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path();
    let cpu = "sys/devices/system/cpu";
    for file in ["possible", "present", "online"] {
        put(tree, &format!("{cpu}/{file}"), "0-1\n");
    }
    for (node, cpus) in ["0", "1", ""].iter().enumerate() {
        let folder = format!("sys/devices/system/node/node{node}");
        put(tree, &format!("{folder}/cpulist"), &format!("{cpus}\n"));
        put(tree, &format!("{folder}/numastat"), "numa_hit 90\nnuma_miss 7\nnuma_foreign 5\n");
        let meminfo = format!(
            "Node {node} MemTotal: 4096 kB\nNode {node} MemFree: 1024 kB\nNode {node} FilePages: 64 kB\n\
             Node {node} Shmem: 24 kB\nNode {node} SReclaimable: 8 kB\nNode {node} PageTables: 4 kB\n"
        );
        put(tree, &format!("{folder}/meminfo"), &meminfo);
        for (file, count) in [("nr", 9), ("free", 4), ("surplus", 0)] {
            let file = format!("{folder}/hugepages/hugepages-2048kB/{file}_hugepages");
            put(tree, &file, &format!("{count}\n"));
        }
    }
    for number in 0..2 {
        put(tree, &format!("{cpu}/cpu{number}/topology/core_id"), &format!("{number}\n"));
    }
    process(tree, 70, "cache", "0::/system.slice/cache.service\n", 20_000);
    process(tree, 71, "small", "0::/\n", 4_000);
    put(
        tree,
        "sys/fs/cgroup/system.slice/cache.service/memory.numa_stat",
        "anon N0=1 N1=2\nanon_thp N0=2097152 N1=0\nfile_thp N0=4096 N1=8192\npagetables N0=7 N1=9\n",
    );
    put(
        tree,
        "proc/net/sockstat",
        "sockets: used 9\nTCP: inuse 5 orphan 0 tw 0 alloc 7 mem 3\nUDP: inuse 1 mem 2\n",
    );
    put(tree, "proc/vmstat", "numa_hint_faults 8\nnr_free_pages 7\n");
    dir
}

fn process(tree: &Path, pid: u32, comm: &str, cgroup: &str, kib: u64) {
    let folder = format!("proc/{pid}");
    put(tree, &format!("{folder}/comm"), &format!("{comm}\n"));
    put(tree, &format!("{folder}/cgroup"), cgroup);
    put(
        tree,
        &format!("{folder}/status"),
        &format!(
            "Name:\t{comm}\nVmPin:\t0 kB\nVmRSS:\t{kib} kB\nVmPTE:\t60 kB\nCpus_allowed_list:\t0\nMems_allowed_list:\t0-2\n"
        ),
    );
    put(
        tree,
        &format!("{folder}/numa_maps"),
        "7f0 default heap anon=1000 N0=250 N1=750 kernelpagesize_kB=4\n\
         7f1 bind:2 anon=100 N2=100 kernelpagesize_kB=4\n7ff default stack anon=1 N0=1 kernelpagesize_kB=4\n",
    );
    fs::create_dir_all(tree.join(&folder).join("fd")).unwrap();
    let zeros = "0 ".repeat(23);
    put(tree, &format!("{folder}/task/{pid}/schedstat"), "5000 0 1\n");
    put(
        tree,
        &format!("{folder}/task/{pid}/stat"),
        &format!("{pid} ({comm}) S 1 1 1 0 -1 0 0 0 0 0 7 8 {zeros}0 0 0\n"),
    );
}

fn select(root: &Root, selection: &MemorySelection) -> Result<MemoryMeasurement, NoProcess> {
    let host = crate::read(root, &Wanted::default()).unwrap();
    Ok(MemoryReader::new(root, &host, selection)?.still(root))
}

#[test]
fn a_still_picture_of_a_tree() {
    let dir = tree();
    let root = Root::tree(dir.path()).unwrap();
    let m = select(&root, &MemorySelection::default()).unwrap();
    let [process] = m.processes.as_slice() else { panic!("{m:?}") };
    assert_eq!((process.pid, &*process.comm, m.small_processes), (70, "cache", 1));
    assert_eq!(process.total(), 1101 * 4096);
    assert_eq!((process.remote_bytes, process.cpuless_bytes), (Some(750 * 4096), 100 * 4096));
    assert_eq!(process.ran_on_nodes, BTreeMap::from([(NodeId(0), 1.0)]));
    assert_eq!(process.ran_on_basis, Some(RanOnBasis::LastCpu));
    assert_eq!((process.policy.as_deref(), process.dma_mapped), (Some("default"), Some(false)));
    assert_eq!(process.mapping_policies["bind:2"], 100 * 4096);
    assert_eq!((process.allowed_nodes.len(), process.mems_allowed.len()), (1, 3));
    let [first, _, third] = m.nodes.as_slice() else { panic!("{m:?}") };
    assert_eq!((first.has_cpus, third.has_cpus), (true, false));
    assert_eq!((first.numa_miss, first.numa_foreign), (Some(7), Some(5)));
    assert_eq!(first.reclaimable_bytes, Some(48 << 10));
    assert_eq!((first.hugepages["2MiB"].total, first.hugepages["2MiB"].free), (9, 4));
    let [cgroup] = m.cgroups.as_slice() else { panic!("{m:?}") };
    assert_eq!(cgroup.thp.as_ref().unwrap()[&NodeId(0)], 2_101_248);
    assert_eq!(cgroup.page_tables.as_ref().unwrap()[&NodeId(1)], 9);
    assert_eq!((m.sockets.tcp_bytes, m.sockets.udp_bytes), (Some(12_288), Some(8_192)));
    assert_eq!(m.vmstat, BTreeMap::from([("numa_hint_faults".to_owned(), 8)]));
}

#[test]
fn options_select_processes() {
    let dir = tree();
    let root = Root::tree(dir.path()).unwrap();
    let pids = |selection: &MemorySelection| {
        let found = select(&root, selection);
        found
            .map(|m| m.processes.iter().map(|p| p.pid).collect::<Vec<_>>())
            .map_err(|e| e.to_string())
    };
    let none = MemorySelection::default();
    let text = |text: &str| vec![text.to_owned()];
    let mut all = pids(&MemorySelection { all: true, ..none.clone() }).unwrap();
    all.sort_unstable();
    assert_eq!(all, [70, 71]);
    for (selection, expected) in [
        (MemorySelection { pids: vec![71], ..none.clone() }, Ok(vec![71])),
        (MemorySelection { units: text("cache"), ..none.clone() }, Ok(vec![70])),
        (MemorySelection { cgroups: text("/system.slice/"), ..none.clone() }, Ok(vec![70])),
        (MemorySelection { comms: text("small"), ..none.clone() }, Ok(vec![71])),
        (MemorySelection { pids: vec![9], ..none.clone() }, Err("no process has the id 9")),
        (
            MemorySelection { units: text("cach"), ..none.clone() },
            Err("no process belongs to the unit cach"),
        ),
        (
            MemorySelection { cgroups: text("/system"), ..none.clone() },
            Err("no process is in the cgroup /system"),
        ),
        (MemorySelection { comms: text("x"), ..none.clone() }, Err("no process has the name x")),
    ] {
        assert_eq!(pids(&selection), expected.map_err(str::to_owned), "{selection:?}");
    }
}

#[test]
fn a_process_of_many_pages_is_read_only_if_selected() {
    let dir = tree();
    process(dir.path(), 72, "huge", "0::/\n", 100_000_000);
    let root = Root::tree(dir.path()).unwrap();
    let m = select(&root, &MemorySelection::default()).unwrap();
    assert_eq!(m.processes.len(), 1);
    assert!(m.not_available.iter().any(|n| n.what == "memory of process 72"), "{m:?}");
    let m =
        select(&root, &MemorySelection { pids: vec![72], ..MemorySelection::default() }).unwrap();
    assert_eq!(m.processes.len(), 1);
}

#[test]
fn counters_of_an_interval_are_the_increase() {
    let dir = tree();
    let root = Root::tree(dir.path()).unwrap();
    let host = crate::read(&root, &Wanted::default()).unwrap();
    let mut reader = MemoryReader::new(&root, &host, &MemorySelection::default()).unwrap();
    reader.begin(&root);
    put(
        dir.path(),
        "sys/devices/system/node/node1/numastat",
        "numa_hit 91\nnuma_miss 17\nnuma_foreign 5\n",
    );
    put(dir.path(), "proc/vmstat", "numa_hint_faults 11\n");
    let root = Root::tree(dir.path()).unwrap();
    let m = reader.read(&root, &RanOn::default());
    assert_eq!((m.nodes[1].numa_miss, m.nodes[1].numa_foreign), (Some(10), Some(0)));
    assert_eq!(m.nodes[1].other_node, None, "not reported");
    assert_eq!(m.vmstat["numa_hint_faults"], 3);
    let process = &m.processes[0];
    assert_eq!(
        (process.remote_bytes, process.ran_on_basis),
        (None, None),
        "it is unknown where it ran"
    );
}

#[test]
fn units_are_found_by_cgroup() {
    let cgroup = "/system.slice/nginx.service/worker";
    assert_eq!(unit_of_cgroup(cgroup, "nginx"), Some("nginx.service"));
    assert_eq!(unit_of_cgroup(cgroup, "nginx.service"), Some("nginx.service"));
    assert_eq!(unit_of_cgroup(cgroup, "system.slice"), Some("system.slice"));
    for unit in ["", "ngin", "service", "nginx.servic"] {
        assert_eq!(unit_of_cgroup(cgroup, unit), None, "{unit}");
    }
}
