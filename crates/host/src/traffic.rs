//! What changes with the traffic alone, for those who read it each second.
//!
//! Input: a root, again and again. Output: a [`Host`] with its topology and the pages of nodes, the interfaces with their
//! queues, the interrupts, and softnet counters; all else is empty. CPUs, nodes and interfaces are read again only when
//! the kernel has announced a change of any device (`/sys/kernel/uevent_seqnum`, lib/kobject_uevent.c), when an interrupt
//! came, went or has another name, and after [`KNOWN_FOR`]: most of what a host has stays as it is for months.

use crate::topology::nodes::{NODES, counters as numastat};
use crate::{Notes, Root};
use crate::{counters, irqs, nics, topology};
use nearpath_model::{HOST_SCHEMA, Host, Irq, IrqNumber, Unknown};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long devices are as they were read, whatever is announced: a node of a device can be written without a uevent.
const KNOWN_FOR: Duration = Duration::from_secs(300);

/// The kernel's number of the last announcement. All changes of devices have one: CPUs that go offline, interfaces and
/// their queues that come, go, or get another name.
const ANNOUNCED: &str = "/sys/kernel/uevent_seqnum";

/// Reads again and again.
#[derive(Debug, Default)]
pub struct TrafficReader {
    known: Option<Known>,
}

/// What was read of devices.
#[derive(Debug)]
struct Known {
    at: Instant,
    announced: String,
    irqs: Vec<(IrqNumber, String)>,
    host: Host,
    unknown: Vec<Unknown>,
}

impl Known {
    fn holds(&self, announced: Option<&str>, irqs: &[Irq]) -> bool {
        announced == Some(&self.announced)
            && self.at.elapsed() < KNOWN_FOR
            && self.irqs.iter().map(|(irq, name)| (irq, name)).eq(irqs.iter().map(id))
    }
}

fn id(irq: &Irq) -> (&IrqNumber, &String) {
    (&irq.irq, &irq.name)
}

impl TrafficReader {
    /// The host now. Affinities are those of the queues' interrupts. What cannot be read is in [`Host::unknown`].
    pub fn read(&mut self, root: &Root) -> Host {
        let mut notes = Notes::default();
        // Before the devices: what changes while they are read is read again the next time.
        let announced = root.text(ANNOUNCED).ok();
        let (mut irqs, arch_irqs) = irqs::read_counts(root, &mut notes);
        let known = self.known.take().filter(|known| known.holds(announced.as_deref(), &irqs));
        let known = known.unwrap_or_else(|| {
            let mut of_devices = Notes::default();
            let host = Host {
                schema: HOST_SCHEMA,
                topology: topology::read(root, &mut of_devices),
                nics: nics::read(root, &irqs, &mut of_devices),
                ..Host::default()
            };
            Known {
                at: Instant::now(),
                announced: announced.clone().unwrap_or_default(),
                irqs: irqs.iter().map(|irq| (irq.irq, irq.name.clone())).collect(),
                host,
                unknown: of_devices.unknown().to_vec(),
            }
        });
        let mut host = known.host.clone();
        let queues = queue_irqs(&host);
        irqs::read_affinities(root, &mut notes, &mut irqs, |irq| queues.contains(&irq));
        (host.irqs, host.arch_irqs) = (irqs, arch_irqs);
        host.softnet = counters::softnet(root, &mut notes, &host.topology.online);
        for node in &mut host.topology.nodes {
            let path = format!("{NODES}/node{}/numastat", node.node);
            // What cannot be read is noted by whoever read the node.
            node.numastat = root.text(&path).as_deref().map(numastat).unwrap_or_default();
        }
        host.unknown = known.unknown.iter().chain(notes.unknown()).cloned().collect();
        host.unknown.sort();
        host.unknown.dedup();
        self.known = announced.is_some().then_some(known);
        host
    }
}

/// The interrupts of the queues of all interfaces.
fn queue_irqs(host: &Host) -> BTreeSet<IrqNumber> {
    let queues = |nic: &nearpath_model::Nic| -> Vec<IrqNumber> {
        let rx = nic.rx_queues.iter().filter_map(|queue| queue.irq);
        rx.chain(nic.tx_queues.iter().filter_map(|queue| queue.irq)).collect()
    };
    host.nics.iter().flat_map(queues).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Wanted;
    use nearpath_testing::trees::{Layout, Machine, Nic};
    use std::path::Path;

    fn machine() -> Machine {
        let nic = Nic::pci("eth0", "mlx5_core", "0000:5e:00.0").on_node(1).queues(3, 100);
        Machine::regular(Layout { packages: 2, cores: 2, ..Layout::default() })
            .nic(nic.queue(1, |queue| queue.affinity = vec![2, 3]))
            .file(ANNOUNCED, "7\n")
    }

    fn put(tree: &Path, path: &str, text: &str) {
        std::fs::write(tree.join(path.trim_start_matches('/')), text).unwrap();
    }

    /// The fields of both that a reading of the traffic has.
    fn same(traffic: &Host, whole: &Host) {
        assert_eq!(traffic.topology, whole.topology);
        assert_eq!(traffic.nics, whole.nics);
        assert_eq!(traffic.softnet, whole.softnet);
        let queues = queue_irqs(whole);
        assert!(!queues.is_empty());
        let of_queues = |host: &Host| -> Vec<Irq> {
            host.irqs.iter().filter(|irq| queues.contains(&irq.irq)).cloned().collect()
        };
        assert_eq!(of_queues(traffic), of_queues(whole));
    }

    #[test]
    fn each_reading_has_what_a_whole_one_has() {
        let tree = machine().write();
        let root = Root::tree(tree.path()).unwrap();
        let whole = || crate::read(&root, &Wanted::default()).unwrap();
        let mut reader = TrafficReader::default();
        same(&reader.read(&root), &whole());
        // Counters and affinities change without an announcement.
        put(tree.path(), "/sys/devices/system/node/node1/numastat", "numa_hit 4711\n");
        put(tree.path(), "/proc/irq/101/smp_affinity_list", "0\n");
        put(tree.path(), "/proc/irq/101/effective_affinity_list", "0\n");
        let table = std::fs::read_to_string(tree.path().join("proc/interrupts")).unwrap();
        let more: String =
            table.lines().map(|line| line.replacen(" 0 ", " 9 ", 1) + "\n").collect();
        put(tree.path(), "/proc/interrupts", &more);
        let second = reader.read(&root);
        same(&second, &whole());
        assert_eq!(second.topology.nodes[1].numastat["numa_hit"], 4711);
        assert_eq!(second.irqs[1].affinity.as_ref().unwrap().to_string(), "0");
    }

    #[test]
    fn devices_are_read_again_when_a_change_is_announced() {
        let tree = machine().write();
        let root = Root::tree(tree.path()).unwrap();
        let mut reader = TrafficReader::default();
        assert_eq!(reader.read(&root).topology.online.to_string(), "0-3");
        put(tree.path(), "/sys/devices/system/cpu/online", "0-2\n");
        // Not read: this is what is saved.
        assert_eq!(reader.read(&root).topology.online.to_string(), "0-3");
        put(tree.path(), ANNOUNCED, "8\n");
        assert_eq!(reader.read(&root).topology.online.to_string(), "0-2");
        // An interrupt with another name.
        put(tree.path(), "/sys/devices/system/cpu/online", "0-3\n");
        let table = std::fs::read_to_string(tree.path().join("proc/interrupts")).unwrap();
        put(tree.path(), "/proc/interrupts", &table.replace("eth0-TxRx-2", "eth1-TxRx-2"));
        assert_eq!(reader.read(&root).topology.online.to_string(), "0-3");
        // Without announcements all is read each time.
        std::fs::remove_file(tree.path().join(&ANNOUNCED[1..])).unwrap();
        reader.read(&root);
        put(tree.path(), "/sys/devices/system/cpu/online", "0-1\n");
        assert_eq!(reader.read(&root).topology.online.to_string(), "0-1");
    }
}
