//! The transmit direction of a queue: from the guest's kick to the host's NIC.

use super::{VmSpan, add_by_cpu};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Packets that a guest sent by a queue.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VmTransmit {
    /// Threads of vhost that sent them.
    pub workers: Vec<u32>,
    /// Kicks of the guest that the worker has served; several before it runs are one.
    pub kicks: u64,
    /// Packets that vhost gave to the tap.
    pub sent: u64,
    /// Times that it did so: it gives up to 64 at once.
    pub batches: u64,
    /// Packets that a kick announced. The guest added the others while the worker ran, without a kick.
    pub kicked: u64,
    /// Packets that reached a NIC. The others went elsewhere in the host, or were dropped.
    pub reached_nic: u64,
    /// Packets not followed from the tap, as another one had their slot.
    pub collided: u64,
    /// Their times.
    pub spans: Vec<VmSpan<VmTransmitSpanKind>>,
    /// Packets by CPU, at the ends of the spans.
    pub cpus: VmTransmitCpus,
}

impl VmTransmit {
    /// A span that packets have passed.
    pub fn span(&self, kind: VmTransmitSpanKind) -> Option<&VmSpan<VmTransmitSpanKind>> {
        self.spans.iter().find(|span| span.span == kind)
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.workers.extend(&other.workers);
        self.workers.sort_unstable();
        self.workers.dedup();
        for (sum, more) in [
            (&mut self.kicks, other.kicks),
            (&mut self.sent, other.sent),
            (&mut self.batches, other.batches),
            (&mut self.kicked, other.kicked),
            (&mut self.reached_nic, other.reached_nic),
            (&mut self.collided, other.collided),
        ] {
            *sum = sum.saturating_add(more);
        }
        let sum = |kind: VmTransmitSpanKind| {
            let spans = [&*self, other].into_iter().filter_map(|queue| queue.span(kind));
            VmSpan::sum(kind, spans)
        };
        self.spans = VmTransmitSpanKind::ALL.into_iter().filter_map(sum).collect();
        add_by_cpu(&mut self.cpus.kick, &other.cpus.kick);
        add_by_cpu(&mut self.cpus.vhost, &other.cpus.vhost);
        add_by_cpu(&mut self.cpus.nic, &other.cpus.nic);
    }
}

/// Where packets were sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmTransmitCpus {
    /// Where the guest kicked: kicks by CPU.
    pub kick: BTreeMap<u32, u64>,
    /// Where the vhost worker gave packets to the tap.
    pub vhost: BTreeMap<u32, u64>,
    /// Where the NIC's driver took them.
    pub nic: BTreeMap<u32, u64>,
}

/// A span of the way from the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmTransmitSpanKind {
    /// From the guest's kick to the run of the vhost worker; of kicks, not of packets.
    KickToVhost,
    /// From the run of the worker to the packet at the tap.
    VhostToTap,
    /// From the tap to the driver of the NIC.
    TapToNic,
    /// From the kick that announced the packet to the driver of the NIC.
    Whole,
}

impl VmTransmitSpanKind {
    /// All, in the order of the path.
    pub const ALL: [Self; 4] = [Self::KickToVhost, Self::VhostToTap, Self::TapToNic, Self::Whole];
}
