//! Queues of the firewall, from which programs take packets and decide about them.

use serde::{Deserialize, Serialize};

/// A queue of NFQUEUE (`/proc/net/netfilter/nfnetlink_queue`, net/netfilter/nfnetlink_queue.c `seq_show`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NfQueue {
    /// Its number, of the rule that sends packets there (`--queue-num`).
    pub number: u16,
    /// The process that takes packets from it, as the port of its netlink socket says; `None` if that is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// Packets that wait for a decision.
    pub waiting: u64,
    /// Packets dropped as it was full.
    pub dropped: u64,
    /// Packets that the process' socket had no room for.
    pub user_dropped: u64,
    /// Packets that were queued so far, modulo 2³².
    pub queued: u64,
}
