//! Why facts of CPUs are unknown: one note for all CPUs that share a reason, not a thousand.

use crate::Notes;
use nearpath_model::{CpuId, CpuSet};
use std::collections::BTreeMap;

/// Reasons, gathered while CPUs are read.
#[derive(Default)]
pub(super) struct UnknownOfCpus(BTreeMap<(&'static str, String), CpuSet>);

impl UnknownOfCpus {
    /// The value, or `None` after its reason is kept.
    pub(super) fn take<T>(
        &mut self,
        cpu: CpuId,
        fact: &'static str,
        value: Result<T, String>,
    ) -> Option<T> {
        value.map_err(|reason| self.add(cpu, fact, reason)).ok()
    }

    /// Keeps a reason.
    pub(super) fn add(&mut self, cpu: CpuId, fact: &'static str, reason: String) {
        self.0.entry((fact, reason)).or_default().insert(cpu);
    }

    /// Notes each reason once, with the CPUs that it holds for as a cpulist.
    pub(super) fn note(self, notes: &mut Notes) {
        for ((fact, reason), cpus) in self.0 {
            notes.add(&format!("cpu {cpus}"), fact, &reason);
        }
    }
}
