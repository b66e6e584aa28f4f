//! Cores: which CPUs are SMT siblings, and the ids of their core, package, die and cluster
//! (`cpuN/topology`, drivers/base/topology.c; Documentation/admin-guide/cputopology.rst).

use super::CPUS;
use super::caches::SHARED;
use super::files::{self, SetFiles};
use super::unknown::UnknownOfCpus;
use crate::{Notes, Root};
use nearpath_model::{Cpu, CpuId, CpuSet};
use std::collections::{BTreeMap, HashMap};

/// `core_cpus_list` since 5.3, `thread_siblings_list` before, the masks on the oldest kernels.
const SIBLINGS: &[&str] =
    &["core_cpus_list", "thread_siblings_list", "thread_siblings", "core_cpus"];

/// The same for the CPUs of a package.
const PACKAGE: &[&str] =
    &["package_cpus_list", "core_siblings_list", "core_siblings", "package_cpus"];

/// Data shared by the CPUs of one core.
#[derive(Clone)]
struct CoreFacts {
    core: Result<u32, String>,
    package: Result<u32, String>,
    die: Result<u32, String>,
    cluster: Result<u32, String>,
    capacity: Option<u32>,
}

impl CoreFacts {
    fn read(root: &Root, cpu: CpuId) -> Self {
        let id = |file| {
            let path = format!("{CPUS}/cpu{cpu}/topology/{file}");
            files::id(root, &path).map_err(|reason| format!("topology/{file} {reason}"))
        };
        let capacity = root.text(&format!("{CPUS}/cpu{cpu}/cpu_capacity"));
        Self {
            core: id("core_id"),
            package: id("physical_package_id"),
            die: id("die_id"),
            cluster: id("cluster_id"),
            capacity: capacity.ok().and_then(|text| text.parse().ok()),
        }
    }
}

/// Sets the cores of the CPUs. `readable` are the online CPUs with a directory.
pub(super) fn read(
    root: &Root,
    readable: &[CpuId],
    online: &CpuSet,
    cpus: &mut BTreeMap<CpuId, Cpu>,
    unknown: &mut UnknownOfCpus,
    notes: &mut Notes,
) {
    let (files, mut cores) = (SetFiles::new(SIBLINGS), Cores::default());
    for &cpu in readable {
        if let Ok(list) = files.read(root, &format!("{CPUS}/cpu{cpu}/topology")) {
            cores.own.insert(cpu, list);
        }
    }
    // Those with a list first: they also cover those without one.
    let (with, without): (Vec<_>, Vec<_>) =
        readable.iter().partition(|cpu| cores.own.contains_key(cpu));
    for number in with.into_iter().chain(without) {
        let facts = cores.facts(root, number);
        let Some(cpu) = cpus.get_mut(&number) else { continue };
        cpu.core = unknown.take(number, "core", facts.core);
        cpu.package = unknown.take(number, "package", facts.package);
        cpu.die = unknown.take(number, "die", facts.die);
        cpu.cluster = unknown.take(number, "cluster", facts.cluster);
        cpu.capacity = facts.capacity;
    }
    for (number, cpu) in cpus.iter_mut() {
        cpu.siblings = cores.siblings(*number, online);
    }
    unset_cores(root, online, cpus, notes);
    for (number, cpu) in cpus.iter_mut() {
        if cpu.online && cpu.siblings.is_empty() {
            unknown.add(*number, "siblings", "topology: no list of siblings".to_owned());
        }
    }
    if cpus.values().any(|cpu| cpu.package.is_some()) {
        unique_packages(root, cpus, notes);
    } else {
        listed_packages(root, readable, online, cpus, notes);
    }
    unique_cores(cpus, notes);
}

/// Where ids are not set, some kernels compare one -1 with another, and list all CPUs as those of one core (riscv before
/// commit fbd92809997a, "riscv: topology: fix default topology reporting"). The threads of a core share its first data
/// cache: CPUs whose lists contradict that are on cores of their own. Without such lists the cores stay unknown.
fn unset_cores(root: &Root, online: &CpuSet, cpus: &mut BTreeMap<CpuId, Cpu>, notes: &mut Notes) {
    let is_unset = |cpu: &Cpu| !cpu.online || cpu.core.is_none() && cpu.siblings == *online;
    if online.len() < 2 || !cpus.values().all(is_unset) {
        return;
    }
    let first_caches: BTreeMap<CpuId, CpuSet> = online
        .iter()
        .filter_map(|cpu| Some((cpu, first_cache(root, cpu)?.intersection(online))))
        .collect();
    // One core of so many threads: their caches say so.
    if online.iter().all(|cpu| first_caches.get(&cpu) == Some(online)) {
        return;
    }
    notes.add(
        "host",
        "siblings",
        "topology/core_cpus_list has all CPUs, and topology/core_id is not set: a core is the CPUs that share a first cache",
    );
    for cpu in cpus.values_mut().filter(|cpu| cpu.online) {
        // Lists that contradict each other tell nothing of others.
        cpu.siblings = match first_caches.get(&cpu.cpu) {
            Some(all) if all.iter().all(|other| first_caches.get(&other) == Some(all)) => {
                all.clone()
            }
            Some(_) => CpuSet::from_iter([cpu.cpu]),
            None => CpuSet::new(),
        };
    }
}

/// The CPUs that share a CPU's first data cache.
fn first_cache(root: &Root, cpu: CpuId) -> Option<CpuSet> {
    let folder = format!("{CPUS}/cpu{cpu}/cache");
    let is_first = |index: &String| {
        let text = |file: &str| root.text(&format!("{folder}/{index}/{file}")).ok();
        text("level").as_deref() == Some("1") && text("type").as_deref() != Some("Instruction")
    };
    let mut indexes = root.list(&folder).ok()?.into_iter().map(|entry| entry.name);
    let index = indexes.find(is_first)?;
    let mut shared = SetFiles::new(SHARED).read(root, &format!("{folder}/{index}")).ok()?;
    shared.insert(cpu);
    Some(shared)
}

/// Contents of the sibling lists.
#[derive(Default)]
struct Cores {
    /// Each CPU's own list, if it has one.
    own: HashMap<CpuId, CpuSet>,
    /// The first CPU whose list contains a CPU.
    claimed: HashMap<CpuId, CpuId>,
    facts: HashMap<CpuId, CoreFacts>,
}

impl Cores {
    /// The facts of a CPU's core: those of a sibling if the lists of both agree (or the CPU has none), else its
    /// own.
    fn facts(&mut self, root: &Root, cpu: CpuId) -> CoreFacts {
        let first = self.claimed.get(&cpu);
        let agreed = first.filter(|first| self.list(cpu) == self.own.get(first));
        if let Some(facts) = agreed.and_then(|first| self.facts.get(first)) {
            return facts.clone();
        }
        let facts = CoreFacts::read(root, cpu);
        self.facts.insert(cpu, facts.clone());
        for sibling in self.own.get(&cpu).into_iter().flat_map(CpuSet::iter) {
            self.claimed.entry(sibling).or_insert(cpu);
        }
        facts
    }

    /// A CPU's own list, else the first that contains it.
    fn list(&self, cpu: CpuId) -> Option<&CpuSet> {
        self.own.get(&cpu).or_else(|| self.own.get(self.claimed.get(&cpu)?))
    }

    /// The CPUs of the same core: those of the CPU's list whose own lists do not contradict it. Empty if no
    /// list contains an online CPU.
    fn siblings(&self, cpu: CpuId, online: &CpuSet) -> CpuSet {
        let Some(listed) = self.list(cpu).filter(|_| online.contains(cpu)) else {
            return CpuSet::new();
        };
        let agrees = |other: &CpuId| self.list(*other).is_some_and(|list| list.contains(cpu));
        let mut siblings: CpuSet = listed.intersection(online).iter().filter(agrees).collect();
        siblings.insert(cpu);
        siblings
    }
}

/// Some kernels repeat a package id in another book (s390) or give all packages the same id. The kernel's own
/// list of the package's CPUs then distinguishes them, and each package gets the number of its lowest CPU.
fn unique_packages(root: &Root, cpus: &mut BTreeMap<CpuId, Cpu>, notes: &mut Notes) {
    let mut by_id: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for cpu in cpus.values() {
        if let Some(package) = cpu.package {
            by_id.entry(package).or_default().insert(cpu.cpu);
        }
    }
    let files = SetFiles::new(PACKAGE);
    let mut packages = Vec::new();
    let ids = by_id.len();
    for mut rest in by_id.into_values() {
        while let Some(first) = rest.first() {
            let listed = files.read(root, &format!("{CPUS}/cpu{first}/topology"));
            let mut package = listed.map_or_else(|_| rest.clone(), |l| l.intersection(&rest));
            package.insert(first);
            rest = rest.difference(&package);
            packages.push((first, package));
        }
    }
    if packages.len() == ids {
        return;
    }
    notes.add(
        "host",
        "package",
        "topology/physical_package_id is not unique: packages are numbered by their lowest CPU",
    );
    for (first, package) in packages {
        for number in package.iter() {
            if let Some(cpu) = cpus.get_mut(&number) {
                cpu.package = Some(first.0);
            }
        }
    }
}

/// Kernels without package ids may still distinguish packages in their lists of a package's CPUs (s390 before
/// 3.17, POWER and sparc guests). As in `lscpu`, each list is a package; it gets the number of its lowest CPU.
/// Kernels without any package information show one list of all CPUs: packages then stay unknown.
fn listed_packages(
    root: &Root,
    readable: &[CpuId],
    online: &CpuSet,
    cpus: &mut BTreeMap<CpuId, Cpu>,
    notes: &mut Notes,
) {
    let files = SetFiles::new(PACKAGE);
    let mut packages: Vec<CpuSet> = Vec::new();
    let mut rest: CpuSet = readable.iter().copied().collect();
    while let Some(first) = rest.first() {
        let Ok(listed) = files.read(root, &format!("{CPUS}/cpu{first}/topology")) else { return };
        let mut package = listed.intersection(online).intersection(&rest);
        package.insert(first);
        rest = rest.difference(&package);
        packages.push(package);
    }
    if packages.len() < 2 {
        return;
    }
    notes.add(
        "host",
        "package",
        "topology/physical_package_id is unknown: packages are the kernel's lists of their \
         CPUs, and are numbered by their lowest CPU",
    );
    for package in packages {
        let Some(first) = package.first() else { continue };
        for number in package.iter() {
            if let Some(cpu) = cpus.get_mut(&number) {
                cpu.package = Some(first.0);
            }
        }
    }
}

/// Some kernels repeat a core id in the same package: 0 for all (old sparc), or numbered within a cluster
/// (arm64 device tree). Cores then get the number of their lowest CPU.
fn unique_cores(cpus: &mut BTreeMap<CpuId, Cpu>, notes: &mut Notes) {
    let mut first_of: HashMap<_, &CpuSet> = HashMap::new();
    let repeats = cpus.values().filter(|cpu| !cpu.siblings.is_empty()).any(|cpu| {
        let Some(core) = cpu.core else { return false };
        let first = first_of.entry((cpu.package, cpu.die, core)).or_insert(&cpu.siblings);
        !first.contains(cpu.cpu)
    });
    if !repeats {
        return;
    }
    notes.add(
        "host",
        "core",
        "topology/core_id is not unique within a package: cores are numbered by their lowest CPU",
    );
    for cpu in cpus.values_mut().filter(|cpu| cpu.core.is_some()) {
        cpu.core = cpu.siblings.first().map(|first| first.0);
    }
}
