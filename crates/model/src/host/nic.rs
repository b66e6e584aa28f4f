//! Network interfaces, their queues and their steering settings.

use crate::{CpuSet, IfIndex, IrqNumber, NodeId, QueueId, Scheduler};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A network interface. Fields that the driver or the kernel does not support are `None`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    /// Name, `eth0`.
    pub name: String,
    /// Index within the namespace.
    pub ifindex: IfIndex,
    /// Its kind.
    pub kind: NicKind,
    /// Driver: `mlx5_core`, `veth`.
    pub driver: Option<String>,
    /// Bus address: `0000:5e:00.0`.
    pub bus: Option<String>,
    /// NUMA node of the device; absent and -1 are unknown. For virtio it is that of the parent device.
    pub numa_node: Option<NodeId>,
    /// `device/local_cpulist`.
    pub local_cpus: Option<CpuSet>,
    /// Hardware address, `52:54:00:00:00:0a`.
    pub address: Option<String>,
    /// Speed in Mbit/s.
    pub speed_mbps: Option<u64>,
    /// Maximum transmission unit in bytes.
    pub mtu_bytes: Option<u32>,
    /// `operstate`: `up`, `down`, `unknown`.
    pub state: Option<String>,
    /// The bridge, bond, OVS datapath or VRF that it is a port of.
    pub master: Option<String>,
    /// The lower device of a VLAN, macvlan or tunnel, or the peer of a veth in this namespace.
    pub link: Option<String>,
    /// The network namespace.
    pub netns: Netns,
    /// For a virtual function, the name of its physical function's interface, or its bus address.
    pub physical_function: Option<String>,
    /// VLAN id of a VLAN.
    pub vlan: Option<u16>,
    /// `egress-qos-map` of a VLAN: the VLAN priority (1 to 7) by the priority of the packet; others are sent with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan_egress: Option<BTreeMap<u32, u8>>,
    /// `ethtool -l`.
    pub channels: Option<Channels>,
    /// `ethtool -g`.
    pub rings: Option<Rings>,
    /// `ethtool -c`: by the kernel's attribute names (`rx-usecs`), booleans as 0 and 1.
    pub coalesce: Option<BTreeMap<String, u64>>,
    /// `ethtool -k`: active features by name (`rx-gro`).
    pub offloads: Option<BTreeMap<String, bool>>,
    /// Those of them that `ethtool -k` marks as fixed.
    #[serde(default)]
    pub fixed_offloads: Option<BTreeSet<String>>,
    /// `ethtool -x`.
    pub rss: Option<Rss>,
    /// `ethtool -n`: n-tuple rules.
    pub ntuple: Option<Vec<NtupleRule>>,
    /// Receive queues, ascending.
    pub rx_queues: Vec<RxQueue>,
    /// Transmit queues, ascending.
    pub tx_queues: Vec<TxQueue>,
    /// Queueing disciplines, root first.
    pub qdiscs: Option<Vec<Qdisc>>,
    /// `statistics/*`: rx_packets, rx_dropped, …
    pub statistics: BTreeMap<String, u64>,
    /// `ethtool -S`: the counters of loss and flow control ([`crate::counter_kind`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_counters: Option<BTreeMap<String, u64>>,
    /// Its PCIe link; `None` for a device on another bus, and for a virtual function, which has no link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieLink>,
    /// How often the watchdog found a transmit queue stuck (`queues/tx-*/tx_timeout`), summed over queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx_timeouts: Option<u64>,
    /// `gro_flush_timeout`: how long received packets are held at most, in nanoseconds; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gro_flush_timeout_ns: Option<u64>,
    /// `napi_defer_hard_irqs`: so many empty polls pass before interrupts are enabled again; `None` before 5.8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub napi_defer_hard_irqs: Option<u32>,
    /// How a bond distributes packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bond: Option<Bond>,
    /// Where an XDP program runs; `None` without one, and where links are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xdp: Option<XdpMode>,
}

/// Where an XDP program of an interface runs (`XDP_ATTACHED_*` of include/uapi/linux/if_link.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XdpMode {
    /// In the driver, before there is an sk_buff.
    Native,
    /// In the stack, for drivers without support, or as requested.
    Generic,
    /// In the NIC.
    Offloaded,
    /// Several programs.
    Several,
}

/// A PCIe link as it runs and as it could (`current_link_speed`, `max_link_speed`, …).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// In MT/s: 8000 for `8.0 GT/s PCIe`.
    pub speed_mts: u32,
    /// Lanes.
    pub width: u32,
    /// The maximum supported by both the device and its upstream port, as far as known.
    pub max_speed_mts: u32,
    /// Likewise.
    pub max_width: u32,
}

/// How a bond spreads packets (Documentation/networking/bonding.rst).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bond {
    /// `802.3ad`, `active-backup`.
    pub mode: String,
    /// `layer2`, `layer3+4`.
    pub hash: Option<String>,
}

/// Kind of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NicKind {
    /// A device on a bus, other than those below.
    Physical,
    /// A virtual function of an SR-IOV device.
    Vf,
    /// virtio-net.
    Virtio,
    /// One end of a veth pair.
    Veth,
    /// tun or tap.
    Tap,
    /// macvtap.
    Macvtap,
    /// macvlan or ipvlan.
    Macvlan,
    /// Linux bridge.
    Bridge,
    /// Bond or team.
    Bond,
    /// 802.1Q or 802.1ad.
    Vlan,
    /// OVS internal port, or the datapath's own device (`ovs-system`).
    OvsInternal,
    /// VXLAN, Geneve, GRE, IP-in-IP, WireGuard.
    Tunnel,
    /// Loopback.
    Loopback,
    /// dummy, ifb, vrf and other software devices.
    Other,
}

/// A network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Netns {
    /// Its name in `/run/netns`, if it has one.
    pub name: Option<String>,
    /// Inode of the namespace (`net:[4026531840]`), which identifies it.
    pub inode: Option<u64>,
}

/// Numbers of channels: current and maximum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channels {
    /// Receive-only channels.
    pub rx: Option<u32>,
    /// Transmit-only channels.
    pub tx: Option<u32>,
    /// Channels for other uses.
    pub other: Option<u32>,
    /// Channels that receive and transmit.
    pub combined: Option<u32>,
    /// Most receive-only channels.
    pub rx_max: Option<u32>,
    /// Most transmit-only channels.
    pub tx_max: Option<u32>,
    /// Most channels for other uses.
    pub other_max: Option<u32>,
    /// Most combined channels.
    pub combined_max: Option<u32>,
}

/// Ring sizes in descriptors: current and maximum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rings {
    /// Receive ring.
    pub rx: Option<u32>,
    /// Transmit ring.
    pub tx: Option<u32>,
    /// Largest receive ring.
    pub rx_max: Option<u32>,
    /// Largest transmit ring.
    pub tx_max: Option<u32>,
}

/// Receive-side scaling.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rss {
    /// The indirection table: the receive queue of each hash bucket.
    pub indirection: Vec<QueueId>,
    /// The hash key, as `6d:5a:…`.
    pub key: Option<String>,
    /// The hash function: `toeplitz`, `xor`, `crc32`.
    pub function: Option<String>,
}

/// An n-tuple rule, as reported by the driver.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NtupleRule {
    /// Location in the NIC's table.
    pub location: u32,
    /// Flow type as named by ethtool: `tcp4`, `ether`.
    pub flow_type: String,
    /// Matched fields, as named by ethtool (`dst-port`), as `value` or `value/mask`.
    pub matches: BTreeMap<String, String>,
    /// The queue that packets go to; `None` drops them.
    pub queue: Option<QueueId>,
}

/// A receive queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RxQueue {
    /// Its number.
    pub queue: QueueId,
    /// NAPI id that serves it (netdev netlink family, since 6.8).
    pub napi_id: Option<u32>,
    /// Its interrupt.
    pub irq: Option<IrqNumber>,
    /// `rps_cpus`; empty means that RPS is off.
    pub rps_cpus: Option<CpuSet>,
    /// `rps_flow_cnt`; 0 means that RFS is off.
    pub rps_flow_cnt: Option<u32>,
}

/// A transmit queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TxQueue {
    /// Its number.
    pub queue: QueueId,
    /// NAPI id that serves its completions.
    pub napi_id: Option<u32>,
    /// The interrupt of its completions.
    pub irq: Option<IrqNumber>,
    /// `xps_cpus`; empty means that XPS is off.
    pub xps_cpus: Option<CpuSet>,
    /// `xps_rxqs`, as queue numbers.
    pub xps_rxqs: Option<Vec<QueueId>>,
    /// Byte queue limits; `None` if the driver does not use them, or nothing was sent yet.
    #[serde(default)]
    pub byte_limit: Option<ByteLimit>,
}

/// Byte queue limits of a transmit queue: how many bytes its driver and device hold at a time. The kernel adapts the
/// limit so that the device just never runs dry (lib/dynamic_queue_limits.c,
/// Documentation/ABI/testing/sysfs-class-net-queues).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteLimit {
    /// `limit`: at present, in bytes.
    pub limit: u64,
    /// `limit_max`: what it may grow to, in bytes.
    pub limit_max: u64,
}

impl ByteLimit {
    /// The time in which a link with this many Mb/s sends the limit, in ns; longest for a link without a speed.
    pub fn sent_in_ns(&self, mbps: u64) -> u64 {
        self.limit.saturating_mul(8_000).checked_div(mbps).unwrap_or(u64::MAX)
    }
}

/// A queueing discipline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qdisc {
    /// Kind: `fq_codel`, `mq`.
    pub kind: String,
    /// Handle, `8001:0` in `tc`'s hexadecimal form.
    pub handle: String,
    /// Parent: `root`, `ingress` or `8001:1`.
    pub parent: String,
    /// Packets dropped.
    pub drops: Option<u64>,
    /// How often it had to wait; of ETF, the dropped packets whose time had passed (net/sched/sch_etf.c).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlimits: Option<u64>,
    /// Packets now queued.
    pub backlog_packets: Option<u32>,
    /// Its settings, if it is one that schedules transmission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<Scheduler>,
}
