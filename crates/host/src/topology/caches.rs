//! Last-level caches: for each CPU the data or unified cache of the highest level (`cpuN/cache/indexN`,
//! drivers/base/cacheinfo.c), if these are really shared ([`trust`]).

use super::CPUS;
use super::files::{self, SetFiles};
use super::trust;
use super::unknown::UnknownOfCpus;
use crate::Root;
use nearpath_model::{Cpu, CpuId, CpuSet, Llc, LlcId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The files with the CPUs that share a cache.
pub(super) const SHARED: &[&str] = &["shared_cpu_list", "shared_cpu_map"];

/// A last-level cache while its CPUs are collected.
struct Cache {
    /// N of `indexN` at the CPU from which it was first read.
    index: u32,
    level: u32,
    /// The kernel's id, unique among caches of the same level, if the kernel has it.
    id: Option<u32>,
    size_bytes: Option<u64>,
    /// As listed; `None` if the kernel lists none and the cache is identified by its id.
    shared: Option<CpuSet>,
}

/// Identifies a cache: the level with the CPUs that share it, or with the kernel's id if no CPUs are listed.
type Key = (u32, Result<CpuSet, Option<u32>>);

#[derive(Default)]
struct Caches {
    found: Vec<Cache>,
    /// Indexes in `found`.
    places: HashMap<Key, usize>,
    /// The cache whose list contains a CPU: the highest level, among these the first read.
    claimed: HashMap<CpuId, usize>,
}

/// Sets the last-level cache of each CPU and returns the caches, ascending by id.
pub(super) fn read(
    root: &Root,
    readable: &[CpuId],
    online: &CpuSet,
    cpus: &mut BTreeMap<CpuId, Cpu>,
    unknown: &mut UnknownOfCpus,
) -> Vec<Llc> {
    let (files, mut caches) = (SetFiles::new(SHARED), Caches::default());
    let mut of_cpu: BTreeMap<CpuId, usize> = BTreeMap::new();
    for &cpu in readable {
        let claimed = caches.claimed.get(&cpu).copied();
        let siblings = cpus.get(&cpu).into_iter().flat_map(|cpu| cpu.siblings.iter());
        // A sibling has the same caches, if the list of the cache confirms it.
        let of_sibling = siblings.take_while(|s| *s < cpu).find_map(|s| of_cpu.get(&s)).copied();
        let known = claimed
            .filter(|&claim| of_sibling == Some(claim) || caches.confirms(root, &files, cpu, claim))
            .map_or_else(
                || Cache::last_of(root, &files, cpu).map(|c| c.map(|c| caches.add(c, online))),
                |cache| Ok(Some(cache)),
            );
        match known {
            Ok(Some(cache)) => {
                of_cpu.insert(cpu, cache);
            }
            // It shows no caches; another CPU may still list it for a shared cache.
            Ok(None) => {}
            Err(reason) => unknown.add(cpu, "llc", reason),
        }
    }
    for cpu in online.iter().filter(|cpu| cpus.contains_key(cpu)) {
        if let Some(cache) = caches.claimed.get(&cpu) {
            of_cpu.entry(cpu).or_insert(*cache);
        }
        if !of_cpu.contains_key(&cpu) {
            unknown.add(cpu, "llc", "cache/index*: no data cache found".to_owned());
        }
    }
    let members = caches.members(&of_cpu);
    let levels = members.iter().filter_map(|(i, set)| Some((caches.found.get(*i)?.level, set)));
    if let Some(reason) = trust::distrust(cpus, levels) {
        for cpu in of_cpu.keys() {
            unknown.add(*cpu, "llc", reason.to_owned());
        }
        return Vec::new();
    }
    caches.number(members, cpus)
}

impl Cache {
    /// The last-level cache that a CPU shows, `None` if it shows no data cache.
    fn last_of(root: &Root, files: &SetFiles, cpu: CpuId) -> Result<Option<Self>, String> {
        let dir = format!("{CPUS}/cpu{cpu}/cache");
        let mut best: Option<(u32, u32)> = None;
        for entry in root.list(&dir).unwrap_or_default() {
            let Some(index) = files::numbered(&entry.name, "index") else { continue };
            let level = root.text(&format!("{dir}/index{index}/level"));
            let Some(level) = level.ok().and_then(|level| level.parse::<u32>().ok()) else {
                continue;
            };
            if best.is_some_and(|(highest, _)| highest >= level) {
                continue;
            }
            let kind = root.text(&format!("{dir}/index{index}/type"));
            if kind.map_or(true, |kind| kind != "Instruction") {
                best = Some((level, index));
            }
        }
        let Some((level, index)) = best else { return Ok(None) };
        let dir = format!("{dir}/index{index}");
        let id = root.text(&format!("{dir}/id")).ok().and_then(|id| id.parse().ok());
        let shared = files.read(root, &dir);
        if let (Err(error), None) = (&shared, id) {
            return Err(format!("cache/index{index}/shared_cpu_list: {}", error.reason));
        }
        let size_bytes = root.text(&format!("{dir}/size")).ok().and_then(|size| files::size(&size));
        let shared = shared.ok().map(|mut shared| {
            shared.insert(cpu);
            shared
        });
        Ok(Some(Self { index, level, id, size_bytes, shared }))
    }
}

impl Caches {
    /// Whether the CPU confirms that it shares a cache that lists it: its own list at the same index is equal,
    /// and it shows no higher cache.
    fn confirms(&self, root: &Root, files: &SetFiles, cpu: CpuId, claim: usize) -> bool {
        let Some(cache) = self.found.get(claim) else { return false };
        let dir = format!("{CPUS}/cpu{cpu}/cache/index");
        let own = files.read(root, &format!("{dir}{}", cache.index));
        let beyond = format!("{dir}{}/level", cache.index.saturating_add(1));
        own.is_ok_and(|own| cache.shared == Some(own)) && root.text(&beyond).is_err()
    }

    /// Adds a cache if it is new, and returns its index.
    fn add(&mut self, cache: Cache, online: &CpuSet) -> usize {
        let key = (cache.level, cache.shared.clone().ok_or(cache.id));
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        let (place, level) = (self.found.len(), cache.level);
        self.places.insert(key, place);
        let listed = cache.shared.as_ref().map(|shared| shared.intersection(online));
        self.found.push(cache);
        for cpu in listed.iter().flat_map(CpuSet::iter) {
            let claim = self.claimed.entry(cpu).or_insert(place);
            if self.found.get(*claim).is_some_and(|claimed| claimed.level < level) {
                *claim = place;
            }
        }
        place
    }

    /// The CPUs of each cache, by its index.
    fn members(&self, of_cpu: &BTreeMap<CpuId, usize>) -> BTreeMap<usize, CpuSet> {
        let mut members: BTreeMap<usize, CpuSet> = BTreeMap::new();
        for (&cpu, &cache) in of_cpu {
            members.entry(cache).or_default().insert(cpu);
        }
        members
    }

    /// Assigns ids to the caches: the kernel's if every cache has one, all are of one level and no id is
    /// repeated; else they are numbered in the order of their lowest CPUs.
    fn number(self, members: BTreeMap<usize, CpuSet>, cpus: &mut BTreeMap<CpuId, Cpu>) -> Vec<Llc> {
        let mut caches: Vec<(&Cache, CpuSet)> =
            members.into_iter().filter_map(|(i, set)| Some((self.found.get(i)?, set))).collect();
        caches.sort_by_key(|(_, members)| members.first());
        let ids: BTreeSet<u32> = caches.iter().filter_map(|(cache, _)| cache.id).collect();
        let levels: BTreeSet<u32> = caches.iter().map(|(cache, _)| cache.level).collect();
        let kernels = ids.len() == caches.len() && levels.len() == 1;
        let mut llcs: Vec<Llc> = (0..)
            .zip(caches)
            .map(|(counted, (cache, cpus))| Llc {
                llc: LlcId(cache.id.filter(|_| kernels).unwrap_or(counted)),
                level: Some(cache.level),
                size_bytes: cache.size_bytes,
                cpus,
            })
            .collect();
        llcs.sort_by_key(|llc| llc.llc);
        for llc in &llcs {
            for cpu in llc.cpus.iter() {
                if let Some(cpu) = cpus.get_mut(&cpu) {
                    cpu.llc = Some(llc.llc);
                }
            }
        }
        llcs
    }
}
