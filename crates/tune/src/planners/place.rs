//! Gives out CPUs so that none is given twice while another is free, and no core has two while
//! another has none.

use nearpath_model::{CpuId, Topology};
use std::collections::BTreeMap;

/// How much each CPU and each core has been given.
#[derive(Debug)]
pub(super) struct Places<'a> {
    topology: &'a Topology,
    cpus: BTreeMap<CpuId, u32>,
    /// By the lowest CPU of the core.
    cores: BTreeMap<CpuId, u32>,
}

impl<'a> Places<'a> {
    /// Nothing is given yet.
    pub fn new(topology: &'a Topology) -> Self {
        Self { topology, cpus: BTreeMap::new(), cores: BTreeMap::new() }
    }

    /// Gives a CPU.
    pub fn take(&mut self, cpu: CpuId) {
        *self.cpus.entry(cpu).or_default() += 1;
        *self.cores.entry(self.core(cpu)).or_default() += 1;
    }

    /// Gives the best of some CPUs: the one that has been given least, then of the core that has,
    /// then the preferred one, then the first. `None` when there are none.
    pub fn take_best(&mut self, cpus: &[CpuId], preferred: Option<CpuId>) -> Option<CpuId> {
        let (_, &best) = cpus.iter().enumerate().min_by_key(|&(i, &cpu)| {
            let core = self.cores.get(&self.core(cpu)).copied().unwrap_or(0);
            (self.given(cpu), core, preferred != Some(cpu), i)
        })?;
        self.take(best);
        Some(best)
    }

    /// How often a CPU has been given.
    pub fn given(&self, cpu: CpuId) -> u32 {
        self.cpus.get(&cpu).copied().unwrap_or(0)
    }

    /// Whether nothing of its core has been given.
    pub fn core_is_free(&self, cpu: CpuId) -> bool {
        !self.cores.contains_key(&self.core(cpu))
    }

    fn core(&self, cpu: CpuId) -> CpuId {
        self.topology.cpu(cpu).and_then(|facts| facts.siblings.first()).unwrap_or(cpu)
    }
}
