//! Whether the highest-level caches found are last-level caches: each is shared by the cores that it
//! lists, and data that is not in it has to come from another one.
//!
//! In two cases they are not, and are ignored: the last-level cache is then unknown, and all CPUs of a
//! node are at the same distance.
//!
//! - Private first- or second-level caches of each core, if no CPU shows a cache of a higher level. The
//!   shared cache exists and is not described: the system-level cache of ARM servers is not in a PPTT
//!   table with CPUs (drivers/acpi/pptt.c), hypervisors omit the third level
//!   (QEMU `-cpu …,l3-cache=off`), POWER shows none to a partition.
//! - A cache per single-core package, if one node has several such packages. No server has these;
//!   they come from hypervisors that present each virtual CPU as a socket by default (QEMU before 6.2,
//!   `-smp` in its manual: sockets were preferred over cores; VMware, `cpuid.coresPerSocket` 1).
//!
//! A private third-level cache of each of many cores in a package is accepted: EPYC 72F3 has eight of
//! them.

use nearpath_model::{Cpu, CpuId, CpuSet, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Why the caches are not last-level caches; `None` if they are. `caches` has the level and the CPUs of
/// each.
pub(super) fn distrust<'a>(
    cpus: &BTreeMap<CpuId, Cpu>,
    caches: impl Iterator<Item = (u32, &'a CpuSet)> + Clone,
) -> Option<&'static str> {
    let cores: BTreeSet<CpuId> = caches.clone().filter_map(|(_, set)| core(cpus, set)).collect();
    // Several cores, and each cache is within one of them.
    if cores.len() < 2 || caches.clone().any(|(_, set)| core(cpus, set).is_none()) {
        return None;
    }
    if caches.map(|(level, _)| level).max().is_some_and(|level| level <= 2) {
        return Some("cache/index*: private to each core, and no shared cache is shown");
    }
    let mut packages: BTreeMap<u32, (BTreeSet<CpuId>, Option<NodeId>)> = BTreeMap::new();
    for cpu in cpus.values().filter(|cpu| cpu.online) {
        let (cores, node) = packages.entry(cpu.package?).or_default();
        cores.insert(cpu.siblings.first().unwrap_or(cpu.cpu));
        *node = cpu.node;
    }
    let nodes: BTreeSet<Option<NodeId>> = packages.values().map(|(_, node)| *node).collect();
    let one_core_each = packages.values().all(|(cores, _)| cores.len() == 1);
    (one_core_each && nodes.len() < packages.len())
        .then_some("cache/index*: one per CPU, each of which the hypervisor presents as a package")
}

/// The lowest CPU of the core, if all of the CPUs are on one core.
fn core(cpus: &BTreeMap<CpuId, Cpu>, set: &CpuSet) -> Option<CpuId> {
    let first = set.first()?;
    let siblings = &cpus.get(&first)?.siblings;
    if siblings.is_empty() {
        return (set.len() == 1).then_some(first);
    }
    set.is_subset(siblings).then(|| siblings.first()).flatten()
}
