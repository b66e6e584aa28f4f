//! The queues of an interface: steering files of sysfs, then the NAPI instance and the
//! interrupt of each.

use super::irq_names::{self, Serves};
use super::netlink::netdev::QueueNapi;
use super::sysfs::Device;
use crate::{CpuSet, IrqNumber, QueueId, Root, RxQueue, TxQueue};
use std::collections::BTreeMap;

/// The queues of an interface, ascending, without their NAPI instances and interrupts.
pub(super) fn read(root: &Root, dir: &str) -> (Vec<RxQueue>, Vec<TxQueue>) {
    let dir = format!("{dir}/queues");
    let (mut rx, mut tx) = (Vec::new(), Vec::new());
    for entry in root.list(&dir).unwrap_or_default() {
        let text = |file: &str| root.text(&format!("{dir}/{}/{file}", entry.name)).ok();
        // These cannot be read on interfaces with one queue (ENOENT, `xps_cpus_show` in
        // net/core/net-sysfs.c) or in kernels without RPS or XPS: that is "not there".
        let mask = |file: &str| CpuSet::from_mask(&text(file)?).ok();
        if let Some(queue) = number(&entry.name, "rx-") {
            let rps_flow_cnt = text("rps_flow_cnt").and_then(|count| count.parse().ok());
            let rps_cpus = mask("rps_cpus");
            rx.push(RxQueue { queue, napi_id: None, irq: None, rps_cpus, rps_flow_cnt });
        } else if let Some(queue) = number(&entry.name, "tx-") {
            // A mask of queues has the form of one of CPUs.
            let xps_rxqs =
                mask("xps_rxqs").map(|queues| queues.iter().map(|q| QueueId(q.0)).collect());
            let xps_cpus = mask("xps_cpus");
            tx.push(TxQueue { queue, napi_id: None, irq: None, xps_cpus, xps_rxqs });
        }
    }
    rx.sort_by_key(|queue| queue.queue);
    tx.sort_by_key(|queue| queue.queue);
    (rx, tx)
}

fn number(name: &str, prefix: &str) -> Option<QueueId> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// Enters what the netdev family says: the NAPI instance of a queue, and that one's interrupt.
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

/// Enters the interrupts of queues that have none yet, by the names of the device's interrupts.
/// `interface` is the interface's name, `name` gives that of an interrupt.
pub(super) fn enter_irqs<'a>(
    root: &Root,
    interface: &str,
    device: &Device,
    rx: &mut [RxQueue],
    tx: &mut [TxQueue],
    name: impl Fn(IrqNumber) -> Option<&'a str>,
) {
    let known = |irq: Option<IrqNumber>| irq.is_some();
    if rx.iter().all(|q| known(q.irq)) && tx.iter().all(|q| known(q.irq)) {
        return;
    }
    let on_bus = device.on_bus();
    let msi = root.list(&format!("{on_bus}/msi_irqs")).unwrap_or_default();
    let mut irqs: Vec<IrqNumber> = msi.iter().filter_map(|e| e.name.parse().ok()).collect();
    if irqs.is_empty() {
        // A device without MSI has one interrupt line, or none, which is 0.
        let line = root.text(&format!("{on_bus}/irq")).ok().and_then(|irq| irq.parse().ok());
        irqs.extend(line.filter(|irq: &IrqNumber| irq.0 != 0));
    }
    let named: Vec<_> = irqs.iter().filter_map(|irq| Some((*irq, name(*irq)?))).collect();
    let found = irq_names::assign(interface, &named, rx.len(), tx.len());
    for queue in rx {
        queue.irq = queue.irq.or_else(|| found.get(&(Serves::Rx, queue.queue)).copied());
    }
    for queue in tx {
        queue.irq = queue.irq.or_else(|| found.get(&(Serves::Tx, queue.queue)).copied());
    }
}
