//! Why packets into virtual machines were late.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Packets of a queue that took longer into the guest than a limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmLate {
    /// The limit.
    pub slow_ns: u64,
    /// In which part of its way each had spent most of its time; the most packets first.
    pub parts: Vec<VmLatePart>,
}

impl VmLate {
    /// Late packets.
    pub fn packets(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.packets))
    }

    /// Those of several queues; `None` without any.
    pub fn sum<'a>(late: impl Iterator<Item = &'a Self>) -> Option<Self> {
        late.fold(None, |mut all, more| {
            Self::add_to(&mut all, Some(more));
            all
        })
    }

    /// Adds those of another queue, if there are any.
    pub(super) fn add_to(all: &mut Option<Self>, more: Option<&Self>) {
        match (all, more) {
            (Some(all), Some(more)) => all.add(more),
            (all @ None, more) => *all = more.cloned(),
            (Some(_), None) => {}
        }
    }

    fn add(&mut self, other: &Self) {
        for more in &other.parts {
            let Some(part) = self.parts.iter_mut().find(|part| part.part == more.part) else {
                self.parts.push(more.clone());
                continue;
            };
            part.packets = part.packets.saturating_add(more.packets);
            part.time_ns = part.time_ns.saturating_add(more.time_ns);
            for (comm, packets) in &more.behind {
                let sum = part.behind.entry(comm.clone()).or_default();
                *sum = sum.saturating_add(*packets);
            }
        }
        self.parts.sort_by_key(|part| u64::MAX - part.packets);
    }
}

/// Late packets that spent most of their time in one part of their path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmLatePart {
    /// Which.
    pub part: VmPart,
    /// Packets.
    pub packets: u64,
    /// Their time in this part.
    pub time_ns: u64,
    /// Of waits for a CPU, the task that had it for longest: packets by its name.
    pub behind: BTreeMap<String, u64>,
}

/// A part of the time of a late packet; all parts add up to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VmPart {
    /// The NIC had the packet, and had not interrupted yet: its interrupt moderation, or interrupts were off on the
    /// CPU. Only of NICs that timestamp.
    Nic,
    /// From the interrupt to NET_RX.
    Interrupt,
    /// From NET_RX to the tap.
    Handler,
    /// vhost was ready to run, and had no CPU.
    VhostWaited,
    /// vhost was ready to run, and its cgroup had used up its quota (`cpu.max`).
    VhostThrottled,
    /// The rest of its time: it was woken, and copied this packet and those before it.
    Vhost,
    /// The thread of the vCPU was ready to run, and had no CPU.
    VcpuWaited,
    /// It was ready to run, and its cgroup had used up its quota (`cpu.max`).
    VcpuThrottled,
    /// The rest of its time: it was woken or kicked, or was in the host.
    Vcpu,
}

impl VmPart {
    /// All, in the order of the path.
    pub const ALL: [Self; 9] = [
        Self::Nic,
        Self::Interrupt,
        Self::Handler,
        Self::VhostWaited,
        Self::VhostThrottled,
        Self::Vhost,
        Self::VcpuWaited,
        Self::VcpuThrottled,
        Self::Vcpu,
    ];
}
