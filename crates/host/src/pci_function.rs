//! A PCI function by its address, whatever driver it has: what DPDK's placement depends on.
//!
//! Input: `/sys/bus/pci/devices/ADDRESS` (drivers/pci/pci-sysfs.c). Output: a [`DpdkNic`]. The number of interrupt
//! vectors is that of the MSI-X capability in its configuration space, which needs root; without it that of the
//! vectors in use.

use crate::{ReadError, Root};
use nearpath_model::{DpdkNic, MAX_CPUS, NodeId};

/// Offset of the first capability in the configuration space (PCI Local Bus Specification 3.0, 6.7).
const CAPABILITIES: usize = 0x34;
/// The capability of MSI-X (6.8.2).
const MSI_X: u8 = 0x11;
/// Capabilities that a list of 4-byte-aligned entries in 192 bytes can have.
const MAX_CAPABILITIES: usize = 48;

/// Maximum number of functions read: a card may have 256 virtual ones.
const MAX_FUNCTIONS: usize = 4096;

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

/// Reads a function.
///
/// # Errors
/// It is no address, or there is no such function.
pub fn pci_function(root: &Root, address: &str) -> Result<DpdkNic, ReadError> {
    let path = format!("/sys/bus/pci/devices/{address}");
    if !is_pci_address(address) {
        return Err(ReadError::new(&path, "not a PCI address such as 0000:5e:00.0"));
    }
    root.list(&path)?;
    let node = root.text(&format!("{path}/numa_node")).ok();
    let node = node.and_then(|text| text.parse().ok()).filter(|node| *node < MAX_CPUS);
    let driver = root.link(&format!("{path}/driver")).ok();
    let driver = driver.and_then(|link| link.rsplit('/').next().map(str::to_owned));
    let table = root.read(&format!("{path}/config")).ok().and_then(|config| vectors(&config));
    let in_use = || {
        let entries = root.list(&format!("{path}/msi_irqs")).ok()?;
        u32::try_from(entries.len()).ok().filter(|count| *count > 0)
    };
    let vectors = table.or_else(in_use);
    Ok(DpdkNic { address: address.to_owned(), driver, node: node.map(NodeId), vectors })
}

/// The network functions of a host (class 02), by address; empty if it has no PCI.
pub fn network_functions(root: &Root) -> Vec<DpdkNic> {
    let entries = root.list("/sys/bus/pci/devices").unwrap_or_default();
    let is_network = |address: &str| {
        let class = root.text(&format!("/sys/bus/pci/devices/{address}/class"));
        class.is_ok_and(|class| class.starts_with("0x02"))
    };
    let addresses = entries.into_iter().map(|entry| entry.name);
    addresses
        .filter(|address| is_pci_address(address) && is_network(address))
        .take(MAX_FUNCTIONS)
        .filter_map(|address| pci_function(root, &address).ok())
        .collect()
}

/// Vectors of the MSI-X capability: the table's size in its message control.
fn vectors(config: &[u8]) -> Option<u32> {
    let mut at = usize::from(*config.get(CAPABILITIES)? & !3);
    for _ in 0..MAX_CAPABILITIES {
        let &[id, next, low, high] = config.get(at..at + 4)? else { return None };
        if at == 0 {
            return None;
        }
        if id == MSI_X {
            return Some(u32::from(u16::from_le_bytes([low, high]) & 0x7ff) + 1);
        }
        at = usize::from(next & !3);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_function_is_read_with_or_without_its_configuration_space() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("sys/bus/pci/devices/0000:5e:00.0");
        fs::create_dir_all(device.join("msi_irqs")).unwrap();
        fs::create_dir_all(dir.path().join("proc")).unwrap();
        for irq in ["40", "41", "42"] {
            fs::write(device.join("msi_irqs").join(irq), "msix").unwrap();
        }
        fs::write(device.join("numa_node"), "1\n").unwrap();
        std::os::unix::fs::symlink("../../drivers/vfio-pci", device.join("driver")).unwrap();
        let root = Root::tree(dir.path()).unwrap();
        let expected = DpdkNic {
            address: "0000:5e:00.0".to_owned(),
            driver: Some("vfio-pci".to_owned()),
            node: Some(NodeId(1)),
            vectors: Some(3),
        };
        assert_eq!(pci_function(&root, "0000:5e:00.0"), Ok(expected.clone()));

        let mut config = vec![0; 256];
        config[CAPABILITIES] = 0x40;
        config[0x40..0x44].copy_from_slice(&[0x01, 0x70, 0, 0]);
        config[0x70..0x74].copy_from_slice(&[MSI_X, 0, 9, 0x80]);
        fs::write(device.join("config"), &config).unwrap();
        fs::write(device.join("numa_node"), "-1\n").unwrap();
        let root = Root::tree(dir.path()).unwrap();
        let expected = DpdkNic { node: None, vectors: Some(10), ..expected };
        assert_eq!(pci_function(&root, "0000:5e:00.0"), Ok(expected));

        let missing = pci_function(&root, "0000:5e:00.1").unwrap_err();
        assert!(missing.to_string().contains("not found"), "{missing}");
        for address in ["5e:00.0", "0000:5e:00.8", "../../x", "0000:5e:00:0", "0000:5E:00.0", ""] {
            assert!(pci_function(&root, address).is_err(), "{address}");
        }
    }

    #[test]
    fn a_list_of_capabilities_without_end_ends() {
        let mut config = vec![0; 256];
        config[CAPABILITIES] = 0x40;
        config[0x40..0x42].copy_from_slice(&[0x01, 0x40]);
        assert_eq!(vectors(&config), None);
        assert_eq!(vectors(&[0; 64]), None);
        assert_eq!(vectors(&[]), None);
        config[CAPABILITIES] = 0xff;
        assert_eq!(vectors(&config[..254]), None);
    }
}
