//! The network interfaces of a root's network namespace, with their queues.
//!
//! Input: a root and its interrupts by name. Output: the [`Nic`]s, by index. What sysfs has is read there
//! ([`sysfs`], [`queues`]); the rest comes from netlink and ioctl answers ([`answers`]). An interface that
//! vanishes in the meantime is omitted or partly unknown.

mod answers;
pub(crate) mod device;
pub mod fuzzing;
pub(crate) mod ioctl;
mod irq_by_name;
mod irq_names;
mod kind;
pub mod named;
pub mod napi;
pub(crate) mod netlink;
pub(crate) mod ntuple;
pub(crate) mod pcie;
mod per_nic;
pub(crate) mod queue_packets;
mod queues;
mod rss;
mod sysfs;

use crate::{EntryKind, Notes, Root, current_netns};
use answers::{Answers, fact, listed};
pub use irq_by_name::{find_irq, irq_pattern, irqs_beside_queues, locate_irq, serve_same_queue};
use nearpath_model::{IfIndex, Irq, IrqNumber, Netns, Nic, NicKind, RxQueue, TxQueue};
use queues::OtherInterfaces;
use std::collections::BTreeMap;
use sysfs::{Device, Interface};

const UNKNOWN_IRQ: &str = "neither the kernel's netdev family nor the names of the device's \
                           interrupts identify the queue";

const UNKNOWN_NAPI: &str = "not reported by the kernel's netdev family: the interface is down, \
                            or its driver does not report which NAPI instance serves a queue";

/// Reads all interfaces again. `irqs` are the root's current interrupts, as in [`nearpath_model::Counters`].
pub fn read_nics(root: &Root, irqs: &[Irq]) -> Vec<Nic> {
    read(root, irqs, &mut Notes::default())
}

/// Reads all interfaces. `irqs` are the root's interrupts, whose names identify the queues if the kernel has no
/// netdev family.
pub(crate) fn read(root: &Root, irqs: &[Irq], notes: &mut Notes) -> Vec<Nic> {
    read_again(root, irqs, notes, &[], &[])
}

/// Reads the interfaces with these names, and those that are not known; the others are as they were, if they still exist.
pub(crate) fn read_again(
    root: &Root,
    irqs: &[Irq],
    notes: &mut Notes,
    known: &[Nic],
    names: &[String],
) -> Vec<Nic> {
    let mut interfaces = Vec::new();
    let mut kept = Vec::new();
    let is_same = |nic: &&Nic, name: &str| {
        let index = || root.text(&format!("/sys/class/net/{name}/ifindex")).ok()?.parse().ok();
        nic.name == name && !names.iter().any(|its| its == name) && index() == Some(nic.ifindex.0)
    };
    let entries = notes.take("host", "nics", root.list("/sys/class/net"));
    for entry in entries.unwrap_or_default() {
        if let Some(nic) = known.iter().find(|nic| is_same(nic, &entry.name)) {
            kept.push(nic.clone());
        } else if entry.kind != EntryKind::File
            && let Some(interface) = sysfs::read(root, &entry.name, notes)
        {
            match interface.ifindex {
                Some(index) => interfaces.push((index, interface)),
                // The file existed a moment ago: the interface has vanished, or the file is not from a kernel.
                None if root.is_live() => {}
                None => notes.add(
                    &format!("nic {}", interface.name),
                    "ifindex",
                    &format!("{}/ifindex: not a number; the interface is skipped", interface.dir),
                ),
            }
        }
    }
    interfaces.sort_by_key(|(index, _)| *index);
    interfaces.dedup_by_key(|(index, _)| *index);
    let context = Context {
        root,
        names: interfaces
            .iter()
            .map(|(index, i)| (*index, i.name.clone()))
            .chain(kept.iter().map(|nic| (nic.ifindex, nic.name.clone())))
            .collect(),
        links: interfaces.iter().filter_map(|(index, i)| Some((*index, i.iflink?))).collect(),
        devices: interfaces
            .iter()
            .filter_map(|(_, i)| Some((i.name.clone(), i.device.as_ref()?.path.clone())))
            .collect(),
        irqs: irqs.iter().map(|irq| (irq.irq, irq.name.as_str())).collect(),
        netns: current_netns(root),
    };
    let mut answers = context.ask(&interfaces);
    let nics = interfaces.into_iter();
    kept.extend(nics.map(|(index, interface)| context.nic(index, interface, &mut answers, notes)));
    kept.sort_by_key(|nic| nic.ifindex);
    kept
}

/// Data that is the same for all interfaces.
struct Context<'a> {
    root: &'a Root,
    names: BTreeMap<IfIndex, String>,
    /// `iflink` by index.
    links: BTreeMap<IfIndex, IfIndex>,
    /// The path of each interface's device, by its name.
    devices: BTreeMap<String, String>,
    irqs: BTreeMap<IrqNumber, &'a str>,
    netns: Netns,
}

impl Context<'_> {
    fn ask(&self, interfaces: &[(IfIndex, Interface)]) -> Answers {
        let all: Vec<_> = interfaces.iter().map(|(index, i)| (*index, i.name.as_str())).collect();
        let has_driver = |i: &Interface| i.device.as_ref().is_some_and(|d| d.driver.is_some());
        let driverless: Vec<_> = interfaces
            .iter()
            .filter(|(_, i)| !has_driver(i))
            .map(|(index, i)| (*index, i.name.as_str()))
            .collect();
        Answers::gather(self.root, &all, &driverless)
    }

    fn nic(
        &self,
        index: IfIndex,
        mut interface: Interface,
        answers: &mut Answers,
        notes: &mut Notes,
    ) -> Nic {
        let mut unknown = Reasons::default();
        let kind = self.kind(index, &interface, answers, &mut unknown);
        let (rx_queues, tx_queues) = self.queues(index, &interface, answers, &mut unknown);
        let link = unknown.take("link, vlan", listed(&mut answers.links, index));
        // Software devices have no watchdog.
        let watched = interface.device.is_some();
        let tx_timeouts =
            watched.then(|| queues::tx_timeouts(self.root, &interface.dir, &tx_queues)).flatten();
        let mut device = interface.device.take().unwrap_or_default();
        let driver = match device.driver.take() {
            Some(driver) => Some(driver),
            None => unknown.take("driver", fact(&mut answers.drivers, index)),
        };
        let nic = Nic {
            ifindex: index,
            kind,
            driver,
            bus: device.bus,
            pcie: device.pcie,
            numa_node: device.numa_node,
            local_cpus: device.local_cpus,
            address: interface.address,
            speed_mbps: interface.speed_mbps,
            mtu_bytes: interface.mtu_bytes,
            state: interface.state,
            master: match link.as_ref().and_then(|link| link.master) {
                Some(master) => self.name(master),
                None => interface.master,
            },
            link: match &link {
                Some(link) => link.link.and_then(|lower| self.name(lower)),
                None => self.lower(index, &interface.lower),
            },
            netns: self.netns.clone(),
            physical_function: device.physical_function,
            vlan: link.as_ref().and_then(|link| link.vlan),
            vlan_egress: link.as_ref().and_then(|link| link.vlan_egress.clone()),
            xdp: link.and_then(|link| link.xdp),
            channels: unknown.take("channels", fact(&mut answers.channels, index)),
            rings: unknown.take("rings", fact(&mut answers.rings, index)),
            coalesce: unknown.take("coalesce", fact(&mut answers.coalesce, index)),
            offloads: unknown.take("offloads", fact(&mut answers.offloads, index)),
            fixed_offloads: unknown
                .take("fixed_offloads", fact(&mut answers.fixed_offloads, index)),
            rss: unknown.take("rss", fact(&mut answers.rss, index)),
            ntuple: unknown.take("ntuple", fact(&mut answers.ntuple, index)),
            rx_queues,
            tx_queues,
            // The kernel lists none for an interface that has only the built-in one.
            qdiscs: unknown.take("qdiscs", listed(&mut answers.qdiscs, index)),
            statistics: interface.statistics,
            driver_counters: unknown
                .take("driver_counters", fact(&mut answers.driver_counters, index)),
            tx_timeouts,
            gro_flush_timeout_ns: interface.gro_flush_timeout_ns,
            napi_defer_hard_irqs: interface.napi_defer_hard_irqs,
            bond: interface.bond,
            name: interface.name,
        };
        if nic.rss.as_ref().is_some_and(|rss| rss.key.is_none()) {
            unknown.add("rss.key", answers::NOT_SUPPORTED);
        }
        unknown.note(&format!("nic {}", nic.name), notes);
        nic
    }

    /// Its kind. Without rtnetlink, kinds that sysfs cannot distinguish are `Other`.
    fn kind(
        &self,
        index: IfIndex,
        interface: &Interface,
        answers: &Answers,
        unknown: &mut Reasons,
    ) -> NicKind {
        let rtnl = answers.links.as_ref().ok().and_then(|l| l.get(&index)?.kind.as_deref());
        let of_device = interface.device.as_ref().and_then(|device| device.driver.as_deref());
        let driver_name = answers.drivers.as_ref().ok().and_then(|all| all.answers.get(&index));
        let driver = of_device.or(driver_name.map(String::as_str));
        let kind = kind::kind(interface, rtnl, driver, self.peer(index).is_some());
        if let (NicKind::Other, Err(error)) = (kind, &answers.links) {
            unknown.add("kind", &error.reason);
        }
        kind
    }

    fn queues(
        &self,
        index: IfIndex,
        interface: &Interface,
        answers: &Answers,
        unknown: &mut Reasons,
    ) -> (Vec<RxQueue>, Vec<TxQueue>) {
        let (mut rx, mut tx) =
            queues::read(self.root, &interface.dir, |fact, reason| unknown.add(fact, reason));
        if let (Ok(queues), Ok(irqs)) = (&answers.queues, &answers.napi_irqs)
            && let Some(of_nic) = queues.get(&index)
        {
            queues::enter_napi(&mut rx, &mut tx, of_nic, irqs);
        }
        if let Some(device) = &interface.device {
            let others = self.other_interfaces(interface, device);
            let name = &interface.name;
            let irqs = queues::device_irqs(self.root, name, device, &self.irqs, &others);
            queues::enter_irqs(name, device, &irqs, &mut rx, &mut tx);
            let mut napi = rx.iter().map(|q| q.napi_id).chain(tx.iter().map(|q| q.napi_id));
            match &answers.queues {
                Err(error) => unknown.add("napi_id", &error.reason),
                Ok(_) if napi.any(|id| id.is_none()) => unknown.add("napi_id", UNKNOWN_NAPI),
                Ok(_) => {}
            }
            let mut irqs = rx.iter().map(|q| q.irq).chain(tx.iter().map(|q| q.irq));
            if irqs.any(|irq| irq.is_none()) {
                unknown.add("irq", UNKNOWN_IRQ);
            }
        }
        (rx, tx)
    }

    fn other_interfaces(&self, interface: &Interface, device: &Device) -> OtherInterfaces<'_> {
        let all = self.names.values().map(String::as_str).filter(|name| *name != interface.name);
        let all: Vec<&str> = all.collect();
        let is_same =
            |name: &&str| self.devices.get(*name).is_some_and(|path| *path == device.path);
        let of_device = all.iter().copied().filter(is_same).collect();
        OtherInterfaces { all, of_device }
    }

    fn name(&self, index: IfIndex) -> Option<String> {
        self.names.get(&index).cloned()
    }

    /// Without rtnetlink: the only lower device, or the peer of a veth.
    fn lower(&self, index: IfIndex, lower: &[String]) -> Option<String> {
        match lower {
            [] => self.name(self.peer(index)?),
            // The ports of a bridge or a bond are not its lower device in this sense.
            [one] if self.links.get(&index).and_then(|i| self.names.get(i)) == Some(one) => {
                Some(one.clone())
            }
            _ => None,
        }
    }

    /// The other interface, if each is the `iflink` of the other: the peer of a veth in another namespace may
    /// have the index of any interface here.
    fn peer(&self, index: IfIndex) -> Option<IfIndex> {
        let peer = *self.links.get(&index)?;
        (peer != index && self.links.get(&peer) == Some(&index)).then_some(peer)
    }
}

/// The reasons for unknown facts of one interface: one note per reason.
#[derive(Default)]
struct Reasons(BTreeMap<String, Vec<&'static str>>);

impl Reasons {
    fn add(&mut self, fact: &'static str, reason: &str) {
        self.0.entry(reason.to_owned()).or_default().push(fact);
    }

    fn take<T>(&mut self, fact: &'static str, value: Result<T, String>) -> Option<T> {
        value.map_err(|reason| self.add(fact, &reason)).ok()
    }

    fn note(self, subject: &str, notes: &mut Notes) {
        for (reason, facts) in self.0 {
            notes.add(subject, &facts.join(", "), &reason);
        }
    }
}
