//! Interrupts.

use crate::{CpuId, CpuSet, IrqNumber, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An interrupt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Irq {
    /// Its number.
    pub irq: IrqNumber,
    /// The last column of `/proc/interrupts`: the names of its handlers (`mlx5_comp0@pci:…`).
    pub name: String,
    /// The interrupt chip and trigger, the columns before the name.
    pub chip: Option<String>,
    /// Counts by CPU; CPUs with none are left out.
    pub counts: BTreeMap<CpuId, u64>,
    /// `smp_affinity_list`: where it may go.
    pub affinity: Option<CpuSet>,
    /// `effective_affinity_list`: where it goes.
    pub effective_affinity: Option<CpuSet>,
    /// `node`; -1 is unknown.
    pub node: Option<NodeId>,
}
