//! CPUs, cores, caches and nodes. Input: `/sys/devices/system/{cpu,node}`. Output: [`Topology`].
//!
//! A host with 1,024 CPUs has some 30,000 files there. What siblings share is read once, from the first CPU of
//! a core or a cache; each further CPU only confirms with its own list that it belongs there, so that a tree
//! with contradictory lists is still read correctly.

mod caches;
mod cores;
mod files;
pub(crate) mod nodes;
mod trust;
mod unknown;

use crate::{Notes, Root};
use nearpath_model::{Cpu, CpuId, CpuSet, Topology};
use std::collections::BTreeMap;
use unknown::UnknownOfCpus;

const CPUS: &str = "/sys/devices/system/cpu";

/// Maximum number of CPUs read, as a bound for malicious trees: as many as a Linux kernel can have
/// (arch/x86/Kconfig `NR_CPUS_RANGE_END`).
const MOST_CPUS: usize = 8192;

/// Reads the topology. Missing facts are unknown and noted; no file is required.
pub(crate) fn read(root: &Root, notes: &mut Notes) -> Topology {
    let Numbers { possible, present, online, folders } = numbers(root, notes);
    // Only CPUs with a directory have facts, whatever the lists contain.
    let readable: Vec<CpuId> = online.intersection(&folders).iter().take(MOST_CPUS).collect();
    let mut unknown = UnknownOfCpus::default();
    for cpu in online.difference(&readable.iter().copied().collect()).iter() {
        unknown.add(cpu, "topology", format!("{CPUS}: no directory for it"));
    }
    let mut nodes = nodes::read(root, &present, notes);
    let mut cpus = blank(&present, &online);
    cores::read(root, &readable, &online, &mut cpus, &mut unknown, notes);
    nodes::place(root, &mut nodes, &folders, &mut cpus, &mut unknown);
    let llcs = caches::read(root, &readable, &online, &mut cpus, &mut unknown);
    kinds(root, &mut cpus);
    unknown.note(notes);
    Topology {
        possible,
        present,
        online,
        cpus: cpus.into_values().collect(),
        llcs,
        nodes: nodes.into_iter().map(|found| found.node).collect(),
    }
}

/// The CPUs of the host.
struct Numbers {
    possible: CpuSet,
    present: CpuSet,
    online: CpuSet,
    /// Those with a directory `cpuN`.
    folders: CpuSet,
}

fn numbers(root: &Root, notes: &mut Notes) -> Numbers {
    let names = notes.take("host", "cpus", root.list(CPUS)).unwrap_or_default();
    let folders: CpuSet =
        names.iter().filter_map(|entry| files::numbered(&entry.name, "cpu")).map(CpuId).collect();
    let mut list = |file: &str| {
        let path = format!("{CPUS}/{file}");
        notes.take("host", file, files::cpulist(root, &path))
    };
    let (possible, present, online) = (list("possible"), list("present"), list("online"));
    let online = online.unwrap_or_else(|| {
        // A CPU that cannot be taken offline has no `online` file (drivers/base/cpu.c).
        let candidates = present.as_ref().map_or(folders.clone(), |p| p.intersection(&folders));
        let runs = |cpu: &CpuId| {
            root.text(&format!("{CPUS}/cpu{cpu}/online")).map_or(true, |text| text != "0")
        };
        candidates.iter().filter(runs).collect()
    });
    let present = present.unwrap_or_else(|| folders.clone()).union(&online);
    let possible = possible.unwrap_or_else(|| present.clone());
    Numbers { possible, present, online, folders }
}

/// The present CPUs, with all facts unknown.
fn blank(present: &CpuSet, online: &CpuSet) -> BTreeMap<CpuId, Cpu> {
    let cpu = |cpu| Cpu {
        cpu,
        online: online.contains(cpu),
        core: None,
        package: None,
        die: None,
        cluster: None,
        llc: None,
        node: None,
        siblings: CpuSet::new(),
        kind: None,
        capacity: None,
    };
    present.iter().map(|number| (number, cpu(number))).collect()
}

/// Sets the kind of core on a hybrid machine, from the CPUs of each PMU (arch/x86/events/intel/core.c,
/// `cpu_core`, `cpu_atom`, `cpu_lowpower`).
fn kinds(root: &Root, cpus: &mut BTreeMap<CpuId, Cpu>) {
    for kind in ["core", "atom", "lowpower"] {
        let of_kind = files::cpulist(root, &format!("/sys/devices/cpu_{kind}/cpus"));
        for cpu in of_kind.unwrap_or_default().iter() {
            if let Some(cpu) = cpus.get_mut(&cpu) {
                cpu.kind = Some(kind.to_owned());
            }
        }
    }
}
