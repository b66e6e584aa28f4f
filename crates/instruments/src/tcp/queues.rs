//! On which CPU the interrupts of each receive queue are handled.
//!
//! Input: the host. Output: by interface and queue, the CPU, if the interrupt has exactly one.

use nearpath_host::{Root, Wanted, read};
use nearpath_model::{CpuId, Host};
use std::collections::HashMap;

/// The CPUs, by the interface's index and the number of the queue.
#[derive(Debug, Default)]
pub(super) struct Queues(HashMap<(u32, u32), CpuId>);

impl Queues {
    /// Reads the interfaces; none if they cannot be read.
    pub fn read(root: &Root) -> Self {
        read(root, &Wanted::default()).map_or_else(|_| Self::default(), |host| Self::of(&host))
    }

    fn of(host: &Host) -> Self {
        let affinity = |irq| {
            let irq = host.irqs.iter().find(|known| Some(known.irq) == irq)?;
            let cpus = irq.effective_affinity.as_ref().or(irq.affinity.as_ref())?;
            cpus.first().filter(|_| cpus.len() == 1)
        };
        let queues = host.nics.iter().flat_map(|nic| {
            nic.rx_queues.iter().filter_map(move |queue| {
                Some(((nic.ifindex.0, queue.queue.0), affinity(queue.irq)?))
            })
        });
        Self(queues.collect())
    }

    /// The CPU of a queue.
    pub fn cpu(&self, ifindex: u32, queue: u32) -> Option<CpuId> {
        self.0.get(&(ifindex, queue)).copied()
    }
}
