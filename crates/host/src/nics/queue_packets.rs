//! Packets by queue: from the kernel's netdev family (`qstats`, since 6.9, for drivers that support it), else
//! from the driver's statistics (`ethtool -S`), whose names differ by driver.
//!
//! Input: a root and interfaces. Output: the packets that each queue has counted since the driver created it.
//! An interface without either is omitted.

use super::ioctl::Ioctl;
use super::netlink::{Connection, netdev};
use super::per_nic::{PerNic, words};
use crate::{ReadError, Root};
use nearpath_model::{IfIndex, PacketSource, QueueId, QueuePackets};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::io;

/// Reads the packets of the queues of these interfaces, given by index and name, and the reasons for those that
/// are unknown.
pub(crate) fn read(
    root: &Root,
    nics: &[(IfIndex, &str)],
) -> (BTreeMap<IfIndex, QueuePackets>, Vec<ReadError>) {
    let mut errors = Vec::new();
    let mut take = |error: ReadError| {
        // A kernel or a driver without one has the other, or nothing.
        if !error.absent {
            errors.push(error);
        }
    };
    let by_driver = ask(root, "ethtool/statistics", || {
        let ioctl = Ioctl::open()?;
        let mut all = PerNic::default();
        for (index, name) in nics {
            all.answered(*index, ioctl.statistics(name, |name| named(name).is_some()));
        }
        Ok(all)
    });
    let mut packets: BTreeMap<IfIndex, QueuePackets> = by_driver
        .map_err(&mut take)
        .unwrap_or_default()
        .answers
        .into_iter()
        .map(|(index, counters)| (index, of_driver(&counters)))
        .collect();
    let by_kernel = ask(root, "netdev/qstats", || {
        let mut connection = Connection::open(libc::NETLINK_GENERIC)?;
        let family = connection.family(netdev::FAMILY)?;
        netdev::queue_packets(&mut connection, family)
    });
    packets.extend(by_kernel.map_err(&mut take).unwrap_or_default());
    packets.retain(|_, of_nic| !of_nic.rx.is_empty() || !of_nic.tx.is_empty());
    (packets, errors)
}

fn ask<T: Serialize + DeserializeOwned>(
    root: &Root,
    key: &str,
    request: impl FnOnce() -> io::Result<T>,
) -> Result<T, ReadError> {
    root.answer(key, || {
        request().map_err(|error| ReadError {
            what: key.to_owned(),
            reason: words(&error),
            absent: matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EOPNOTSUPP)),
        })
    })
}

fn of_driver(counters: &BTreeMap<String, u64>) -> QueuePackets {
    let mut packets =
        QueuePackets { source: PacketSource::Driver, rx: BTreeMap::new(), tx: BTreeMap::new() };
    for (name, count) in counters {
        match named(name) {
            Some((QueueDirection::Rx, queue)) => drop(packets.rx.insert(queue, *count)),
            Some((QueueDirection::Tx, queue)) => drop(packets.tx.insert(queue, *count)),
            None => {}
        }
    }
    packets
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueDirection {
    Rx,
    Tx,
}

use QueueDirection::{Rx, Tx};

/// Prefix and suffix of the queue's number in the names of drivers' packet counters (`get_strings` in
/// drivers/net).
const NAMES: [(&str, &str, QueueDirection); 12] = [
    // igb, igc, ixgbe, ice, virtio_net before 6.9
    ("rx_queue_", "_packets", Rx),
    ("tx_queue_", "_packets", Tx),
    // mlx4, mlx5, virtio_net
    ("rx", "_packets", Rx),
    ("tx", "_packets", Tx),
    // i40e, iavf
    ("rx-", ".packets", Rx),
    ("tx-", ".packets", Tx),
    // mana
    ("rx_", "_packets", Rx),
    ("tx_", "_packets", Tx),
    // ena
    ("queue_", "_rx_cnt", Rx),
    ("queue_", "_tx_cnt", Tx),
    // gve
    ("rx_packets[", "]", Rx),
    ("tx_packets[", "]", Tx),
];

/// The queue counted by a counter with this name.
fn named(name: &str) -> Option<(QueueDirection, QueueId)> {
    NAMES.iter().find_map(|(before, behind, way)| {
        let number = name.strip_prefix(before)?.strip_suffix(behind)?;
        let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
        Some((*way, QueueId(number.parse().ok().filter(|_| digits)?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_drivers() {
        for (name, expected) in [
            ("rx_queue_0_packets", Some((Rx, 0))),
            ("tx_queue_11_packets", Some((Tx, 11))),
            ("rx3_packets", Some((Rx, 3))),
            ("tx-7.packets", Some((Tx, 7))),
            ("queue_2_rx_cnt", Some((Rx, 2))),
            ("rx_packets[5]", Some((Rx, 5))),
            ("rx_packets", None),
            ("rx_queue_0_bytes", None),
            ("rx_queue_0_xdp_packets", None),
            ("rx_queue_+1_packets", None),
            ("rx_queue_99999999999_packets", None),
            ("", None),
        ] {
            assert_eq!(named(name), expected.map(|(way, n)| (way, QueueId(n))), "{name}");
        }
    }

    #[test]
    fn driver_counters_are_assigned_to_queues() {
        let counters = [("rx_queue_0_packets", 5), ("rx_queue_1_packets", 0), ("rx_bytes", 9)];
        let counters = counters.map(|(name, count)| (name.to_owned(), count)).into();
        let packets = of_driver(&counters);
        assert_eq!(packets.rx, [(QueueId(0), 5), (QueueId(1), 0)].into());
        assert!(packets.tx.is_empty());
    }
}
