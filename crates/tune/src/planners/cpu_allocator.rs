//! Allocates CPUs so that none is used twice while another is free, and no core gets two while another has none.

use nearpath_model::{CpuId, Topology};
use std::collections::BTreeMap;

/// How often each CPU and each core has been allocated.
#[derive(Debug)]
pub(super) struct CpuAllocator<'a> {
    topology: &'a Topology,
    cpus: BTreeMap<CpuId, u32>,
    /// Keyed by the lowest CPU of the core.
    cores: BTreeMap<CpuId, u32>,
}

impl<'a> CpuAllocator<'a> {
    /// Nothing is allocated yet.
    pub fn new(topology: &'a Topology) -> Self {
        Self { topology, cpus: BTreeMap::new(), cores: BTreeMap::new() }
    }

    /// Allocates a CPU.
    pub fn take(&mut self, cpu: CpuId) {
        *self.cpus.entry(cpu).or_default() += 1;
        *self.cores.entry(self.core(cpu)).or_default() += 1;
    }

    /// Allocates the best of some CPUs: the least used, then the one of the least used core, then the preferred one,
    /// then the first. `None` if there are none.
    pub fn take_best(&mut self, cpus: &[CpuId], preferred: Option<CpuId>) -> Option<CpuId> {
        let (_, &best) = cpus.iter().enumerate().min_by_key(|&(i, &cpu)| {
            let core = self.cores.get(&self.core(cpu)).copied().unwrap_or(0);
            (self.given(cpu), core, preferred != Some(cpu), i)
        })?;
        self.take(best);
        Some(best)
    }

    /// How often a CPU has been allocated.
    pub fn given(&self, cpu: CpuId) -> u32 {
        self.cpus.get(&cpu).copied().unwrap_or(0)
    }

    /// Whether no CPU of its core has been allocated.
    pub fn core_is_free(&self, cpu: CpuId) -> bool {
        !self.cores.contains_key(&self.core(cpu))
    }

    fn core(&self, cpu: CpuId) -> CpuId {
        self.topology.cpu(cpu).and_then(|facts| facts.siblings.first()).unwrap_or(cpu)
    }
}
