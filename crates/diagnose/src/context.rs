//! What a check sees: the host, the host earlier, what was measured, and look-ups over them that
//! several checks need.

use crate::{Evidence, text};
use nearpath_model::accepts::AcceptMeasurement;
use nearpath_model::answers::AnswerMeasurement;
use nearpath_model::drops::DropMeasurement;
use nearpath_model::locality::Locality;
use nearpath_model::memory::MemoryMeasurement;
use nearpath_model::tcp::TcpMeasurement;
use nearpath_model::vm::VmMeasurement;
use nearpath_model::{
    CpuId, CpuSet, Host, Irq, IrqNumber, Measurement, Nic, NicKind, NotChecked, QueueId,
    ScheduledTransmission, Workers,
};
use std::collections::BTreeMap;

/// What a check sees.
#[derive(Debug)]
pub struct Context<'a> {
    /// The host now, at the end of the interval.
    pub host: &'a Host,
    /// The host at the start of the interval, for counters; `None` leaves totals since boot.
    pub earlier: Option<&'a Host>,
    /// How long packets took from stage to stage in the interval.
    pub measurement: Option<&'a Measurement>,
    /// Where and why packets were dropped.
    pub drops: Option<&'a DropMeasurement>,
    /// The CPUs on which packets were allocated and freed.
    pub locality: Option<&'a Locality>,
    /// On which CPUs connections were received and accepted.
    pub accepts: Option<&'a AcceptMeasurement>,
    /// How long servers took from a request to its answer.
    pub answers: Option<&'a AnswerMeasurement>,
    /// What each TCP connection did, and what limited it.
    pub tcp: Option<&'a TcpMeasurement>,
    /// Where the memory of processes is.
    pub memory: Option<&'a MemoryMeasurement>,
    /// Threads of DPDK and Open vSwitch that poll.
    pub workers: Option<&'a Workers>,
    /// The way of packets into virtual machines, and why some were late.
    pub vm: Option<&'a VmMeasurement>,
    /// What was measured of scheduled transmission.
    pub txtime: Option<&'a ScheduledTransmission>,
    irqs: BTreeMap<IrqNumber, &'a Irq>,
    earlier_irqs: BTreeMap<IrqNumber, &'a Irq>,
}

impl<'a> Context<'a> {
    /// Indexes the facts.
    pub fn new(
        host: &'a Host,
        earlier: Option<&'a Host>,
        evidence: impl Into<Evidence<'a>>,
    ) -> Self {
        let Evidence {
            stages: measurement,
            drops,
            locality,
            accepts,
            answers,
            tcp,
            memory,
            workers,
            vm,
            txtime,
        } = evidence.into();
        let index = |host: &'a Host| host.irqs.iter().map(|irq| (irq.irq, irq)).collect();
        let earlier_irqs = earlier.map(index).unwrap_or_default();
        let irqs = index(host);
        Self {
            host,
            earlier,
            measurement,
            drops,
            locality,
            accepts,
            answers,
            tcp,
            memory,
            workers,
            vm,
            txtime,
            irqs,
            earlier_irqs,
        }
    }

    /// The interfaces that carry packets: not down, and with a name that a path may be made of.
    pub(crate) fn nics(&self) -> impl Iterator<Item = &'a Nic> {
        self.host
            .nics
            .iter()
            .filter(|nic| is_interface_name(&nic.name) && nic.state.as_deref() != Some("down"))
    }

    /// Those of them that have queues in use and interrupts of their own.
    pub(crate) fn hardware_nics(&self) -> impl Iterator<Item = &'a Nic> {
        let host = self.host;
        self.nics()
            .filter(|nic| matches!(nic.kind, NicKind::Physical | NicKind::Vf | NicKind::Virtio))
            .filter(|nic| host.data_path_of(nic).is_none())
    }

    /// Interfaces that were left out because no kernel gives such a name.
    pub(crate) fn refused_names(&self) -> Vec<NotChecked> {
        let refused = self.host.nics.iter().filter(|nic| !is_interface_name(&nic.name));
        let note = |nic: &Nic| NotChecked {
            check: "nics".to_owned(),
            reason: format!("{:?} cannot be an interface's name", text::clean(&nic.name)),
        };
        refused.map(note).collect()
    }

    /// The interrupt of that number.
    pub(crate) fn irq(&self, irq: IrqNumber) -> Option<&'a Irq> {
        self.irqs.get(&irq).copied()
    }

    /// The same interrupt at the start of the interval.
    pub(crate) fn earlier_irq(&self, irq: IrqNumber) -> Option<&'a Irq> {
        self.earlier_irqs.get(&irq).copied()
    }

    /// The receive queues whose interrupt is known.
    pub(crate) fn rx_irqs(&self, nic: &Nic) -> Vec<(QueueId, &'a Irq)> {
        let irq = |queue: &nearpath_model::RxQueue| Some((queue.queue, self.irq(queue.irq?)?));
        nic.rx_queues.iter().filter_map(irq).collect()
    }

    /// All interrupts of a NIC's queues, ascending, each once.
    pub(crate) fn queue_irqs(&self, nic: &Nic) -> Vec<&'a Irq> {
        let rx = nic.rx_queues.iter().filter_map(|queue| queue.irq);
        let tx = nic.tx_queues.iter().filter_map(|queue| queue.irq);
        let numbers: std::collections::BTreeSet<_> = rx.chain(tx).collect();
        numbers.into_iter().filter_map(|irq| self.irq(irq)).collect()
    }

    /// Why the interrupts of a NIC's queues are unknown, as a reason for `not_checked`.
    pub(crate) fn no_irqs(&self, nic: &Nic) -> String {
        let why = self.why_unknown(&format!("nic {}", nic.name), "irq");
        format!("which interrupts {}'s queues have is unknown{why}", nic.name)
    }

    /// Why a fact is unknown, as ` (reason)`, or nothing when no reason was noted.
    pub(crate) fn why_unknown(&self, subject: &str, fact: &str) -> String {
        self.host
            .unknown
            .iter()
            .find(|unknown| {
                // Facts that are unknown for the same reason share a note.
                unknown.subject == subject && unknown.fact.split(", ").any(|one| one == fact)
            })
            .map(|unknown| format!(" ({})", text::clean(&unknown.reason)))
            .unwrap_or_default()
    }

    /// The nodes that have CPUs: with fewer than two of them nothing can be on the wrong one.
    pub(crate) fn nodes_with_cpus(&self) -> usize {
        let topology = &self.host.topology;
        topology.nodes.iter().filter(|n| !n.cpus.intersection(&topology.online).is_empty()).count()
    }

    /// The CPUs of the same last-level caches; empty where the caches are unknown.
    pub(crate) fn llc_cpus(&self, cpus: &CpuSet) -> CpuSet {
        let topology = &self.host.topology;
        let llcs: std::collections::BTreeSet<_> =
            cpus.iter().filter_map(|cpu| topology.llc_of(cpu)).collect();
        topology
            .llcs
            .iter()
            .filter(|llc| llcs.contains(&llc.llc))
            .fold(CpuSet::new(), |all, llc| all.union(&llc.cpus))
    }

    /// The CPU as a measurement's [`nearpath_model::Place`] names it: on hosts of more than
    /// 128 CPUs the lowest one of its LLC, or of its node where the LLC is unknown.
    pub(crate) fn place(&self, cpu: CpuId) -> CpuId {
        let topology = &self.host.topology;
        if topology.possible.len().max(topology.present.len()) <= 128 {
            return cpu;
        }
        let first = match topology.llc_of(cpu) {
            Some(id) => {
                topology.llcs.iter().find(|llc| llc.llc == id).and_then(|llc| llc.cpus.first())
            }
            None => {
                let node = topology.node_of(cpu);
                let alike = topology.cpus.iter().find(|c| c.llc.is_none() && c.node == node);
                alike.map(|found| found.cpu)
            }
        };
        first.unwrap_or(cpu)
    }

    /// What counters cover, for a sentence.
    pub(crate) fn since(&self) -> &'static str {
        if self.earlier.is_some() { "in the interval" } else { "since boot" }
    }
}

/// Where an interrupt goes: `effective_affinity`, or where it may go when that is unknown.
pub(crate) fn irq_cpus(irq: &Irq) -> Option<&CpuSet> {
    let known = |cpus: &'_ &CpuSet| !cpus.is_empty();
    irq.effective_affinity.as_ref().filter(known).or(irq.affinity.as_ref().filter(known))
}

/// Whether the kernel would take the name (`dev_valid_name` of net/core/dev.c): paths and
/// commands are made of it, and the host may be a stranger's.
fn is_interface_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() < 16
        && name != "."
        && name != ".."
        && !name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_paths_are_refused() {
        for good in ["eth0", "enp94s0f0np0", "veth-a.1", "ü"] {
            assert!(is_interface_name(good), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "../../x", "a b", "a\nb", "a:1", "sixteen-chars-xx"] {
            assert!(!is_interface_name(bad), "{bad}");
        }
    }
}
