//! Interrupts: their names and how often each CPU handled them (`/proc/interrupts`), their requested and
//! effective affinity (`/proc/irq/N`).
//!
//! Input: a root. Output: the numbered interrupts and those of the architecture. What cannot be read of an
//! interrupt is `None` with a note, one for all interrupts with the same reason.

mod interrupts;

pub use interrupts::{Interrupts, parse_interrupts};

use crate::{Notes, ReadError, Root};
use nearpath_model::{ArchIrq, CpuSet, Irq, IrqNumber, NodeId};
use std::collections::BTreeMap;

/// The kernel's table of interrupts.
pub(crate) const TABLE: &str = "/proc/interrupts";

/// Reads all interrupts.
pub(crate) fn read(root: &Root, notes: &mut Notes) -> (Vec<Irq>, Vec<ArchIrq>) {
    let (mut irqs, arch) = read_counts(root, notes);
    read_affinities(root, notes, &mut irqs, |_| true);
    (irqs, arch)
}

/// Reads the names and counts of all interrupts.
pub(crate) fn read_counts(root: &Root, notes: &mut Notes) -> (Vec<Irq>, Vec<ArchIrq>) {
    let table = root.read(TABLE).and_then(|bytes| {
        parse_interrupts(&bytes).map_err(|e| ReadError::new(TABLE, &e.to_string()))
    });
    let Some(Interrupts { irqs, arch, uneven, cut, .. }) = notes.take("host", "irqs", table) else {
        return Default::default();
    };
    for label in uneven {
        notes.add(
            &format!("irq {label}"),
            "counts",
            &format!("{TABLE}: the line does not have one count per CPU of the header"),
        );
    }
    if cut {
        notes.add(
            "host",
            "irqs",
            &format!("{TABLE}: only the first {} lines were read", irqs.len()),
        );
    }
    (irqs, arch)
}

/// Adds the contents of `/proc/irq/N` to these interrupts.
pub(crate) fn read_affinities(
    root: &Root,
    notes: &mut Notes,
    irqs: &mut [Irq],
    wanted: impl Fn(IrqNumber) -> bool,
) {
    let mut fill = |fact, read: &dyn Fn(&mut Irq, &str) -> Result<(), ReadError>| {
        fill(irqs.iter_mut().filter(|irq| wanted(irq.irq)), notes, fact, read);
    };
    fill("affinity", &|irq, folder| {
        irq.affinity = Some(cpu_set(root, folder, "smp_affinity")?);
        Ok(())
    });
    fill("effective_affinity", &|irq, folder| {
        irq.effective_affinity = Some(cpu_set(root, folder, "effective_affinity")?);
        Ok(())
    });
    fill("node", &|irq, folder| {
        irq.node = Some(node(root, folder)?);
        Ok(())
    });
}

/// Reads one fact of each interrupt, and notes failures once per reason, since most reasons are shared by many
/// interrupts (a node of -1, a kernel without effective affinities).
fn fill<'a>(
    irqs: impl Iterator<Item = &'a mut Irq>,
    notes: &mut Notes,
    fact: &str,
    read: &dyn Fn(&mut Irq, &str) -> Result<(), ReadError>,
) {
    let mut failures: BTreeMap<String, (String, Vec<u32>)> = BTreeMap::new();
    for irq in irqs {
        let folder = format!("/proc/irq/{}", irq.irq);
        if let Err(error) = read(irq, &folder) {
            let (_, of) = failures.entry(error.reason).or_insert((error.what, Vec::new()));
            of.push(irq.irq.0);
        }
    }
    for (reason, (what, irqs)) in failures {
        let subject = match irqs.as_slice() {
            [irq] => format!("irq {irq}"),
            many => format!("irqs {}", ranges(many)),
        };
        // The path is that of the first one.
        notes.add(&subject, fact, &format!("{what}: {reason}"));
    }
}

/// Ascending numbers as ranges: `24-26,28`.
fn ranges(numbers: &[u32]) -> String {
    let runs = numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let runs = runs.filter_map(|run| match (run.first()?, run.last()?) {
        (first, last) if first == last => Some(first.to_string()),
        (first, last) => Some(format!("{first}-{last}")),
    });
    runs.collect::<Vec<_>>().join(",")
}

/// A CPU set from its cpulist, else from its mask (older kernels have only the mask).
fn cpu_set(root: &Root, folder: &str, file: &str) -> Result<CpuSet, ReadError> {
    let path = format!("{folder}/{file}_list");
    let (path, set) = match root.text(&path) {
        Ok(text) => (path, CpuSet::from_list(&text)),
        Err(absent) if absent.absent => {
            let path = format!("{folder}/{file}");
            // If there is no mask either, the missing list is the better reason.
            let text = root.text(&path).map_err(|e| if e.absent { absent } else { e })?;
            (path, CpuSet::from_mask(&text))
        }
        Err(error) => return Err(error),
    };
    set.map_err(|e| ReadError::new(&path, &e.to_string()))
}

fn node(root: &Root, folder: &str) -> Result<NodeId, ReadError> {
    let path = format!("{folder}/node");
    let text = root.text(&path)?;
    text.parse().map_err(|_| {
        let reason = match text.as_str() {
            "-1" => "the kernel reports -1".to_owned(),
            other => format!("not a node: {:?}", other.chars().take(20).collect::<String>()),
        };
        ReadError::new(&path, &reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_testing::trees::{Layout, Machine, Nic};

    fn machine() -> Machine {
        let nic = Nic::pci("eth0", "mlx5_core", "0000:5e:00.0").on_node(1).queues(3, 100);
        Machine::regular(Layout { packages: 2, cores: 2, ..Layout::default() })
            .offline(&[1])
            .nic(nic.queue(1, |queue| queue.affinity = vec![2, 3]))
    }

    /// The interrupts, and the notes as `subject fact: reason`.
    fn read_tree(machine: &Machine) -> (Vec<Irq>, Vec<String>) {
        let tree = machine.write();
        let mut notes = Notes::default();
        let (irqs, _) = read(&Root::tree(tree.path()).unwrap(), &mut notes);
        let notes = notes.unknown().iter();
        (irqs, notes.map(|n| format!("{} {}: {}", n.subject, n.fact, n.reason)).collect())
    }

    fn shown(set: Option<&CpuSet>) -> String {
        set.map_or("unknown".to_owned(), CpuSet::to_string)
    }

    #[test]
    fn affinities_and_nodes() {
        let (irqs, notes) = read_tree(&machine());
        let irq = &irqs[1];
        assert_eq!((irq.irq.0, irq.name.as_str(), irq.node), (101, "eth0-TxRx-1", Some(NodeId(1))));
        assert_eq!(shown(irqs[0].affinity.as_ref()), "0,2-3");
        assert_eq!(shown(irq.affinity.as_ref()), "2-3");
        assert!(irq.effective_affinity.as_ref().unwrap().is_subset(irq.affinity.as_ref().unwrap()));
        assert_eq!(notes, [""; 0]);
    }

    #[test]
    fn masks_replace_missing_lists() {
        let machine = machine()
            .without("/proc/irq/101/smp_affinity_list")
            .file("/proc/irq/101/smp_affinity", "00000001,0000000c\n");
        let (irqs, notes) = read_tree(&machine);
        assert_eq!(shown(irqs[1].affinity.as_ref()), "2-3,32");
        assert_eq!(notes, [""; 0]);
    }

    #[test]
    fn a_removed_interrupt_is_noted_individually() {
        let (irqs, notes) = read_tree(&machine().without("/proc/irq/102"));
        assert_eq!(irqs.len(), 3);
        assert_eq!((&irqs[2].affinity, irqs[2].node), (&None, None));
        let of =
            |fact: &str, file: &str| format!("irq 102 {fact}: /proc/irq/102/{file}: not found");
        assert_eq!(
            notes,
            [
                of("affinity", "smp_affinity_list"),
                of("effective_affinity", "effective_affinity_list"),
                of("node", "node"),
            ]
        );
    }

    #[test]
    fn a_shared_reason_is_noted_once() {
        let mut machine = machine()
            .file("/proc/irq/100/smp_affinity_list", "all")
            .file("/proc/irq/100/node", "-1\n")
            .file("/proc/irq/102/node", "-1\n");
        for irq in 100..103 {
            machine = machine.without(&format!("/proc/irq/{irq}/effective_affinity_list"));
        }
        let (irqs, notes) = read_tree(&machine);
        assert_eq!(irqs[0].node, None);
        assert_eq!(
            notes,
            [
                "irq 100 affinity: /proc/irq/100/smp_affinity_list: not a cpulist: \"all\"",
                "irqs 100-102 effective_affinity: /proc/irq/100/effective_affinity_list: \
                 not found",
                "irqs 100,102 node: /proc/irq/100/node: the kernel reports -1",
            ]
        );
    }

    #[test]
    fn a_malformed_table_is_noted() {
        let (irqs, notes) = read_tree(&machine().file("/proc/interrupts", "nothing here\n"));
        assert_eq!(irqs, []);
        assert_eq!(notes, ["host irqs: /proc/interrupts: the first line is not a list of CPUs"]);
    }
}
