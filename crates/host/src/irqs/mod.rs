//! Interrupts: what they are and how often each CPU took them (`/proc/interrupts`), where they
//! may go and where they go (`/proc/irq/N`).
//!
//! In goes a root, out come the numbered interrupts and the architecture's own. What cannot be
//! read of an interrupt is `None` with a note; what cannot be read of any (a container without
//! `/proc/irq`, a kernel without effective affinities) is noted once for all.

mod interrupts;

pub use interrupts::{Interrupts, parse_interrupts};

use crate::{ArchIrq, CpuSet, Irq, NodeId, Notes, ReadError, Root};

const TABLE: &str = "/proc/interrupts";

/// Reads all interrupts.
pub(crate) fn read(root: &Root, notes: &mut Notes) -> (Vec<Irq>, Vec<ArchIrq>) {
    let table = root.read(TABLE).and_then(|bytes| {
        parse_interrupts(&bytes).map_err(|e| ReadError {
            what: TABLE.into(),
            reason: e.to_string(),
            absent: false,
        })
    });
    let Some(Interrupts { mut irqs, arch, uneven, cut }) = notes.take("host", "irqs", table) else {
        return Default::default();
    };
    for label in uneven {
        notes.add(
            &format!("irq {label}"),
            "counts",
            &format!("{TABLE}: the line has not one count for each CPU of the header"),
        );
    }
    if cut {
        notes.add("host", "irqs", &format!("{TABLE}: only the first {} lines", irqs.len()));
    }
    read_affinities(root, notes, &mut irqs);
    (irqs, arch)
}

/// Completes the interrupts with what `/proc/irq/N` tells.
fn read_affinities(root: &Root, notes: &mut Notes, irqs: &mut [Irq]) {
    fill(irqs, notes, "affinity", |irq, folder| {
        irq.affinity = Some(cpu_set(root, folder, "smp_affinity")?);
        Ok(())
    });
    fill(irqs, notes, "effective_affinity", |irq, folder| {
        irq.effective_affinity = Some(cpu_set(root, folder, "effective_affinity")?);
        Ok(())
    });
    fill(irqs, notes, "node", |irq, folder| {
        irq.node = Some(node(root, folder)?);
        Ok(())
    });
}

/// Reads one fact of each interrupt, and notes where that failed: once, if it failed for all.
fn fill(
    irqs: &mut [Irq],
    notes: &mut Notes,
    fact: &str,
    mut read: impl FnMut(&mut Irq, &str) -> Result<(), ReadError>,
) {
    let mut failures = Vec::new();
    for irq in irqs.iter_mut() {
        let folder = format!("/proc/irq/{}", irq.irq);
        if let Err(error) = read(irq, &folder) {
            failures.push((irq.irq, error));
        }
    }
    if let [(_, first), _, ..] = failures.as_slice()
        && failures.len() == irqs.len()
    {
        notes.add("irqs", fact, &format!("of none; for the first, {first}"));
        return;
    }
    for (irq, error) in failures {
        notes.add(&format!("irq {irq}"), fact, &error.to_string());
    }
}

/// A set of CPUs from its cpulist, else from its mask (kernels have had the mask for longer).
fn cpu_set(root: &Root, folder: &str, file: &str) -> Result<CpuSet, ReadError> {
    let path = format!("{folder}/{file}_list");
    let (path, set) = match root.text(&path) {
        Ok(text) => (path, CpuSet::from_list(&text)),
        Err(absent) if absent.absent => {
            let path = format!("{folder}/{file}");
            // The list's absence is the better reason when there is no mask either.
            let text = root.text(&path).map_err(|e| if e.absent { absent } else { e })?;
            (path, CpuSet::from_mask(&text))
        }
        Err(error) => return Err(error),
    };
    set.map_err(|e| ReadError { what: path, reason: e.to_string(), absent: false })
}

fn node(root: &Root, folder: &str) -> Result<NodeId, ReadError> {
    let path = format!("{folder}/node");
    let text = root.text(&path)?;
    text.parse().map_err(|_| {
        let reason = match text.as_str() {
            "-1" => "the kernel says -1".to_owned(),
            other => format!("not a node: {:?}", other.chars().take(20).collect::<String>()),
        };
        ReadError { what: path, reason, absent: false }
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
    fn masks_stand_in_for_lists() {
        let machine = machine()
            .without("/proc/irq/101/smp_affinity_list")
            .file("/proc/irq/101/smp_affinity", "00000001,0000000c\n");
        let (irqs, notes) = read_tree(&machine);
        assert_eq!(shown(irqs[1].affinity.as_ref()), "2-3,32");
        assert_eq!(notes, [""; 0]);
    }

    #[test]
    fn an_interrupt_that_has_gone_is_noted_alone() {
        let (irqs, notes) = read_tree(&machine().without("/proc/irq/102"));
        assert_eq!(irqs.len(), 3);
        assert_eq!((&irqs[2].affinity, irqs[2].node), (&None, None));
        let of =
            |fact: &str, file: &str| format!("irq 102 {fact}: /proc/irq/102/{file}: is not there");
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
    fn what_no_interrupt_has_is_noted_once() {
        let mut machine = machine().file("/proc/irq/100/smp_affinity_list", "all");
        for irq in 100..103 {
            let file = |name: &str| format!("/proc/irq/{irq}/{name}");
            machine = machine.without(&file("effective_affinity_list")).file(&file("node"), "-1\n");
        }
        let (irqs, notes) = read_tree(&machine);
        assert_eq!(irqs[0].node, None);
        assert_eq!(
            notes,
            [
                "irq 100 affinity: /proc/irq/100/smp_affinity_list: not a cpulist: \"all\"",
                "irqs effective_affinity: of none; for the first, \
                 /proc/irq/100/effective_affinity_list: is not there",
                "irqs node: of none; for the first, /proc/irq/100/node: the kernel says -1",
            ]
        );
    }

    #[test]
    fn a_table_that_is_none_is_noted() {
        let (irqs, notes) = read_tree(&machine().file("/proc/interrupts", "nothing here\n"));
        assert_eq!(irqs, []);
        assert_eq!(
            notes,
            ["host irqs: /proc/interrupts: the first line names other things than CPUs"]
        );
    }
}
