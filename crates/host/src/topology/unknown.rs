//! Reasons for unknown facts of CPUs: one note for all CPUs that share a reason.

use crate::Notes;
use nearpath_model::{CpuId, CpuSet};
use std::collections::BTreeMap;

/// Reasons, collected while CPUs are read.
#[derive(Default)]
pub(super) struct UnknownOfCpus(BTreeMap<(&'static str, String), CpuSet>);

impl UnknownOfCpus {
    /// The value, or `None` after storing the reason.
    pub(super) fn take<T>(
        &mut self,
        cpu: CpuId,
        fact: &'static str,
        value: Result<T, String>,
    ) -> Option<T> {
        value.map_err(|reason| self.add(cpu, fact, reason)).ok()
    }

    /// Stores a reason.
    pub(super) fn add(&mut self, cpu: CpuId, fact: &'static str, reason: String) {
        self.0.entry((fact, reason)).or_default().insert(cpu);
    }

    /// Notes each reason once, with its CPUs as a cpulist.
    pub(super) fn note(self, notes: &mut Notes) {
        for ((fact, reason), cpus) in self.0 {
            notes.add(&format!("cpu {cpus}"), fact, &reason);
        }
    }
}
