//! `/sys/devices/system/cpu`: topology and caches (drivers/base/topology.c, cacheinfo.c).

use super::write::{Writer, cpulist, mask};
use super::{Cache, Cpu, Machine};
use std::collections::BTreeMap;

const CPUS: &str = "/sys/devices/system/cpu";

impl Machine {
    pub(super) fn write_cpus(&self, w: &mut Writer) {
        let present: Vec<u32> = self.cpus.keys().copied().collect();
        let online = self.online();
        let mut possible = [&present[..], &self.possible_only].concat();
        possible.sort_unstable();
        let offline: Vec<u32> =
            possible.iter().copied().filter(|cpu| online.binary_search(cpu).is_err()).collect();
        w.line(&format!("{CPUS}/possible"), cpulist(&possible));
        w.line(&format!("{CPUS}/present"), cpulist(&present));
        w.line(&format!("{CPUS}/online"), cpulist(&online));
        w.line(&format!("{CPUS}/offline"), cpulist(&offline));
        w.line(&format!("{CPUS}/isolated"), "");
        let shared = self.shared();
        for (number, cpu) in &self.cpus {
            self.write_cpu(w, *number, cpu, &shared);
        }
        for kind in ["core", "atom"] {
            let cpus = self.online_where(|cpu| cpu.kind == Some(kind));
            if !cpus.is_empty() {
                w.line(&format!("/sys/devices/cpu_{kind}/cpus"), cpulist(&cpus));
            }
        }
    }

    fn write_cpu(&self, w: &mut Writer, number: u32, cpu: &Cpu, shared: &Shared) {
        let dir = format!("{CPUS}/cpu{number}");
        w.dir(&dir);
        if cpu.bare {
            return;
        }
        // The first CPU of most x86 machines cannot be taken offline and has no such file.
        if number != 0 || !cpu.online {
            w.line(&format!("{dir}/online"), u32::from(cpu.online));
        }
        if let Some(node) = cpu.node {
            w.link(&format!("{dir}/node{node}"), &format!("../../node/node{node}"));
        }
        if let Some(capacity) = cpu.capacity {
            w.line(&format!("{dir}/cpu_capacity"), capacity);
        }
        if !cpu.online {
            return;
        }
        let ids = [
            ("core_id", cpu.core),
            ("physical_package_id", cpu.package),
            ("die_id", cpu.die),
            ("cluster_id", cpu.cluster),
        ];
        for (file, id) in ids {
            if let Some(id) = id {
                w.line(&format!("{dir}/topology/{file}"), id);
            }
        }
        let siblings = shared.cores.get(&cpu.smt_group).map_or(&[][..], Vec::as_slice);
        let package = shared.packages.get(&cpu.package).map_or(&[][..], Vec::as_slice);
        self.write_set(w, &format!("{dir}/topology/thread_siblings"), siblings);
        self.write_set(w, &format!("{dir}/topology/core_siblings"), package);
        if !self.masks_only {
            self.write_set(w, &format!("{dir}/topology/core_cpus"), siblings);
            self.write_set(w, &format!("{dir}/topology/package_cpus"), package);
        }
        if let Some(cache) = cpu.cache {
            self.write_caches(w, &dir, &self.caches[&cache], siblings, &shared.caches[&cache]);
        }
    }

    fn write_caches(
        &self,
        w: &mut Writer,
        cpu: &str,
        last: &Cache,
        siblings: &[u32],
        sharing: &[u32],
    ) {
        let core = siblings.first().copied();
        let private = [("Data", 1, 32), ("Instruction", 1, 32), ("Unified", 2, 1024)]
            .map(|(kind, level, size_kib)| (kind, Cache { level, id: core, size_kib }, siblings));
        let mut caches = vec![("Unified", last.clone(), sharing)];
        if self.private_caches {
            caches.splice(0..0, private.into_iter().filter(|(_, c, _)| c.level < last.level));
        }
        for (index, (kind, cache, cpus)) in caches.into_iter().enumerate() {
            let dir = format!("{cpu}/cache/index{index}");
            w.line(&format!("{dir}/type"), kind);
            w.line(&format!("{dir}/level"), cache.level);
            w.line(&format!("{dir}/size"), format!("{}K", cache.size_kib));
            if let Some(id) = cache.id.filter(|_| last.id.is_some()) {
                w.line(&format!("{dir}/id"), id);
            }
            let (map, list) = (format!("{dir}/shared_cpu_map"), format!("{dir}/shared_cpu_list"));
            w.line(&map, mask(cpus, self.bits()));
            if !self.masks_only {
                w.line(&list, cpulist(cpus));
            }
        }
    }

    /// A set in both formats: `NAME` as a mask, `NAME_list` as a list.
    fn write_set(&self, w: &mut Writer, path: &str, cpus: &[u32]) {
        w.line(path, mask(cpus, self.bits()));
        if !self.masks_only {
            w.line(&format!("{path}_list"), cpulist(cpus));
        }
    }

    /// Number of bits in a mask: `nr_cpu_ids`.
    pub(super) fn bits(&self) -> u32 {
        let last = self.cpus.keys().chain(&self.possible_only).max();
        last.map_or(1, |last| last + 1)
    }

    fn shared(&self) -> Shared {
        let mut shared = Shared::default();
        for (&number, cpu) in self.cpus.iter().filter(|(_, cpu)| cpu.online) {
            shared.cores.entry(cpu.smt_group).or_default().push(number);
            shared.packages.entry(cpu.package).or_default().push(number);
            if let Some(cache) = cpu.cache {
                shared.caches.entry(cache).or_default().push(number);
            }
        }
        shared
    }
}

/// The online CPUs of each core, package and last-level cache.
#[derive(Default)]
struct Shared {
    cores: BTreeMap<u32, Vec<u32>>,
    packages: BTreeMap<Option<i64>, Vec<u32>>,
    caches: BTreeMap<u32, Vec<u32>>,
}
