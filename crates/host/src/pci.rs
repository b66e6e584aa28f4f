//! The network functions of the PCI bus: `/sys/bus/pci/devices` (drivers/pci/pci-sysfs.c, iov.c). A function that is
//! bound to vfio-pci or uio has no interface, and `/sys/class/net` does not show it.
//!
//! Input: a root. Output: the functions of class `0x02xxxx`, ascending by address.

use crate::nics::pcie;
use crate::{Notes, ReadError, Root};
use nearpath_model::{IrqNumber, NodeId, PciFunction};
use std::collections::BTreeMap;

const DEVICES: &str = "/sys/bus/pci/devices";
/// Maximum number of functions read: several times those of the largest machines (256 virtual functions of 16 ports).
const MAX_FUNCTIONS: usize = 16 << 10;
/// Maximum number of interrupts listed of a function: the entries of the largest MSI-X table.
const MAX_IRQS: usize = 2048;

/// The network functions, without the reasons of what is unknown.
pub fn read_devices(root: &Root) -> Vec<PciFunction> {
    read(root, &mut Notes::default())
}

/// Reads the network functions.
pub(crate) fn read(root: &Root, notes: &mut Notes) -> Vec<PciFunction> {
    let entries = match root.list(DEVICES) {
        Ok(entries) => entries,
        // A machine without a PCI bus.
        Err(error) if error.absent => return Vec::new(),
        Err(error) => {
            notes.add("devices", "devices", &error.to_string());
            return Vec::new();
        }
    };
    let mut addresses: Vec<String> = entries.into_iter().map(|entry| entry.name).collect();
    addresses.sort_unstable();
    if addresses.len() > MAX_FUNCTIONS {
        notes.add(
            "devices",
            "devices",
            &format!("only {MAX_FUNCTIONS} of {} read", addresses.len()),
        );
        addresses.truncate(MAX_FUNCTIONS);
    }
    addresses.into_iter().filter_map(|address| function(root, notes, address)).collect()
}

/// Whether a text is an address such as `0000:5e:00.0`, with the domain.
pub fn is_pci_address(text: &str) -> bool {
    let is_hex = |part: &str, lengths: std::ops::RangeInclusive<usize>| {
        lengths.contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    let mut parts = text.split([':', '.']);
    let (domain, bus, device, function) = (parts.next(), parts.next(), parts.next(), parts.next());
    domain.is_some_and(|part| is_hex(part, 4..=8))
        && bus.is_some_and(|part| is_hex(part, 2..=2))
        && device.is_some_and(|part| is_hex(part, 2..=2))
        && function.is_some_and(|part| matches!(part.as_bytes(), [b'0'..=b'7']))
        && parts.next().is_none()
        && text.matches('.').count() == 1
}

/// Reads the network function at an address.
///
/// # Errors
/// It is no address, there is no such function, or it is no network controller.
pub fn network_function(root: &Root, address: &str) -> Result<PciFunction, ReadError> {
    let path = format!("{DEVICES}/{address}");
    if !is_pci_address(address) {
        return Err(ReadError::new(&path, "not a PCI address such as 0000:5e:00.0"));
    }
    root.list(&path)?;
    function(root, &mut Notes::default(), address.to_owned())
        .ok_or_else(|| ReadError::new(&path, "not a network controller"))
}

/// A function; `None` if it is no network controller.
fn function(root: &Root, notes: &mut Notes, address: String) -> Option<PciFunction> {
    let link = format!("{DEVICES}/{address}");
    let class = root.text(&format!("{link}/class")).ok()?;
    class.starts_with("0x02").then_some(())?;
    let subject = format!("device {address}");
    let path = root.resolve(&link).ok()?;
    let text = |file: &str| root.text(&format!("{path}/{file}")).ok();
    let number = |file: &str| text(file)?.parse::<u32>().ok();
    let target = |file: &str| root.link(&format!("{path}/{file}")).ok().map(|to| last(&to));
    let names = |folder: &str| -> Vec<String> {
        let entries = root.list(&format!("{path}/{folder}")).unwrap_or_default();
        entries.into_iter().map(|entry| entry.name).collect()
    };
    let own = names("");
    let id = |file: &str| text(file)?.strip_prefix("0x").map(str::to_owned);
    let node = match text("numa_node").map(|text| text.parse::<i64>()) {
        Some(Ok(node)) => u32::try_from(node).ok().map(NodeId),
        _ => None,
    };
    if node.is_none() {
        let reason = format!("{path}/numa_node: the firmware reports no node");
        notes.add(&subject, "numa_node", &reason);
    }
    let iommu_group = target("iommu_group").and_then(|group| group.parse().ok());
    let driver = target("driver");
    let mut irqs: Vec<IrqNumber> =
        names("msi_irqs").iter().filter_map(|irq| irq.parse().ok().map(IrqNumber)).collect();
    irqs.sort_unstable();
    irqs.truncate(MAX_IRQS);
    let virtual_function = |name: &str| {
        let number: u32 = name.strip_prefix("virtfn")?.parse().ok()?;
        Some((number, target(name)?))
    };
    let virtual_functions: BTreeMap<u32, String> =
        own.iter().filter_map(|name| virtual_function(name)).collect();
    let config = root.read(&format!("{path}/config"));
    let mut user_devices: Vec<String> =
        names("uio").into_iter().map(|uio| format!("/dev/{uio}")).collect();
    if driver.as_deref().is_some_and(|driver| driver.ends_with("vfio-pci")) {
        user_devices.extend(iommu_group.map(|group| format!("/dev/vfio/{group}")));
    }
    // A virtio device is below its function, and its interface below that.
    let virtio =
        own.iter().filter(|name| name.starts_with("virtio")).map(|name| format!("{name}/net"));
    let mut interfaces: Vec<String> =
        std::iter::once("net".to_owned()).chain(virtio).flat_map(|folder| names(&folder)).collect();
    interfaces.sort_unstable();
    Some(PciFunction {
        id: id("vendor").zip(id("device")).map(|(vendor, device)| format!("{vendor}:{device}")),
        driver,
        numa_node: node,
        physical_function: target("physfn"),
        virtual_functions: virtual_functions.into_values().collect(),
        virtual_functions_max: number("sriov_totalvfs"),
        iommu_group,
        msix_vectors: config.ok().and_then(|config| msix_vectors(&config)),
        irqs,
        link: pcie::read(root, &path),
        interfaces,
        user_devices,
        address,
    })
}

fn last(path: &str) -> String {
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The entries of the MSI-X table of a function, from its configuration space (PCI Local Bus 3.0, 6.7 and 6.8.2; names
/// as in include/uapi/linux/pci_regs.h). `None` if it has none. The kernel shows others than root only the first 64
/// bytes.
pub fn msix_vectors(config: &[u8]) -> Option<u32> {
    const STATUS: usize = 0x06;
    const STATUS_CAP_LIST: u8 = 0x10;
    const CAPABILITY_LIST: usize = 0x34;
    const CAP_ID_MSIX: u8 = 0x11;
    /// Capabilities of at least 4 bytes in the 192 bytes after the header.
    const MAX_CAPABILITIES: usize = 48;
    let byte = |at: usize| config.get(at).copied();
    if byte(STATUS)? & STATUS_CAP_LIST == 0 {
        return None;
    }
    let mut at = usize::from(byte(CAPABILITY_LIST)? & 0xfc);
    for _ in 0..MAX_CAPABILITIES {
        if at < 0x40 {
            return None;
        }
        if byte(at)? == CAP_ID_MSIX {
            let control = u16::from_le_bytes([byte(at + 2)?, byte(at + 3)?]);
            return Some(u32::from(control & 0x07ff) + 1);
        }
        at = usize::from(byte(at + 1)? & 0xfc);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn write(file: &Path, bytes: impl AsRef<[u8]>) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, bytes).unwrap();
    }

    /// Configuration space with a power management and an MSI-X capability of ten entries.
    fn config() -> Vec<u8> {
        let mut config = vec![0; 256];
        (config[0x06], config[0x34]) = (0x10, 0x40);
        (config[0x40], config[0x41]) = (0x01, 0x70);
        (config[0x70], config[0x72]) = (0x11, 9);
        config
    }

    /// A function below a port, with its link on the bus.
    fn function_at(tree: &Path, address: &str, class: &str, files: &[(&str, &str)]) -> String {
        let path = format!("sys/devices/pci0000:80/0000:80:01.0/{address}");
        let folder = tree.join(&path);
        write(&folder.join("class"), class);
        for (file, text) in files {
            match text.strip_prefix("-> ") {
                Some(to) => symlink(to, folder.join(file)).unwrap(),
                None => write(&folder.join(file), text),
            }
        }
        let bus = tree.join("sys/bus/pci/devices");
        fs::create_dir_all(&bus).unwrap();
        symlink(format!("../../../../{path}"), bus.join(address)).unwrap();
        path
    }

    #[test]
    fn functions_are_found_whatever_their_driver() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path();
        function_at(
            tree,
            "0000:81:00.0",
            "0x020000\n",
            &[
                ("vendor", "0x8086\n"),
                ("device", "0x10c9\n"),
                ("numa_node", "1\n"),
                ("driver", "-> ../../../../bus/pci/drivers/igb"),
                ("sriov_totalvfs", "7\n"),
                ("virtfn10", "-> ../0000:82:10.2"),
                ("virtfn2", "-> ../0000:82:10.0"),
                ("net/nic1/mtu", "1500\n"),
                ("msi_irqs/41", "msix\n"),
                ("msi_irqs/40", "msix\n"),
                ("current_link_speed", "2.5 GT/s PCIe\n"),
                ("current_link_width", "1\n"),
                ("max_link_speed", "2.5 GT/s PCIe\n"),
                ("max_link_width", "4\n"),
            ],
        );
        fs::write(tree.join("sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0/config"), config())
            .unwrap();
        function_at(
            tree,
            "0000:82:10.0",
            "0x020000\n",
            &[
                ("numa_node", "-1\n"),
                ("driver", "-> ../../../../bus/pci/drivers/vfio-pci"),
                ("physfn", "-> ../0000:81:00.0"),
                ("iommu_group", "-> ../../../../kernel/iommu_groups/12"),
            ],
        );
        function_at(
            tree,
            "0000:83:00.0",
            "0x020000\n",
            &[
                ("driver", "-> ../../../../bus/pci/drivers/uio_pci_generic"),
                ("numa_node", "0\n"),
                ("uio/uio3/name", "uio_pci_generic\n"),
            ],
        );
        function_at(
            tree,
            "0000:84:00.0",
            "0x020000\n",
            &[
                ("driver", "-> ../../../../bus/pci/drivers/virtio-pci"),
                ("numa_node", "0\n"),
                ("virtio4/net/eth9/mtu", "1500\n"),
            ],
        );
        function_at(tree, "0000:85:00.0", "0x010802\n", &[]);
        let mut notes = Notes::default();
        let found = read(&Root::tree(tree).unwrap(), &mut notes);
        let addresses: Vec<&str> = found.iter().map(|device| device.address.as_str()).collect();
        assert_eq!(addresses, ["0000:81:00.0", "0000:82:10.0", "0000:83:00.0", "0000:84:00.0"]);
        let [pf, vf, uio, virtio] = &found[..] else { panic!("{found:?}") };
        assert_eq!(pf.id.as_deref(), Some("8086:10c9"));
        assert_eq!((pf.driver.as_deref(), pf.numa_node), (Some("igb"), Some(NodeId(1))));
        // By number, not by name.
        assert_eq!(pf.virtual_functions, ["0000:82:10.0", "0000:82:10.2"]);
        assert_eq!((pf.virtual_functions_max, pf.msix_vectors), (Some(7), Some(10)));
        assert_eq!(pf.irqs, [IrqNumber(40), IrqNumber(41)]);
        assert_eq!(
            pf.link.map(|link| (link.speed_mts, link.width, link.max_width)),
            Some((2500, 1, 4))
        );
        assert_eq!((&pf.interfaces[..], pf.is_given_away()), (&["nic1".to_owned()][..], false));
        assert_eq!(vf.physical_function.as_deref(), Some("0000:81:00.0"));
        assert_eq!((vf.iommu_group, vf.numa_node), (Some(12), None));
        assert_eq!(
            (&vf.user_devices[..], vf.is_given_away()),
            (&["/dev/vfio/12".to_owned()][..], true)
        );
        assert_eq!(
            (&uio.user_devices[..], uio.is_given_away()),
            (&["/dev/uio3".to_owned()][..], true)
        );
        assert_eq!(virtio.interfaces, ["eth9"]);
        let root = Root::tree(tree).unwrap();
        assert_eq!(network_function(&root, "0000:83:00.0").as_ref(), Ok(uio));
        let missing = network_function(&root, "0000:86:00.0").unwrap_err();
        assert!(missing.to_string().contains("not found"), "{missing}");
        // A disk; and what is no address.
        assert!(network_function(&root, "0000:85:00.0").is_err());
        for address in ["83:00.0", "0000:83:00.8", "../../x", "0000:83:00:0", "0000:8A:00.0", ""] {
            assert!(network_function(&root, address).is_err(), "{address}");
        }
        let unknown: Vec<&str> = notes.unknown().iter().map(|note| note.subject.as_str()).collect();
        assert_eq!(unknown, ["device 0000:82:10.0"]);
    }

    #[test]
    fn a_machine_without_pci_has_none() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("sys/class")).unwrap();
        let mut notes = Notes::default();
        assert_eq!(read(&Root::tree(dir.path()).unwrap(), &mut notes), []);
        assert!(notes.unknown().is_empty());
    }

    #[test]
    fn the_table_of_msix_is_in_the_configuration_space() {
        let good = config();
        assert_eq!(msix_vectors(&good), Some(10));
        // Without privilege, without capabilities, and in a circle.
        assert_eq!(msix_vectors(&good[..64]), None);
        let mut none = good.clone();
        none[0x06] = 0;
        assert_eq!(msix_vectors(&none), None);
        let mut circle = good;
        (circle[0x41], circle[0x70]) = (0x40, 0x05);
        assert_eq!(msix_vectors(&circle), None);
    }

    proptest! {
        #[test]
        fn any_configuration_space_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = msix_vectors(&bytes);
        }
    }
}
