//! Data of one interface in sysfs, except its queues.
//!
//! Input: a name in `/sys/class/net`. Output: an [`Interface`], or `None` if it is not an interface or has
//! vanished. Fields of unreadable files are `None`.

use super::irq_names::Named;
use crate::{EntryKind, Notes, Root};
use nearpath_model::{Bond, CpuSet, IfIndex, NodeId, PcieLink};
use std::collections::BTreeMap;

/// Maximum number of parent devices searched for a NUMA node.
const MAX_ANCESTORS: usize = 8;

/// `SPEED_UNKNOWN` (include/uapi/linux/ethtool.h), as printed unsigned by some kernels.
const UNKNOWN_SPEED: u64 = u32::MAX as u64;

/// Data of an interface in sysfs.
#[derive(Debug, Default)]
pub(super) struct Interface {
    pub name: String,
    /// Its directory, `/sys/class/net/eth0`.
    pub dir: String,
    pub ifindex: Option<IfIndex>,
    /// Index of the lower device or the peer; its own if there is none. It may be an index in another
    /// namespace.
    pub iflink: Option<IfIndex>,
    pub address: Option<String>,
    pub mtu_bytes: Option<u32>,
    pub state: Option<String>,
    pub speed_mbps: Option<u64>,
    pub statistics: BTreeMap<String, u64>,
    /// Name of the device that it is a port of.
    pub master: Option<String>,
    /// Names of its lower devices.
    pub lower: Vec<String>,
    /// `gro_flush_timeout`, in nanoseconds.
    pub gro_flush_timeout_ns: Option<u64>,
    /// `napi_defer_hard_irqs`.
    pub napi_defer_hard_irqs: Option<u32>,
    /// `ARPHRD_*`.
    pub hardware_type: Option<u32>,
    /// DEVTYPE in `uevent`: `bridge`, `vlan`, `bond`.
    pub devtype: Option<String>,
    /// Whether it has `tun_flags`.
    pub tun: bool,
    /// How a bond distributes packets.
    pub bond: Option<Bond>,
    /// Whether it has a macvtap character device.
    pub macvtap: bool,
    /// The device behind it; software interfaces have none.
    pub device: Option<Device>,
}

/// The device behind an interface.
#[derive(Debug, Default)]
pub(super) struct Device {
    /// Its path, `/sys/devices/pci0000:00/0000:00:03.0/virtio2`.
    pub path: String,
    pub driver: Option<String>,
    pub bus: Option<String>,
    pub numa_node: Option<NodeId>,
    pub local_cpus: Option<CpuSet>,
    pub pcie: Option<PcieLink>,
    /// For a virtual function its physical function: the interface or the bus address.
    pub physical_function: Option<String>,
}

impl Device {
    /// Whether it is on the virtio bus. Its interrupts, node and address are those of the parent.
    pub(super) fn is_virtio(&self) -> bool {
        last(&self.path).starts_with("virtio")
    }

    /// An interface of it, as names of interrupts show it.
    pub(super) fn named<'a>(&'a self, interface: &'a str) -> Named<'a> {
        let devices = [last(&self.path), last(self.on_bus())];
        Named { interface, devices, driver: self.driver.as_deref() }
    }

    /// The device that has the interrupts and the address.
    pub(super) fn on_bus(&self) -> &str {
        if self.is_virtio() { parent(&self.path) } else { &self.path }
    }
}

/// Reads an interface; `None` if it is not one (`bonding_masters` is a file) or has vanished.
pub(super) fn read(root: &Root, name: &str, notes: &mut Notes) -> Option<Interface> {
    let dir = format!("/sys/class/net/{name}");
    let entries = root.list(&dir).ok()?;
    let has = |wanted: &str| entries.iter().any(|entry| entry.name == wanted);
    if !has("ifindex") {
        return None;
    }
    let text = |file: &str| root.text(&format!("{dir}/{file}")).ok().filter(|t| !t.is_empty());
    let index = |file: &str| text(file)?.parse().ok();
    let subject = format!("nic {name}");
    Some(Interface {
        name: name.to_owned(),
        ifindex: index("ifindex"),
        iflink: index("iflink"),
        address: text("address"),
        mtu_bytes: text("mtu").and_then(|mtu| mtu.parse().ok()),
        state: text("operstate"),
        speed_mbps: match speed(root, &dir) {
            Ok(speed) => speed,
            Err(reason) => {
                // Not applicable to a software interface.
                if has("device") {
                    notes.add(&subject, "speed_mbps", &reason);
                }
                None
            }
        },
        statistics: statistics(root, &dir),
        master: has("master")
            .then(|| root.link(&format!("{dir}/master")).ok())
            .flatten()
            .map(|to| last(&to).to_owned()),
        lower: entries
            .iter()
            .filter_map(|e| Some(e.name.strip_prefix("lower_")?.to_owned()))
            .collect(),
        gro_flush_timeout_ns: text("gro_flush_timeout").and_then(|ns| ns.parse().ok()),
        napi_defer_hard_irqs: text("napi_defer_hard_irqs").and_then(|polls| polls.parse().ok()),
        hardware_type: text("type").and_then(|t| t.parse().ok()),
        devtype: text("uevent").and_then(|uevent| {
            uevent.lines().find_map(|line| Some(line.strip_prefix("DEVTYPE=")?.to_owned()))
        }),
        tun: has("tun_flags"),
        bond: has("bonding").then(|| bond(root, &dir)).flatten(),
        macvtap: has("macvtap"),
        device: has("device").then(|| device(root, &dir, &subject, notes)).flatten(),
        dir,
    })
}

/// Speed in Mbit/s; `None` if there is no file. Otherwise the reason why it is unknown.
fn speed(root: &Root, dir: &str) -> Result<Option<u64>, String> {
    let file = format!("{dir}/speed");
    match root.text(&file) {
        Ok(text) => match text.parse() {
            // -1, its unsigned form or 0 if the driver does not know.
            Err(_) | Ok(0 | UNKNOWN_SPEED) => Err(format!("{file}: not reported by the driver")),
            Ok(speed) => Ok(Some(speed)),
        },
        Err(error) if error.absent => Ok(None),
        // EINVAL when the link is down (net/core/net-sysfs.c `speed_show`).
        Err(error) => Err(error.to_string()),
    }
}

/// `statistics/*`.
fn statistics(root: &Root, dir: &str) -> BTreeMap<String, u64> {
    let dir = format!("{dir}/statistics");
    let files = root.list(&dir).unwrap_or_default();
    let value = |name: &str| root.text(&format!("{dir}/{name}")).ok()?.parse().ok();
    files
        .into_iter()
        .filter(|entry| entry.kind == EntryKind::File)
        .filter_map(|entry| Some((value(&entry.name)?, entry.name)))
        .map(|(value, name)| (name, value))
        .collect()
}

/// The device behind an interface.
fn device(root: &Root, dir: &str, subject: &str, notes: &mut Notes) -> Option<Device> {
    let path = root.resolve(&format!("{dir}/device")).ok()?;
    let link =
        |name: &str| root.link(&format!("{path}/{name}")).ok().map(|to| last(&to).to_owned());
    let mut device = Device { driver: link("driver"), path: path.clone(), ..Device::default() };
    device.bus = Some(last(device.on_bus()).to_owned()).filter(|bus| !bus.is_empty());
    device.numa_node = numa_node(root, &path, subject, notes);
    device.local_cpus = ancestors(&path)
        .find_map(|at| root.text(&format!("{at}/local_cpulist")).ok())
        .and_then(|list| match CpuSet::from_list(&list) {
            Ok(cpus) => Some(cpus),
            Err(error) => {
                notes.add(subject, "local_cpus", &error.to_string());
                None
            }
        });
    device.pcie = super::pcie::read(root, device.on_bus());
    device.physical_function = link("physfn").map(|bus| pf_interface(root, &path).unwrap_or(bus));
    Some(device)
}

/// `bonding/mode` and `xmit_hash_policy`: `802.3ad 4`, `layer2 0`.
fn bond(root: &Root, dir: &str) -> Option<Bond> {
    let word = |file: &str| {
        let text = root.text(&format!("{dir}/bonding/{file}")).ok()?;
        Some(text.split(' ').next()?.to_owned())
    };
    Some(Bond { mode: word("mode")?, hash: word("xmit_hash_policy") })
}

/// The node of the device, or of the nearest parent device that has one: virtio devices have none
/// (drivers/virtio/virtio.c), but their PCI function has.
fn numa_node(root: &Root, path: &str, subject: &str, notes: &mut Notes) -> Option<NodeId> {
    for at in ancestors(path) {
        let file = format!("{at}/numa_node");
        match root.text(&file) {
            Ok(text) => match text.parse() {
                Ok(node) => return Some(node),
                Err(_) if text == "-1" => {
                    // NUMA_NO_NODE means that the firmware reports none; if there is only one,
                    // the device is on it.
                    let only = only_node(root);
                    if only.is_none() {
                        let reason = format!("{file}: the firmware reports -1");
                        notes.add(subject, "numa_node", &reason);
                    }
                    return only;
                }
                Err(_) => {
                    let text: String = text.chars().take(40).collect();
                    notes.add(subject, "numa_node", &format!("{file}: not a node: {text:?}"));
                    return None;
                }
            },
            Err(error) if error.absent => {}
            Err(error) => {
                notes.add(subject, "numa_node", &error.to_string());
                return None;
            }
        }
    }
    let reason = format!("{path}/numa_node: not found, nor in any parent device");
    notes.add(subject, "numa_node", &reason);
    None
}

/// The node of a host with a single node.
fn only_node(root: &Root) -> Option<NodeId> {
    let nodes = CpuSet::from_list(&root.text("/sys/devices/system/node/online").ok()?).ok()?;
    nodes.first().filter(|_| nodes.len() == 1).map(|node| NodeId(node.0))
}

/// The interface of a virtual function's physical function, if there is exactly one. A PF in
/// switchdev mode also has the representors of its functions (`pf0vf1`).
fn pf_interface(root: &Root, path: &str) -> Option<String> {
    let dir = format!("{path}/physfn/net");
    let is_representor = |name: &str| {
        let port = root.text(&format!("{dir}/{name}/phys_port_name")).unwrap_or_default();
        port.contains("vf") || port.contains("sf")
    };
    let names = root.list(&dir).ok()?.into_iter().map(|entry| entry.name);
    let mut own = names.filter(|name| !is_representor(name));
    own.next().filter(|_| own.next().is_none())
}

/// The device and its parents, nearest first.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |at| Some(parent(at)))
        .take_while(|at| at.starts_with("/sys/devices/"))
        .take(MAX_ANCESTORS)
}

/// The path without its last component.
pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// The last component of a path.
fn last(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, last)| last)
}
