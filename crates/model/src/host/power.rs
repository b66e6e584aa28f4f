//! Frequencies, idle states and temperature of CPUs.

use crate::{CpuId, CpuSet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Power settings that affect the speed and the wake-up latency of CPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuPower {
    /// CPUs by their frequency governor (`cpufreq/scaling_governor`); empty if the kernel does not set
    /// frequencies, as in most guests.
    pub governors: BTreeMap<String, CpuSet>,
    /// Idle states of the first online CPU, shallowest first; `None` without cpuidle.
    pub idle_states: Option<Vec<IdleState>>,
    /// How often each CPU's core was throttled because of its temperature
    /// (`thermal_throttle/core_throttle_count`); empty if not counted.
    pub throttle_counts: BTreeMap<CpuId, u64>,
}

/// An idle state of a CPU (`cpuidle/stateN`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleState {
    /// Its name: `C6`.
    pub name: String,
    /// Exit latency, in µs.
    pub latency_us: u64,
    /// Whether it is disabled.
    pub disabled: bool,
}
