//! An interface by its name, in the thread's network namespace, for code that changes it.

use super::netlink::{Connection, rtnetlink};
use super::sysfs::Device;
use crate::{ReadError, Root};
use nearpath_model::{IfIndex, Qdisc};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;

/// The index of an interface; `None` if there is none with this name.
pub fn interface_index(name: &str) -> Option<IfIndex> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends with a zero.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => None,
        index => Some(IfIndex(index)),
    }
}

/// The path in sysfs of the device behind an interface that has its bus address: `/sys/devices/…/0000:5e:10.0`. `None`
/// for software interfaces, and if there is none with this name.
pub fn interface_device(root: &Root, name: &str) -> Option<String> {
    let path = root.resolve(&format!("/sys/class/net/{name}/device")).ok()?;
    Some(Device { path, ..Device::default() }.on_bus().to_owned())
}

/// Whether such a device has an interface, in whichever network namespace: its `net` directory is there for as long as
/// one is (`cleanup_glue_dir` of drivers/base/core.c), but lists only those of the reader's.
///
/// # Errors
/// The device cannot be read.
pub fn has_interface(root: &Root, device: &str) -> Result<bool, ReadError> {
    let entries = match root.list(device) {
        Err(error) if error.absent => return Ok(false),
        entries => entries?,
    };
    for name in entries.into_iter().map(|entry| entry.name) {
        let below = name.starts_with("virtio").then(|| root.list(&format!("{device}/{name}")));
        let is_net = match below {
            Some(Err(error)) if error.absent => false,
            Some(below) => below?.iter().any(|entry| entry.name == "net"),
            None => name == "net",
        };
        if is_net {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The qdiscs of an interface, as in [`nearpath_model::Nic::qdiscs`]; `None` if there is none with this name.
///
/// # Errors
/// The kernel does not list them.
pub fn interface_qdiscs(name: &str) -> io::Result<Option<Vec<Qdisc>>> {
    let Some(index) = interface_index(name) else { return Ok(None) };
    let mut all = rtnetlink::qdiscs(&mut Connection::open(libc::NETLINK_ROUTE)?)?;
    // It may have gone meanwhile, and its qdiscs with it.
    Ok(interface_index(name).map(|_| all.remove(&index).unwrap_or_default()))
}

/// The `egress-qos-map` of a VLAN, as in [`nearpath_model::Nic::vlan_egress`]; `None` if there is no VLAN with this name.
///
/// # Errors
/// The kernel does not list the links.
pub fn interface_vlan_egress(name: &str) -> io::Result<Option<BTreeMap<u32, u8>>> {
    let Some(index) = interface_index(name) else { return Ok(None) };
    let mut all = rtnetlink::links(&mut Connection::open(libc::NETLINK_ROUTE)?)?;
    Ok(all.remove(&index).and_then(|link| link.vlan_egress))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_device_has_an_interface_in_whichever_namespace() {
        let tree = tempfile::tempdir().unwrap();
        let make = |path: &str| fs::create_dir_all(tree.path().join(path)).unwrap();
        make("sys/class/net/eth0");
        let root = Root::tree(tree.path()).unwrap();
        for (device, its, has) in [
            ("0000:5e:00.0", "net/eth0", true),
            // In another namespace, which this one does not list.
            ("0000:5e:10.0", "net", true),
            ("0000:00:03.0", "virtio2/net", true),
            // Bound to vfio-pci.
            ("0000:5e:10.2", "power", false),
            ("0000:00:04.0", "virtio3/power", false),
        ] {
            let device = format!("/sys/devices/pci0000:00/{device}");
            make(&format!("{}/{its}", &device[1..]));
            assert_eq!(has_interface(&root, &device), Ok(has), "{device}");
        }
        assert_eq!(has_interface(&root, "/sys/devices/pci0000:00/0000:5e:11.0"), Ok(false));
        // What cannot be read is unknown.
        std::os::unix::fs::symlink("loop", tree.path().join("sys/devices/loop")).unwrap();
        assert!(has_interface(&root, "/sys/devices/loop").is_err());
        let link = |to: &str| {
            let link = tree.path().join("sys/class/net/eth0/device");
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(format!("../../../devices/pci0000:00/{to}"), link).unwrap();
            interface_device(&root, "eth0")
        };
        assert_eq!(link("0000:5e:00.0").as_deref(), Some("/sys/devices/pci0000:00/0000:5e:00.0"));
        // The number of a virtio device may be another when it is plugged in again.
        let of_virtio = link("0000:00:03.0/virtio2");
        assert_eq!(of_virtio.as_deref(), Some("/sys/devices/pci0000:00/0000:00:03.0"));
        assert_eq!(interface_device(&root, "eth1"), None);
    }
}
