//! Interrupts.

use crate::{CpuId, CpuSet, IrqNumber, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An interrupt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Irq {
    /// Its number.
    pub irq: IrqNumber,
    /// The last column of `/proc/interrupts`: the names of its handlers (`mlx5_comp0@pci:…`), separated by `,
    /// `; empty if it has none now.
    pub name: String,
    /// The interrupt chip and trigger, the columns before the name.
    pub chip: Option<String>,
    /// Counts by CPU; CPUs without interrupts are omitted.
    pub counts: BTreeMap<CpuId, u64>,
    /// `smp_affinity_list`: the CPUs allowed.
    pub affinity: Option<CpuSet>,
    /// `effective_affinity_list`: the CPUs used.
    pub effective_affinity: Option<CpuSet>,
    /// `node`; -1 is unknown.
    pub node: Option<NodeId>,
}

/// Identifies an interrupt when its number has changed: the interface of its device and the name of its
/// handler.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NicIrq {
    /// The interface: `eth0`.
    pub nic: String,
    /// The name in `/proc/interrupts`: `eth0-TxRx-3`.
    pub name: String,
}

/// An interrupt of the architecture, a line of `/proc/interrupts` with a name instead of a number: the
/// inter-processor interrupts (`RES`, `CAL`, `TLB`, `IPI0`), the local timer (`LOC`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchIrq {
    /// The name: `CAL`.
    pub name: String,
    /// The kernel's description: `Function call interrupts`.
    pub description: Option<String>,
    /// Counts by CPU; CPUs without interrupts are omitted.
    pub counts: BTreeMap<CpuId, u64>,
    /// The count if the kernel does not count it per CPU (`ERR`, `MIS`).
    pub total: Option<u64>,
}
