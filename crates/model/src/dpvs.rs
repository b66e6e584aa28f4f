//! What DPVS makes of a configuration file: whether it starts, what it changes without an error, and which worker
//! then polls which queues.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of [`DpvsCheck`].
pub const DPVS_SCHEMA: u32 = 1;

/// Whether DPVS starts with a configuration, and with what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DpvsCheck {
    /// The version of this document.
    pub schema: u32,
    /// The release whose keywords are known: `1.10.2`.
    #[serde(default)]
    pub version: String,
    /// What was not given, and what was taken for it, one line each.
    #[serde(default)]
    pub assumed: Vec<String>,
    /// The answer.
    pub verdict: DpvsVerdict,
    /// What DPVS refuses or changes, by line.
    pub problems: Vec<DpvsProblem>,
    /// What depends on the build of DPVS or was not read, and does not count for the verdict.
    pub notes: Vec<DpvsProblem>,
    /// The workers that would run, by lcore id. Of a refused configuration those that DPVS knew by then.
    pub workers: Vec<DpvsWorker>,
}

/// The verdict on a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DpvsVerdict {
    /// DPVS starts with what is written.
    Accepted,
    /// DPVS starts, but not with what is written.
    Changed,
    /// DPVS exits or aborts.
    Refused,
}

/// One problem of a configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DpvsProblem {
    /// The line of the file, from 1; `None` for the options of EAL, and for what is missing.
    pub line: Option<u32>,
    /// What it leads to by itself: `refused` or `changed`; `accepted` for a note.
    pub effect: DpvsVerdict,
    /// A stable name, such as `rx_queue_repeated`.
    pub code: String,
    /// What is wrong, and what DPVS does.
    pub message: String,
    /// What to write instead.
    pub remedy: String,
}

/// A worker of DPVS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DpvsWorker {
    /// Its lcore id, the `cpu_id` of the configuration.
    pub lcore: u32,
    /// Its CPU; `None` if it floats over several, or if EAL would not start the lcore.
    pub cpu: Option<u32>,
    /// The CPUs of a worker that floats, as a cpulist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// What it does.
    pub role: DpvsRole,
    /// Its queues by port name.
    pub ports: BTreeMap<String, DpvsQueues>,
}

/// The role of a worker (DPVS's guide to worker tuning).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DpvsRole {
    /// The control plane: EAL's main lcore.
    Master,
    /// Receives, processes and sends packets (`type slave`).
    Forwarding,
    /// Receives for a forwarding worker (`isol_rx_cpu_ids`).
    IsolatedRx,
    /// Serves the kernel network interfaces (`type kni`).
    Kni,
    /// Has an lcore and queues, and runs nothing.
    Idle,
}

/// Queues of one port that a worker serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DpvsQueues {
    /// Receive queues, in the order of the file.
    pub rx: Vec<u32>,
    /// Transmit queues.
    pub tx: Vec<u32>,
    /// The lcores that receive for it, by the position in `rx`; `None` where it receives itself. Empty if it receives
    /// from all of them.
    pub isolated_rx: Vec<Option<u32>>,
}
