//! The queues of an interface: steering files of sysfs, then the NAPI instance and the interrupt of each queue.

use super::irq_names::{self, Serves};
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
pub(super) fn device_irqs(root: &Root, device: &Device) -> Vec<IrqNumber> {
    let on_bus = device.on_bus();
    let msi = root.list(&format!("{on_bus}/msi_irqs")).unwrap_or_default();
    let mut irqs: Vec<IrqNumber> = msi.iter().filter_map(|e| e.name.parse().ok()).collect();
    if irqs.is_empty() {
        // A device without MSI has one interrupt line, or none (0).
        let line = root.text(&format!("{on_bus}/irq")).ok().and_then(|irq| irq.parse().ok());
        irqs.extend(line.filter(|irq: &IrqNumber| irq.0 != 0));
    }
    irqs
}

/// Assigns interrupts to queues by the names of the device's interrupts, if NAPI instances do not report any,
/// or report that of the other direction. `interface` is the interface's name, `names` those of all interrupts.
pub(super) fn enter_irqs(
    root: &Root,
    interface: &str,
    device: &Device,
    rx: &mut [RxQueue],
    tx: &mut [TxQueue],
    names: &BTreeMap<IrqNumber, &str>,
) {
    let irqs = device_irqs(root, device);
    let name = |irq| names.get(&irq).copied();
    let mut named: Vec<_> = irqs.iter().filter_map(|irq| Some((*irq, name(*irq)?))).collect();
    if irqs.is_empty() {
        // Platform devices show no interrupts in sysfs. No interface's name contains a colon, so
        // these names (stmmac) are unambiguous.
        let own = |name: &str| {
            name.strip_prefix(interface)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
        };
        named.extend(names.iter().filter(|(_, name)| own(name)).map(|(irq, name)| (*irq, *name)));
    }
    let driver = device.driver.as_deref();
    let found = irq_names::assign(interface, driver, &named, rx.len(), tx.len());
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
