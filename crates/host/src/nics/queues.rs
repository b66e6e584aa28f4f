//! The queues of an interface: steering files of sysfs, then the NAPI instance and the interrupt of each queue.

use super::irq_names::{self, Lone, Serves};
use super::netlink::netdev::QueueNapi;
use super::sysfs::Device;
use crate::Root;
use nearpath_model::{ByteLimit, CpuSet, IrqNumber, QueueId, RxQueue, TxQueue};
use std::collections::{BTreeMap, BTreeSet};

/// The queues of an interface, ascending, without their NAPI instances and interrupts. `unknown` receives, once
/// per kind of file, the reason why it could not be read.
pub(super) fn read(
    root: &Root,
    dir: &str,
    mut unknown: impl FnMut(&'static str, &str),
) -> (Vec<RxQueue>, Vec<TxQueue>) {
    let dir = format!("{dir}/queues");
    let (mut rx, mut tx) = (Vec::new(), Vec::new());
    let entries = match root.list(&dir) {
        Ok(entries) => entries,
        Err(error) => {
            // A live interface without this directory has vanished.
            if !(error.absent && root.is_live()) {
                unknown("queues", &error.to_string());
            }
            return (rx, tx);
        }
    };
    let count = |prefix| entries.iter().filter(|e| number(&e.name, prefix).is_some()).count();
    let one_tx_queue = count("tx-") == 1;
    let mut files = Files { root, dir: &dir, reported: BTreeSet::new(), unknown: &mut unknown };
    for entry in &entries {
        if let Some(queue) = number(&entry.name, "rx-") {
            let rps_cpus = files.mask(&entry.name, "rps_cpus", false);
            let rps_flow_cnt = files.count(&entry.name, "rps_flow_cnt");
            rx.push(RxQueue { queue, napi_id: None, irq: None, rps_cpus, rps_flow_cnt });
        } else if let Some(queue) = number(&entry.name, "tx-") {
            // With a single queue there is nothing to select, and the kernel returns ENOENT
            // (net/core/net-sysfs.c `xps_cpus_show`).
            let xps_cpus = files.mask(&entry.name, "xps_cpus", one_tx_queue);
            // A queue mask has the format of a CPU mask. Kernels before 4.18 do not have the file.
            let xps_rxqs = files.mask(&entry.name, "xps_rxqs", true);
            let xps_rxqs = xps_rxqs.map(|queues| queues.iter().map(|q| QueueId(q.0)).collect());
            let byte_limit = files.byte_limit(&entry.name);
            tx.push(TxQueue { queue, napi_id: None, irq: None, xps_cpus, xps_rxqs, byte_limit });
        }
    }
    rx.sort_by_key(|queue| queue.queue);
    tx.sort_by_key(|queue| queue.queue);
    (rx, tx)
}

/// How often the watchdog found a transmit queue stuck, summed over queues; `None` if not reported.
pub(super) fn tx_timeouts(root: &Root, dir: &str, tx: &[TxQueue]) -> Option<u64> {
    let of_queue = |queue: &TxQueue| -> Option<u64> {
        root.text(&format!("{dir}/queues/tx-{}/tx_timeout", queue.queue)).ok()?.parse().ok()
    };
    tx.iter().filter_map(of_queue).reduce(u64::saturating_add)
}

/// The files of one interface's queues.
struct Files<'a> {
    root: &'a Root,
    /// The folder `queues`.
    dir: &'a str,
    /// The kinds of file already reported as unreadable.
    reported: BTreeSet<&'static str>,
    unknown: &'a mut dyn FnMut(&'static str, &str),
}

impl Files<'_> {
    /// A mask; `may_miss`: the kernel does not show it if there is nothing to select.
    fn mask(&mut self, queue: &str, file: &'static str, may_miss: bool) -> Option<CpuSet> {
        self.value(queue, file, may_miss, |text| CpuSet::from_mask(text).map_err(|e| e.to_string()))
    }

    fn count(&mut self, queue: &str, file: &'static str) -> Option<u32> {
        self.value(queue, file, false, |text| {
            text.parse().map_err(|_| "is not a number".to_owned())
        })
    }

    /// Byte queue limits; a limit of 0 is that of a driver that does not use them.
    fn byte_limit(&self, queue: &str) -> Option<ByteLimit> {
        let dir = format!("{}/{queue}/byte_queue_limits", self.dir);
        let bytes = |file: &str| self.root.text(&format!("{dir}/{file}")).ok()?.parse().ok();
        let limit = bytes("limit").filter(|limit| *limit > 0)?;
        Some(ByteLimit { limit, limit_max: bytes("limit_max")? })
    }

    fn value<T>(
        &mut self,
        queue: &str,
        file: &'static str,
        may_miss: bool,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let path = format!("{}/{queue}/{file}", self.dir);
        let reason = match self.root.text(&path) {
            Ok(text) => match parse(&text) {
                Ok(value) => return Some(value),
                Err(reason) => format!("{path}: {reason}"),
            },
            Err(error) if error.absent && may_miss => return None,
            Err(error) => error.to_string(),
        };
        if self.reported.insert(file) {
            (self.unknown)(file, &reason);
        }
        None
    }
}

fn number(name: &str, prefix: &str) -> Option<QueueId> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// Adds data of the netdev family: the NAPI instance of a queue, and its interrupt.
pub(super) fn enter_napi(
    rx: &mut [RxQueue],
    tx: &mut [TxQueue],
    queues: &QueueNapi,
    irqs: &BTreeMap<u32, IrqNumber>,
) {
    let irq = |napi_id: Option<u32>| irqs.get(&napi_id?).copied();
    for queue in rx {
        queue.napi_id = queues.rx.get(&queue.queue).copied();
        queue.irq = irq(queue.napi_id);
    }
    for queue in tx {
        queue.napi_id = queues.tx.get(&queue.queue).copied();
        queue.irq = irq(queue.napi_id);
    }
}

/// The interrupts of a device.
#[derive(Default)]
pub(super) struct DeviceIrqs<'a> {
    /// Those with a handler, with its name; ascending.
    pub(super) named: Vec<(IrqNumber, &'a str)>,
    lone: Lone,
}

/// The names of other interfaces, whose interrupts are not taken.
#[derive(Default)]
pub(super) struct OtherInterfaces<'a> {
    pub(super) all: Vec<&'a str>,
    /// Those of the same device.
    pub(super) of_device: Vec<&'a str>,
}

/// Whether the name of an interrupt contains one of these interfaces'.
fn is_of(interfaces: &[&str], name: &str) -> bool {
    interfaces.iter().any(|interface| irq_names::carries(name, interface))
}

/// The interrupts of an interface's device. `names` are those of all interrupts of the host.
///
/// They are those that sysfs lists; else, where it lists none (platform devices, PCI devices under Xen since 5.17), those
/// that have the interface's or the device's name; else the line of a device without MSI.
pub(super) fn device_irqs<'a>(
    root: &Root,
    interface: &str,
    device: &Device,
    names: &BTreeMap<IrqNumber, &'a str>,
    others: &OtherInterfaces<'_>,
) -> DeviceIrqs<'a> {
    let on_bus = device.on_bus();
    let named = |irq: IrqNumber| Some((irq, *names.get(&irq)?));
    let msi = root.list(&format!("{on_bus}/msi_irqs")).unwrap_or_default();
    if !msi.is_empty() {
        let mut irqs: Vec<IrqNumber> = msi.iter().filter_map(|e| e.name.parse().ok()).collect();
        irqs.sort_unstable();
        let is_only = irqs.len() == 1;
        let mut named: Vec<_> = irqs.into_iter().filter_map(named).collect();
        let lone = match named.len() {
            1 if is_only => Lone::All,
            1 => Lone::One,
            _ => Lone::Nothing,
        };
        // A name that another device's interface has now is an old one of this interface.
        named.retain(|(_, name)| !is_of(&others.of_device, name));
        return DeviceIrqs { named, lone };
    }
    let of = device.named(interface);
    let is_other = |name: &str| is_of(&others.all, name);
    let own: Vec<_> = names.iter().filter(|(_, name)| of.is_in(name) && !is_other(name)).collect();
    if !own.is_empty() {
        let lone = if own.len() == 1 { Lone::One } else { Lone::Nothing };
        return DeviceIrqs {
            named: own.into_iter().map(|(irq, name)| (*irq, *name)).collect(),
            lone,
        };
    }
    let line = root.text(&format!("{on_bus}/irq")).ok().and_then(|irq| irq.parse().ok());
    // None (0), or not connected (255; PCI Local Bus Specification 3.0, 6.2.4).
    let line = line.filter(|irq: &IrqNumber| !matches!(irq.0, 0 | 255)).and_then(named);
    let line = line.filter(|(_, name)| !is_other(name));
    DeviceIrqs { named: line.into_iter().collect(), lone: Lone::All }
}

/// Assigns interrupts to queues by the names of the device's interrupts, if NAPI instances do not report any,
/// or report that of the other direction.
pub(super) fn enter_irqs(
    interface: &str,
    device: &Device,
    irqs: &DeviceIrqs<'_>,
    rx: &mut [RxQueue],
    tx: &mut [TxQueue],
) {
    let name = |irq| irqs.named.iter().find(|(its, _)| *its == irq).map(|(_, name)| *name);
    let of = device.named(interface);
    let found = irq_names::assign(of, &irqs.named, [rx.len(), tx.len()], irqs.lone);
    let better = |serves, queue, of_napi: Option<IrqNumber>| {
        let by_name = found.get(&(serves, queue)).copied();
        // e1000e has a separate transmit interrupt, but reports one NAPI instance for both directions, with the
        // interrupt of the receive queue.
        let serves_it =
            |irq| name(irq).and_then(irq_names::parse).is_none_or(|(s, _)| s.contains(&serves));
        of_napi.filter(|irq| by_name.is_none() || serves_it(*irq)).or(by_name)
    };
    for queue in rx {
        queue.irq = better(Serves::Rx, queue.queue, queue.irq);
    }
    for queue in tx {
        queue.irq = better(Serves::Tx, queue.queue, queue.irq);
    }
}
