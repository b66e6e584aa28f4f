//! Queues as rows: each receive and transmit queue of a host with its interrupt, where that
//! goes, and what steers packets from it. Shown as text and as JSON.

use crate::text::irq_nodes;
use nearpath_model::{ByteLimit, CpuSet, Direction, Host, Irq, IrqNumber, Nic, NodeId, QueueId};
use serde::Serialize;

/// One queue of one NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueueRow {
    /// The NIC's name.
    pub nic: String,
    /// Node of the NIC.
    pub nic_node: Option<NodeId>,
    /// Receive or transmit.
    pub direction: Direction,
    /// The queue's number.
    pub queue: QueueId,
    /// NAPI instance that serves it.
    pub napi_id: Option<u32>,
    /// Its interrupt.
    pub irq: Option<IrqNumber>,
    /// Where the interrupt may go.
    pub affinity: Option<CpuSet>,
    /// Where the interrupt goes.
    pub effective_affinity: Option<CpuSet>,
    /// Nodes of the CPUs that the interrupt goes to; empty when unknown.
    pub irq_nodes: Vec<NodeId>,
    /// Of a receive queue: `rps_cpus`; empty means that RPS is off.
    pub rps_cpus: Option<CpuSet>,
    /// Of a receive queue: `rps_flow_cnt`; 0 means that RFS is off.
    pub rps_flow_cnt: Option<u32>,
    /// Of a transmit queue: `xps_cpus`; empty means that XPS is off.
    pub xps_cpus: Option<CpuSet>,
    /// Of a transmit queue: `xps_rxqs`.
    pub xps_rxqs: Option<Vec<QueueId>>,
    /// Of a transmit queue: its byte queue limits, if its driver uses them.
    pub byte_limit: Option<ByteLimit>,
}

/// All queues, by NIC, receive queues first, ascending.
pub fn queue_rows(host: &Host) -> Vec<QueueRow> {
    let mut rows = Vec::new();
    for nic in &host.nics {
        rows.extend(nic.rx_queues.iter().map(|queue| QueueRow {
            rps_cpus: queue.rps_cpus.clone(),
            rps_flow_cnt: queue.rps_flow_cnt,
            ..row(host, nic, Direction::Rx, queue.queue, queue.napi_id, queue.irq)
        }));
        rows.extend(nic.tx_queues.iter().map(|queue| QueueRow {
            xps_cpus: queue.xps_cpus.clone(),
            xps_rxqs: queue.xps_rxqs.clone(),
            byte_limit: queue.byte_limit,
            ..row(host, nic, Direction::Tx, queue.queue, queue.napi_id, queue.irq)
        }));
    }
    rows
}

fn row(
    host: &Host,
    nic: &Nic,
    direction: Direction,
    queue: QueueId,
    napi_id: Option<u32>,
    irq: Option<IrqNumber>,
) -> QueueRow {
    let facts: Option<&Irq> = irq.and_then(|irq| irq_facts(host, irq));
    QueueRow {
        nic: nic.name.clone(),
        nic_node: nic.numa_node,
        direction,
        queue,
        napi_id,
        irq,
        affinity: facts.and_then(|irq| irq.affinity.clone()),
        effective_affinity: facts.and_then(|irq| irq.effective_affinity.clone()),
        irq_nodes: facts.map(|irq| irq_nodes(host, irq)).unwrap_or_default(),
        rps_cpus: None,
        rps_flow_cnt: None,
        xps_cpus: None,
        xps_rxqs: None,
        byte_limit: None,
    }
}

fn irq_facts(host: &Host, irq: IrqNumber) -> Option<&Irq> {
    let position = host.irqs.binary_search_by_key(&irq, |known| known.irq).ok()?;
    host.irqs.get(position)
}
