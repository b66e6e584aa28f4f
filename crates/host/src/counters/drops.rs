//! The kernel's counters of dropped packets at one moment.
//!
//! Input: a root. Output: the counters of its network namespace (protocols, queueing disciplines, interfaces)
//! and the drops of the CPUs' backlogs, which are host-wide. What cannot be read is missing, with the reason.

use super::{named, softnet_drops};
use crate::nics::netlink::{Connection, rtnetlink};
use crate::{Notes, ReadError, Root};
use nearpath_model::{DeviceCounts, IfIndex, Unknown};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;

/// Counters of dropped packets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DropCounters {
    /// Protocol counters by name: `Udp.RcvbufErrors`, `TcpExt.ListenDrops`.
    pub protocols: BTreeMap<String, u64>,
    /// Packets dropped because a CPU's backlog was full, on all CPUs (`/proc/net/softnet_stat`).
    pub backlog: Option<u64>,
    /// Drops of the root queueing discipline of each interface.
    pub qdiscs: BTreeMap<IfIndex, QdiscDrops>,
    /// Counters of each interface.
    pub devices: Vec<DeviceCounts>,
    /// What could not be read, with the reason.
    pub unknown: Vec<Unknown>,
}

/// Packets dropped by a root queueing discipline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QdiscDrops {
    /// Its kind: `fq_codel`.
    pub kind: String,
    /// The number, including its classes.
    pub drops: u64,
}

impl DropCounters {
    /// Reads the current values.
    pub fn read(root: &Root) -> Self {
        let mut notes = Notes::default();
        let protocols = named(root, &mut notes);
        let backlog = notes.take("host", "drops of the backlog", softnet_drops(root));
        let qdiscs = notes.take("host", "drops of qdiscs", qdiscs(root)).unwrap_or_default();
        let devices = crate::read_device_counts(root);
        let devices = notes.take("host", "drops of interfaces", devices).unwrap_or_default();
        Self { protocols, backlog, qdiscs, devices, unknown: notes.unknown().to_vec() }
    }
}

fn qdiscs(root: &Root) -> Result<BTreeMap<IfIndex, QdiscDrops>, ReadError> {
    const KEY: &str = "rtnetlink/qdiscs";
    let ask =
        || -> io::Result<_> { rtnetlink::qdiscs(&mut Connection::open(libc::NETLINK_ROUTE)?) };
    let all = root.answer(KEY, || ask().map_err(|e| ReadError::new(KEY, &e.to_string())))?;
    let root_of = |qdiscs: Vec<nearpath_model::Qdisc>| {
        let root = qdiscs.into_iter().find(|qdisc| qdisc.parent == "root")?;
        Some(QdiscDrops { kind: root.kind, drops: root.drops? })
    };
    Ok(all.into_iter().filter_map(|(index, qdiscs)| Some((index, root_of(qdiscs)?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_testing::trees::{Layout, Machine};

    #[test]
    fn counters_are_read_and_missing_ones_are_reported() {
        let machine = Machine::regular(Layout { packages: 1, cores: 2, ..Layout::default() })
            .file("/proc/net/snmp", "Udp: NoPorts RcvbufErrors\nUdp: 3 4\n")
            .file("/proc/net/netstat", "TcpExt: ListenDrops\nTcpExt: 5\n")
            .file("/proc/net/dev", "a\nb\n eth0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0\n");
        let tree = machine.write();
        let counters = DropCounters::read(&Root::tree(tree.path()).unwrap());
        let of = |name: &str| counters.protocols.get(name).copied();
        assert_eq!(of("Udp.NoPorts"), Some(3));
        assert_eq!(of("TcpExt.ListenDrops"), Some(5));
        assert_eq!(counters.devices[0].rx_dropped, 4);
        assert!(counters.backlog.is_some());
        assert!(counters.unknown.iter().any(|unknown| unknown.fact.contains("qdiscs")));
        let live = DropCounters::read(&Root::live());
        assert!(live.backlog.is_some() && live.protocols.contains_key("Udp.NoPorts"), "{live:?}");
    }
}
