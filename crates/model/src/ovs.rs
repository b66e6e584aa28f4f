//! A check of an existing Open vSwitch: whether its PMD threads poll what is written, from the node of each port.

use crate::{CpuId, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of [`OvsCheck`].
pub const OVS_CHECK_SCHEMA: u32 = 1;

/// The result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OvsCheck {
    /// The version of this document.
    pub schema: u32,
    /// The worst effect of a problem.
    pub verdict: OvsVerdict,
    /// The problems, the worst first.
    pub problems: Vec<OvsProblem>,
    /// Receive queues that are polled from another node than their port's.
    pub cross_node_queues: u32,
    /// PMD threads by CPU; empty if ovs-vswitchd does not report them.
    pub pmds: Vec<OvsPmdThread>,
    /// What is not known.
    pub notes: Vec<String>,
}

/// What Open vSwitch makes of its configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OvsVerdict {
    /// It runs what is written, and each port on its node.
    Accepted,
    /// It runs, but not what is written, or from another node.
    Changed,
    /// Something is not polled.
    Refused,
}

/// A problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OvsProblem {
    /// `remote_queue`, `mask_cpu_absent`, …
    pub code: String,
    /// What it leads to.
    pub effect: OvsVerdict,
    /// The setting or the interface.
    pub subject: String,
    /// What is wrong.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

/// A PMD thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OvsPmdThread {
    /// Its CPU.
    pub cpu: CpuId,
    /// Its node.
    pub node: Option<NodeId>,
    /// Whether it takes queues of a `pmd-rxq-affinity` only.
    pub isolated: bool,
    /// Its queues by interface.
    pub queues: BTreeMap<String, Vec<u32>>,
}
