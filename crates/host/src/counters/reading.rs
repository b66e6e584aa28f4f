//! Counters at one moment; a measurement takes the difference of two.
//!
//! Input: a root and the interfaces whose queues are of interest. Output: plain values. What cannot be read is
//! empty, with the reason.

use super::{softirqs, softnet};
use crate::irqs::{Interrupts, TABLE, parse_interrupts};
use crate::nics::queue_packets;
use crate::{Notes, ReadError, Root};
use nearpath_model::{Counters, Nic};

/// Maximum attempts to read a table that changes in the meantime.
const ATTEMPTS: usize = 5;

/// Reads all counters, and the packets by queue of these interfaces.
pub fn read_counters(root: &Root, nics: &[Nic]) -> Counters {
    let mut notes = Notes::default();
    let table = notes.take("host", "irqs", table(root)).unwrap_or_default();
    let Interrupts { mut irqs, mut arch, cpus, uneven, cut } = table;
    if let Some(label) = uneven.first() {
        let reason = format!("{TABLE}: CPUs went online or offline at each attempt to read it");
        notes.add(&format!("irq {label}"), "counts", &reason);
    }
    irqs.retain(|irq| !uneven.contains(&irq.irq.to_string()));
    arch.retain(|irq| !uneven.contains(&irq.name));
    if cut {
        notes.add(
            "host",
            "irqs",
            &format!("{TABLE}: only the first {} lines were read", irqs.len()),
        );
    }
    let softirqs = softirqs(root, &mut notes);
    let softnet = softnet(root, &mut notes, &cpus);
    let asked: Vec<_> = nics.iter().map(|nic| (nic.ifindex, nic.name.as_str())).collect();
    let (queue_packets, errors) = queue_packets::read(root, &asked);
    for error in errors {
        notes.add("host", "packets by queue", &error.to_string());
    }
    let unknown = notes.unknown().to_vec();
    Counters { cpus, irqs, arch_irqs: arch, softirqs, softnet, queue_packets, unknown }
}

/// The table of interrupts. If a CPU went online or offline while a line was written, its counts cannot be
/// assigned to CPUs: the table is read again.
fn table(root: &Root) -> Result<Interrupts, ReadError> {
    let read = || {
        let bytes = root.read(TABLE)?;
        parse_interrupts(&bytes).map_err(|e| ReadError::new(TABLE, &e.to_string()))
    };
    let mut table = read()?;
    for _ in 1..ATTEMPTS {
        if table.uneven.is_empty() {
            break;
        }
        table = read()?;
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{CpuId, IfIndex};
    use nearpath_testing::trees::{Layout, Machine, Nic as MadeNic};

    fn machine() -> Machine {
        let nic = MadeNic::pci("eth0", "mlx5_core", "0000:5e:00.0").queues(2, 100);
        Machine::regular(Layout { packages: 1, cores: 3, ..Layout::default() })
            .offline(&[1])
            .nic(nic.queue(1, |queue| queue.counts = [(0, 5)].into()))
    }

    fn read(machine: &Machine) -> Counters {
        let tree = machine.write();
        crate::read_counters(&Root::tree(tree.path()).unwrap(), &[])
    }

    #[test]
    fn counters_and_their_cpus() {
        let counters = read(&machine());
        assert_eq!(counters.cpus.to_string(), "0,2");
        assert_eq!(counters.irqs[1].counts, [(CpuId(0), 5)].into());
        assert_eq!(counters.softnet.len(), 2);
        assert!(counters.softirqs.iter().any(|vector| vector.vector == "NET_RX"));
        assert_eq!(counters.unknown, []);
    }

    #[test]
    fn a_line_written_during_cpu_hotplug_has_no_counts() {
        let table = "  CPU0 CPU1\n 7: 1 2 chip 1-edge a\n 8: 3 chip 2-edge b\nRES: 1\nERR: 0\n";
        let counters = read(&machine().file("/proc/interrupts", table));
        assert_eq!(counters.irqs.len(), 1);
        assert_eq!(counters.irqs[0].irq.0, 7);
        assert!(counters.arch_irqs.iter().any(|irq| irq.name == "ERR"));
    }

    #[test]
    fn unreadable_files_are_reported() {
        let counters = read(&machine().without("/proc/interrupts").without("/proc/softirqs"));
        assert!(counters.irqs.is_empty() && counters.softirqs.is_empty());
        let facts: Vec<_> = counters.unknown.iter().map(|u| u.fact.as_str()).collect();
        assert_eq!(facts, ["irqs", "softirqs"]);
    }

    /// On this machine, whose kernel answers or refuses.
    #[test]
    fn the_loopback_has_no_queue_counters() {
        let counters = crate::read_counters(&Root::live(), &[]);
        assert!(!counters.cpus.is_empty() && !counters.softnet.is_empty());
        let (packets, _) = queue_packets::read(&Root::live(), &[(IfIndex(1), "lo")]);
        assert!(!packets.contains_key(&IfIndex(1)), "{packets:?}");
    }
}
