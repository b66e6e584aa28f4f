//! The network functions of the PCI bus, whatever their driver: also those that a program drives itself through vfio or
//! uio, which have no interface.

use crate::{IrqNumber, NodeId, PcieLink};
use serde::{Deserialize, Serialize};

/// A PCI function of the class of network controllers (`0x02xxxx`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PciFunction {
    /// Its address: `0000:5e:00.0`.
    pub address: String,
    /// Vendor and device, as in lspci(8): `8086:10c9`.
    pub id: Option<String>,
    /// The driver; `None` if it has none.
    pub driver: Option<String>,
    /// The node of its slot.
    pub numa_node: Option<NodeId>,
    /// For a virtual function: the address of its physical function.
    pub physical_function: Option<String>,
    /// Its virtual functions, by number.
    #[serde(default)]
    pub virtual_functions: Vec<String>,
    /// How many virtual functions it can have (`sriov_totalvfs`); `None` without SR-IOV.
    pub virtual_functions_max: Option<u32>,
    /// Its IOMMU group: `/dev/vfio/GROUP`; `None` without an IOMMU.
    pub iommu_group: Option<u32>,
    /// Entries of its MSI-X table; `None` if it has none, or if the table is unknown.
    pub msix_vectors: Option<u32>,
    /// The vectors that its driver has requested, as interrupts of this machine.
    #[serde(default)]
    pub irqs: Vec<IrqNumber>,
    /// Its PCIe link; `None` for a virtual function, which has no link.
    pub link: Option<PcieLink>,
    /// Its interfaces in the network namespace that was read.
    #[serde(default)]
    pub interfaces: Vec<String>,
    /// The device files through which programs drive it: `/dev/uio0`, `/dev/vfio/12`.
    #[serde(default)]
    pub user_devices: Vec<String>,
}

impl PciFunction {
    /// Whether its driver gives it to programs: there is no interface then, and a device may write to the memory of the
    /// program (Documentation/driver-api/vfio.rst, uio-howto.rst).
    pub fn is_given_away(&self) -> bool {
        let by_driver = |driver: &String| {
            matches!(driver.as_str(), "vfio-pci" | "uio_pci_generic" | "igb_uio")
                || driver.ends_with("-vfio-pci")
        };
        self.driver.as_ref().is_some_and(by_driver) || !self.user_devices.is_empty()
    }
}
