//! What the kubelet's CPU manager has assigned.

use crate::CpuSet;
use serde::{Deserialize, Serialize};

/// The state of the kubelet's CPU manager (pkg/kubelet/cm/cpumanager/state/checkpoint.go of kubernetes).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuManager {
    /// The file that says so.
    pub file: String,
    /// The policy: `static`, or another that assigns no CPUs.
    pub policy: String,
    /// The CPUs that all other containers share.
    pub shared: CpuSet,
    /// The CPUs of containers that have theirs alone.
    pub exclusive: Vec<ExclusiveCpus>,
}

/// The CPUs of a container of a Guaranteed pod that requests whole CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExclusiveCpus {
    /// The pod's UID.
    pub pod: String,
    /// The container's name; empty for CPUs of a pod that its other containers share.
    pub container: String,
    /// Its CPUs.
    pub cpus: CpuSet,
}

impl CpuManager {
    /// All CPUs that containers have alone.
    pub fn exclusive_cpus(&self) -> CpuSet {
        let all = self.exclusive.iter().map(|its| &its.cpus);
        all.fold(CpuSet::new(), |all, cpus| all.union(cpus))
    }
}
