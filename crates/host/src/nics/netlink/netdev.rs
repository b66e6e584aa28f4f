//! Queues and NAPI instances from the kernel's netdev family: one dump of each (since 6.8). Numbers are those
//! of include/uapi/linux/netdev.h.

use super::attributes::{attribute, find, u32_of, uint_of};
use super::{Connection, generic, generic_body};
use nearpath_model::{IfIndex, IrqNumber, PacketSource, QueueId, QueuePackets};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;

/// Name of the generic netlink family.
pub(crate) const FAMILY: &str = "netdev";

const QUEUE_GET: u8 = 10;
const NAPI_GET: u8 = 11;
const QSTATS_GET: u8 = 12;

const QUEUE_ID: u16 = 1;
const QUEUE_IFINDEX: u16 = 2;
const QUEUE_TYPE: u16 = 3;
const QUEUE_NAPI_ID: u16 = 4;
const QUEUE_TYPE_RX: u32 = 0;
const QUEUE_TYPE_TX: u32 = 1;

const NAPI_IFINDEX: u16 = 1;
pub(crate) const NAPI_ID: u16 = 2;
const NAPI_IRQ: u16 = 3;

/// The parameters of a NAPI instance that can be set, with their attributes, as in Documentation/netlink/specs/netdev.yaml.
/// The first three since 6.13, the last since 6.17.
pub(crate) const NAPI_PARAMETERS: [(&str, u16); 4] =
    [("defer-hard-irqs", 5), ("gro-flush-timeout", 6), ("irq-suspend-timeout", 7), ("threaded", 8)];

const QSTATS_IFINDEX: u16 = 1;
const QSTATS_QUEUE_TYPE: u16 = 2;
const QSTATS_QUEUE_ID: u16 = 3;
const QSTATS_SCOPE: u16 = 4;
const QSTATS_RX_PACKETS: u16 = 8;
const QSTATS_TX_PACKETS: u16 = 10;
const SCOPE_QUEUE: u32 = 1;

/// The parameters of a NAPI instance, by name: times in nanoseconds, numbers of polls, and 0 or 1.
pub type NapiParameters = BTreeMap<&'static str, u64>;

/// Which NAPI instance serves which queue of a NIC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct QueueNapi {
    /// NAPI id by receive queue.
    pub rx: BTreeMap<QueueId, u32>,
    /// NAPI id by transmit queue.
    pub tx: BTreeMap<QueueId, u32>,
}

/// The queues of all interfaces that are up.
///
/// # Errors
/// The error that ended the dump.
pub(crate) fn queues(
    connection: &mut Connection,
    family: u16,
) -> io::Result<BTreeMap<IfIndex, QueueNapi>> {
    let mut queues: BTreeMap<IfIndex, QueueNapi> = BTreeMap::new();
    connection.dump(family, &generic(QUEUE_GET, &[]), |payload| {
        add_queue(generic_body(payload), &mut queues);
    })?;
    Ok(queues)
}

/// The interrupts of all NAPI instances that report one, by NAPI id.
///
/// # Errors
/// The error that ended the dump.
pub(crate) fn napi_irqs(
    connection: &mut Connection,
    family: u16,
) -> io::Result<BTreeMap<u32, IrqNumber>> {
    let mut irqs = BTreeMap::new();
    connection.dump(family, &generic(NAPI_GET, &[]), |payload| {
        irqs.extend(napi_irq(generic_body(payload)));
    })?;
    Ok(irqs)
}

/// The NAPI instances of an interface with the parameters that the kernel shows, by NAPI id.
///
/// # Errors
/// The error that ended the dump; ENODEV if there is no such interface.
pub(crate) fn napi_instances(
    connection: &mut Connection,
    family: u16,
    interface: IfIndex,
) -> io::Result<BTreeMap<u32, NapiParameters>> {
    let mut instances = BTreeMap::new();
    let request = generic(NAPI_GET, &attribute(NAPI_IFINDEX, &interface.0.to_ne_bytes()));
    connection.dump(family, &request, |payload| {
        instances.extend(napi_parameters(generic_body(payload)));
    })?;
    Ok(instances)
}

/// NAPI id and parameters of an instance.
pub(crate) fn napi_parameters(body: &[u8]) -> Option<(u32, NapiParameters)> {
    let parameter =
        |(name, kind): (&'static str, u16)| Some((name, find(body, kind).and_then(uint_of)?));
    let id = find(body, NAPI_ID).and_then(u32_of)?;
    Some((id, NAPI_PARAMETERS.into_iter().filter_map(parameter).collect()))
}

/// The packets of the queues of all interfaces whose drivers support it (since 6.9).
///
/// # Errors
/// The error that ended the dump; EOPNOTSUPP if the kernel does not know the request.
pub(crate) fn queue_packets(
    connection: &mut Connection,
    family: u16,
) -> io::Result<BTreeMap<IfIndex, QueuePackets>> {
    let mut packets = BTreeMap::new();
    let request = generic(QSTATS_GET, &attribute(QSTATS_SCOPE, &SCOPE_QUEUE.to_ne_bytes()));
    connection.dump(family, &request, |payload| {
        add_packets(generic_body(payload), &mut packets);
    })?;
    Ok(packets)
}

/// Adds the packets of a queue.
pub(crate) fn add_packets(body: &[u8], packets: &mut BTreeMap<IfIndex, QueuePackets>) {
    let number = |kind| find(body, kind).and_then(u32_of);
    let count = |kind| find(body, kind).and_then(uint_of);
    let (Some(index), Some(id)) = (number(QSTATS_IFINDEX), number(QSTATS_QUEUE_ID)) else { return };
    let new =
        || QueuePackets { source: PacketSource::Netdev, rx: BTreeMap::new(), tx: BTreeMap::new() };
    let of_nic = packets.entry(IfIndex(index)).or_insert_with(new);
    match number(QSTATS_QUEUE_TYPE) {
        Some(QUEUE_TYPE_RX) => {
            of_nic.rx.extend(count(QSTATS_RX_PACKETS).map(|n| (QueueId(id), n)));
        }
        Some(QUEUE_TYPE_TX) => {
            of_nic.tx.extend(count(QSTATS_TX_PACKETS).map(|n| (QueueId(id), n)));
        }
        _ => {}
    }
}

/// Adds a queue that a NAPI instance serves.
pub(crate) fn add_queue(body: &[u8], queues: &mut BTreeMap<IfIndex, QueueNapi>) {
    let number = |kind| find(body, kind).and_then(u32_of);
    let (Some(index), Some(id)) = (number(QUEUE_IFINDEX), number(QUEUE_ID)) else { return };
    let Some(napi_id) = number(QUEUE_NAPI_ID) else { return };
    let of_nic = queues.entry(IfIndex(index)).or_default();
    match number(QUEUE_TYPE) {
        Some(QUEUE_TYPE_RX) => of_nic.rx.insert(QueueId(id), napi_id),
        Some(QUEUE_TYPE_TX) => of_nic.tx.insert(QueueId(id), napi_id),
        _ => None,
    };
}

/// NAPI id and interrupt of an instance that has one.
pub(crate) fn napi_irq(body: &[u8]) -> Option<(u32, IrqNumber)> {
    let number = |kind| find(body, kind).and_then(u32_of);
    Some((number(NAPI_ID)?, number(NAPI_IRQ).filter(|irq| *irq != 0).map(IrqNumber)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(numbers: &[(u16, u32)]) -> Vec<u8> {
        numbers.iter().flat_map(|(kind, value)| attribute(*kind, &value.to_ne_bytes())).collect()
    }

    #[test]
    fn queues_and_their_napi() {
        let mut queues = BTreeMap::new();
        for (id, kind, napi) in [(0, 0, 8193), (1, 0, 8194), (0, 1, 8193), (0, 7, 1)] {
            add_queue(&body(&[(1, id), (2, 3), (3, kind), (4, napi)]), &mut queues);
        }
        add_queue(&body(&[(1, 2), (2, 3), (3, 0)]), &mut queues); // not served by any NAPI instance
        let of_nic = &queues[&IfIndex(3)];
        assert_eq!(of_nic.rx, [(QueueId(0), 8193), (QueueId(1), 8194)].into());
        assert_eq!(of_nic.tx, [(QueueId(0), 8193)].into());
    }

    #[test]
    fn packets_of_queues_in_either_width() {
        let mut packets = BTreeMap::new();
        let large = attribute(QSTATS_RX_PACKETS, &(1u64 << 40).to_ne_bytes());
        add_packets(&[body(&[(1, 3), (2, 0), (3, 1)]), large].concat(), &mut packets);
        add_packets(&body(&[(1, 3), (2, 1), (3, 0), (10, 7)]), &mut packets);
        add_packets(&body(&[(1, 3), (2, 1), (3, 1)]), &mut packets); // does not report packets
        let of_nic = &packets[&IfIndex(3)];
        assert_eq!(of_nic.rx, [(QueueId(1), 1 << 40)].into());
        assert_eq!(of_nic.tx, [(QueueId(0), 7)].into());
    }

    #[test]
    fn parameters_of_napi_instances() {
        let large = attribute(7, &20_000_000_000u64.to_ne_bytes());
        let whole = [body(&[(1, 3), (2, 8193), (5, 100), (6, 20_000)]), large].concat();
        let (id, parameters) = napi_parameters(&whole).unwrap();
        let expected = [
            ("defer-hard-irqs", 100),
            ("gro-flush-timeout", 20_000),
            ("irq-suspend-timeout", 20_000_000_000),
        ];
        assert_eq!((id, parameters), (8193, expected.into()));
        // Before 6.13.
        let old = napi_parameters(&body(&[(1, 3), (2, 8193), (3, 77)]));
        assert_eq!(old, Some((8193, BTreeMap::new())));
        for end in 0..whole.len() {
            let _ = napi_parameters(&whole[..end]);
        }
    }

    #[test]
    fn napi_without_an_interrupt() {
        assert_eq!(napi_irq(&body(&[(1, 3), (2, 8193), (3, 77)])), Some((8193, IrqNumber(77))));
        assert_eq!(napi_irq(&body(&[(1, 3), (2, 8193)])), None);
        let whole = body(&[(1, 3), (2, 8193), (3, 77)]);
        for end in 0..whole.len() {
            assert_eq!(napi_irq(&whole[..end]), None, "cut at {end}");
        }
    }
}
