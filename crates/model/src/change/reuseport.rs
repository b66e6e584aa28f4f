//! The program that selects the socket of a REUSEPORT group.

use super::{DEFAULT, Persistence, TargetKind, Value, json};
use crate::{CpuSet, Nearness, SocketProtocol, SocketWorker};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;

/// A REUSEPORT group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Group {
    /// TCP or UDP.
    pub protocol: SocketProtocol,
    /// The address and port that its sockets are bound to.
    pub local: SocketAddr,
    /// Inode of its network namespace.
    pub netns: Option<u64>,
    /// Its sockets, in the kernel's order if known.
    pub sockets: Vec<GroupSocket>,
}

/// A socket of a group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GroupSocket {
    /// Its inode.
    pub inode: u64,
    /// A process that holds it open, and its descriptor there.
    pub held: Option<(u32, i32)>,
    /// The thread that reads from it; empty if unknown.
    pub workers: Vec<SocketWorker>,
}

/// A program that selects a socket of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// Selects the nearest worker (`bpf/steer.bpf.c`).
    Nearest {
        /// Its id in this boot, and its tag; 0 and empty before it is loaded.
        id: u32,
        /// A hash of its instructions.
        tag: String,
        /// The workers that each CPU's connections go to.
        choices: Vec<Choice>,
    },
    /// A classic program: its instructions as `[code, jt, jf, k]`.
    Classic {
        /// The instructions.
        instructions: Vec<[u32; 4]>,
    },
}

/// CPUs with the same nearest workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The CPUs that connections are received on.
    pub cpus: CpuSet,
    /// Indexes of the workers in the given list, ascending; several share connections evenly by the hash of
    /// addresses and ports.
    pub workers: Vec<usize>,
    /// Their distance; `None` if unknown.
    pub nearness: Option<Nearness>,
}

impl Program {
    /// The classic program that selects the socket by CPU number modulo group size (`SO_ATTACH_REUSEPORT_CBPF`,
    /// socket(7)).
    pub fn cpu_modulo(sockets: u32) -> Self {
        const LD_ABS: u32 = 0x20; // BPF_LD | BPF_W | BPF_ABS
        const ALU_MOD: u32 = 0x94; // BPF_ALU | BPF_MOD | BPF_K
        const RET_A: u32 = 0x16; // BPF_RET | BPF_A
        const CPU: u32 = (-0x1000i32 + 36) as u32; // SKF_AD_OFF + SKF_AD_CPU
        let instructions = vec![[LD_ABS, 0, 0, CPU], [ALU_MOD, 0, 0, sockets], [RET_A, 0, 0, 0]];
        Self::Classic { instructions }
    }
}

/// Prefix of a group's text in a plan; its JSON follows.
const IN_PLAN: &str = "reuseport ";

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reuseport group {}", self.local)
    }
}

impl TargetKind for Group {
    fn of_plan(text: &str, _: Option<u64>) -> Option<Self> {
        serde_json::from_str(text.strip_prefix(IN_PLAN)?).ok()
    }

    fn plan_text(&self) -> String {
        format!("{IN_PLAN}{}", json(self))
    }

    fn value_of_plan(&self, text: &str) -> Option<Value> {
        match text {
            DEFAULT => Some(Value::Default),
            _ => serde_json::from_str(text).ok().map(Value::Program),
        }
    }

    fn kind(&self) -> &'static str {
        "reuseport"
    }

    fn persistence(&self) -> Persistence {
        Persistence::WhileOpen
    }

    fn lost_for_good(&self) -> Option<&'static str> {
        Some("a BPF program ends with its sockets")
    }
}
