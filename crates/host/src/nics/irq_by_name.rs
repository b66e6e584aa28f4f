//! Finds an interrupt by its interface and its handler's name, because each boot and each load of a driver
//! assigns new numbers.
//!
//! Input: a [`NicIrq`]. Output: its current number. Only the interrupts of the interface's device are searched.
//! The part of the name before the queue's number may have changed (`virtio2-input.0` becomes `virtio3-input.0`
//! if another device was found first), so if no name is equal, the remaining part is compared.

use super::irq_names;
use super::queues::{self, OtherInterfaces};
use super::sysfs::Device;
use crate::{Root, parse};
use nearpath_model::{Host, Irq, IrqNumber, NicIrq};

/// The part of the name that identifies the queue, as a pattern of fnmatch(3): `*-TxRx-3`, `*-input.3`,
/// `mlx5_comp3@*`. `None` if no part does.
pub fn irq_pattern(irq: &NicIrq) -> Option<String> {
    let (name, device) = match irq.name.split_once('@') {
        Some((name, _)) => (name, "@*"),
        None => (irq.name.as_str(), ""),
    };
    let start = irq_names::ending(name)?;
    let (before, ending) = name.split_at_checked(start)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    // The separator before it is kept: `*-rx-0` does not match `eth0-txrx-0`.
    let separator: String = before.chars().last().into_iter().collect();
    let any = if before.is_empty() { "" } else { "*" };
    let whole = format!("{separator}{ending}");
    whole.chars().all(plain).then(|| format!("{any}{whole}{device}"))
}

/// Its current number and name on this machine. Where the interface may have another name now, or be in another network
/// namespace, its device is given, as in [`super::named::interface_device`].
pub fn locate_irq(root: &Root, irq: &NicIrq, device: Option<&str>) -> Option<(IrqNumber, NicIrq)> {
    let table = root.read(crate::irqs::TABLE).ok()?;
    let irqs = parse::parse_interrupts(&table).ok()?.irqs;
    let number = match device {
        Some(device) => find_irq_of(root, device, irq, &irqs),
        None => find_irq(root, irq, &irqs),
    }?;
    let name = irqs.into_iter().find(|its| its.irq == number)?.name;
    Some((number, NicIrq { nic: irq.nic.clone(), name }))
}

/// The interrupt with this name among those of a host. `None` if there is none, or several candidates.
pub fn find_irq(root: &Root, nic_irq: &NicIrq, irqs: &[Irq]) -> Option<IrqNumber> {
    let path = root.resolve(&format!("/sys/class/net/{}/device", nic_irq.nic)).ok()?;
    find_irq_of(root, &path, nic_irq, irqs)
}

fn find_irq_of(root: &Root, device: &str, nic_irq: &NicIrq, irqs: &[Irq]) -> Option<IrqNumber> {
    let its = irqs_of(root, &nic_irq.nic, device, irqs);
    let mut same = its.iter().filter(|irq| irq.name == nic_irq.name);
    if let Some(first) = same.next() {
        return same.next().is_none().then_some(first.irq);
    }
    let serves = irq_names::parse(&nic_irq.name)?;
    let mut alike = its.iter().filter(|irq| irq_names::parse(&irq.name) == Some(serves));
    alike.next().filter(|_| alike.next().is_none()).map(|irq| irq.irq)
}

/// The interrupts of an interface's device.
fn irqs_of<'a>(root: &Root, interface: &str, device: &str, irqs: &'a [Irq]) -> Vec<&'a Irq> {
    let device = Device { path: device.to_owned(), ..Device::default() };
    let names = irqs.iter().map(|irq| (irq.irq, irq.name.as_str())).collect();
    let its = queues::device_irqs(root, interface, &device, &names, &OtherInterfaces::default());
    irqs.iter().filter(|irq| its.named.iter().any(|(number, _)| *number == irq.irq)).collect()
}

/// Whether two names are of interrupts of the same queue, whatever the interface or the device is called in them.
pub fn serve_same_queue(one: &str, other: &str) -> bool {
    irq_names::parse(one).is_some_and(|queue| irq_names::parse(other) == Some(queue))
}

/// The interrupts of an interface's device that belong to no queue and have one handler, such as link or error
/// interrupts.
pub fn irqs_beside_queues<'a>(root: &Root, host: &'a Host, nic: &str) -> Vec<&'a Irq> {
    let Some(nic) = host.nics.iter().find(|its| its.name == nic) else { return Vec::new() };
    let path = root.resolve(&format!("/sys/class/net/{}/device", nic.name));
    let Ok(path) = path else { return Vec::new() };
    let rx = nic.rx_queues.iter().filter_map(|queue| queue.irq);
    let of_queues: Vec<IrqNumber> =
        rx.chain(nic.tx_queues.iter().filter_map(|queue| queue.irq)).collect();
    let its = |irq: &&Irq| {
        !of_queues.contains(&irq.irq) && !irq.name.is_empty() && !irq.name.contains([',', ' '])
    };
    irqs_of(root, &nic.name, &path, &host.irqs).into_iter().filter(its).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Wanted;
    use nearpath_testing::trees::{self, Layout, Machine};

    fn irq(nic: &str, name: &str) -> NicIrq {
        NicIrq { nic: nic.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn the_part_that_identifies_the_queue_is_the_pattern() {
        for (name, pattern) in [
            ("eth0-TxRx-3", Some("*-TxRx-3")),
            ("ens5-Tx-Rx-7", Some("*-Tx-Rx-7")),
            ("virtio2-input.10", Some("*-input.10")),
            ("mlx5_comp3@pci:0000:5e:00.0", Some("mlx5_comp3@*")),
            ("hns3-0000:7d:00.0-TxRx-3", Some("*-TxRx-3")),
            ("eth0", None),
            ("virtio2-config", None),
        ] {
            assert_eq!(irq_pattern(&irq("eth0", name)).as_deref(), pattern, "{name}");
        }
    }

    #[test]
    fn the_queue_of_a_name_is_compared() {
        assert!(serve_same_queue("eth0-TxRx-3", "wan0-TxRx-3"));
        assert!(!serve_same_queue("eth0-TxRx-3", "eth0-TxRx-4"));
        assert!(!serve_same_queue("eth0-TxRx-3", "eth0-rx-3"));
        assert!(!serve_same_queue("eth0", "eth0"), "of no queue");
    }

    #[test]
    fn it_is_found_by_its_device_with_any_number() {
        let layout = Layout { packages: 1, nodes: 1, llcs: 1, cores: 2, threads: 1 };
        let nic = |name, bus, first| trees::Nic::pci(name, "igb", bus).queues(2, first);
        let machine = Machine::regular(layout).nic(nic("eth0", "0000:5e:00.0", 100)).nic(nic(
            "eth1",
            "0000:5f:00.0",
            200,
        ));
        let tree = machine.write();
        let root = Root::tree(tree.path()).unwrap();
        let host = crate::read(&root, &Wanted::default()).unwrap();
        let found =
            |nic: &str, name: &str| find_irq(&root, &irq(nic, name), &host.irqs).map(|n| n.0);
        assert_eq!(found("eth0", "eth0-TxRx-1"), Some(101));
        // Named in another boot.
        assert_eq!(found("eth1", "eth7-TxRx-1"), Some(201));
        assert_eq!(found("eth1", "eth1-TxRx-2"), None);
        assert_eq!(found("eth1", "eth1-rx-1"), None, "it served both directions");
        assert_eq!(found("eth2", "eth2-TxRx-0"), None);
        // By its device, whatever the interface is called now, and whatever is called so now.
        let device = crate::interface_device(&root, "eth0");
        for nic in ["eth0", "eth1", "wan0"] {
            let its = irq(nic, "eth0-TxRx-1");
            let located = locate_irq(&root, &its, device.as_deref());
            assert_eq!(located, Some((IrqNumber(101), irq(nic, "eth0-TxRx-1"))), "{nic}");
        }
        let name = |number| host.name_of_irq(IrqNumber(number));
        assert_eq!(name(101), Some(irq("eth0", "eth0-TxRx-1")));
        assert_eq!(name(7), None);
    }
}
