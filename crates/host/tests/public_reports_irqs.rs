//! Which interrupt serves which queue, on machines that people have reported, and on others of the same kinds.

use nearpath_host::{Root, Wanted};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// An interface with its device.
struct Nic {
    name: &'static str,
    driver: &'static str,
    /// Below `/sys/devices`.
    device: &'static str,
    queues: u32,
    /// `msi_irqs`; without any there is no such folder.
    msi: &'static [u32],
    /// `irq`.
    line: Option<u32>,
}

const NIC: Nic = Nic {
    name: "eth0",
    driver: "",
    device: "pci0000:00/0000:00:03.0",
    queues: 2,
    msi: &[],
    line: None,
};

fn put(root: &Path, path: &str, text: impl ToString) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text.to_string() + "\n").unwrap();
}

fn link(root: &Path, path: &str, to: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    if path.symlink_metadata().is_err() {
        symlink(to, path).unwrap();
    }
}

/// `irqs` are numbers with names, or with what precedes the name in `/proc/interrupts`, too. Returns the interrupts of the first interface's queues, as `0:211/211 1:212/-`, receiving and transmitting.
fn queues(nics: &[Nic], irqs: &[(u32, &str)]) -> String {
    let tree = tempfile::tempdir().unwrap();
    let root = tree.path();
    for (index, nic) in (1..).zip(nics) {
        let device = format!("sys/devices/{}", nic.device);
        let own = format!("{device}/net/{}", nic.name);
        let up = "../".repeat(nic.device.split('/').count() + 1);
        link(root, &format!("sys/class/net/{}", nic.name), &own.replacen("sys/", "../../", 1));
        link(root, &format!("{device}/driver"), &format!("{up}bus/any/drivers/{}", nic.driver));
        link(root, &format!("{own}/device"), "../..");
        for (file, value) in [("ifindex", index), ("iflink", index), ("type", 1)] {
            put(root, &format!("{own}/{file}"), value);
        }
        for queue in 0..nic.queues {
            put(root, &format!("{own}/queues/rx-{queue}/rps_cpus"), 0);
            put(root, &format!("{own}/queues/tx-{queue}/xps_cpus"), 0);
        }
        for irq in nic.msi {
            put(root, &format!("{device}/msi_irqs/{irq}"), "msix");
        }
        if let Some(line) = nic.line {
            put(root, &format!("{device}/irq"), line);
        }
    }
    let row = |(irq, name): &(u32, &str)| match name.contains("  ") {
        true => format!("{irq:>4}:          1          0  {name}\n"),
        false => format!("{irq:>4}:          1          0  PCI-MSI 524288-edge      {name}\n"),
    };
    let rows: String = irqs.iter().map(row).collect();
    put(root, "proc/interrupts", format!("           CPU0       CPU1\n{rows}"));
    let host = nearpath_host::read(&Root::tree(root).unwrap(), &Wanted::default()).unwrap();
    let nic = host.nics.iter().find(|nic| nic.name == nics[0].name).unwrap();
    let shown = |irq: Option<nearpath_model::IrqNumber>| {
        irq.map_or_else(|| "-".to_owned(), |irq| irq.to_string())
    };
    let pairs = nic.rx_queues.iter().zip(&nic.tx_queues);
    let pairs = pairs.map(|(rx, tx)| format!("{}:{}/{}", rx.queue, shown(rx.irq), shown(tx.irq)));
    pairs.collect::<Vec<_>>().join(" ")
}

/// amzn-drivers issue 268, seastar issue 1622: under Xen since 5.17 there is no `msi_irqs`.
#[test]
fn by_the_interfaces_name_where_sysfs_lists_none() {
    let ena = Nic { driver: "ena", line: Some(0), ..NIC };
    let irqs = [
        (210, "xen-pirq -msi-x     ena-mgmnt@pci:0000:00:03.0"),
        (211, "xen-pirq -msi-x     eth0-Tx-Rx-0"),
        (212, "eth0-Tx-Rx-1"),
        (213, "eth1-Tx-Rx-0"),
    ];
    assert_eq!(queues(&[ena], &irqs), "0:211/211 1:212/212");
    // The same with names of the device.
    let mlx5 = Nic { driver: "mlx5_core", ..NIC };
    let irqs = [
        (300, "mlx5_async0@pci:0000:00:03.0"),
        (301, "mlx5_comp0@pci:0000:00:03.0"),
        (302, "mlx5_comp1@pci:0000:00:03.0"),
        (303, "mlx5_comp0@pci:0000:00:04.0"),
        (304, "mlx5_comp1@pci:0000:00:04.0"),
    ];
    assert_eq!(queues(&[mlx5], &irqs), "0:301/301 1:302/302");
}

/// xen-netfront.c `setup_netfront_split` and `setup_netfront_single`.
#[test]
fn of_xens_own_interfaces() {
    let first = || Nic { driver: "vif", device: "vif-0", ..NIC };
    let second = || Nic { driver: "vif", device: "vif-1", name: "eth1", ..NIC };
    let split = [
        (60, "xen-dyn -event     vif0-q0-tx"),
        (61, "xen-dyn -event     vif0-q0-rx"),
        (62, "vif0-q1-tx"),
        (63, "vif0-q1-rx"),
        (64, "vif1-q0"),
        (65, "vif1-q1"),
    ];
    assert_eq!(queues(&[first(), second()], &split), "0:61/60 1:63/62");
    assert_eq!(queues(&[second(), first()], &split), "0:64/64 1:65/65");
}

/// irqbalance pull 253 (TI K3).
#[test]
fn of_a_platform_device_by_its_name() {
    let cpsw = |name, queues| Nic {
        name,
        driver: "am65-cpsw-nuss",
        device: "platform/8000000.ethernet",
        queues,
        ..NIC
    };
    let irqs = [
        (49, "GPIO  24 Edge    -davinci_gpio  GPIO Key USER1"),
        (116, "MSI-INTA 1716234 Level     485c0100.dma-controller chan6"),
        (134, "MSI-INTA 1970707 Level     8000000.ethernet-tx0"),
        (135, "MSI-INTA 1970708 Level     8000000.ethernet-tx1"),
        (224, "MSI-INTA 1971731 Level     8000000.ethernet"),
        (225, "MSI-INTA 1971732 Level     18000000.ethernet-tx0"),
    ];
    assert_eq!(queues(&[cpsw("eth0", 2)], &irqs), "0:224/134 1:-/135");
    // Its second port has the same queues.
    assert_eq!(queues(&[cpsw("eth1", 1), cpsw("eth0", 1)], &irqs), "0:224/134");
    let macb = Nic { driver: "macb", device: "platform/e000b000.ethernet", ..NIC };
    let irqs = [(30, "GICv3 57 Level     eth0"), (31, "GICv3 58 Level     eth0")];
    assert_eq!(queues(&[macb], &irqs), "0:30/30 1:31/31");
}

/// irqbalance issue 47: line 255 is none, and the number of another device's MSI.
#[test]
fn a_line_that_is_not_connected_is_none() {
    let legacy = |line, queues| Nic {
        name: "eth9",
        driver: "e1000e",
        device: "pci0000:00/0000:00:16.0",
        queues,
        line: Some(line),
        ..NIC
    };
    let ixgbe = || Nic { driver: "ixgbe", msi: &[254, 255, 256], line: Some(255), ..NIC };
    let irqs = [(254, "eth0-TxRx-1"), (255, "eth0-TxRx-0"), (256, "eth0")];
    assert_eq!(queues(&[legacy(255, 1), ixgbe()], &irqs), "0:-/-");
    assert_eq!(queues(&[ixgbe(), legacy(255, 1)], &irqs), "0:255/255 1:254/254");
    // Whatever the number, it is not taken from an interface that is named.
    assert_eq!(queues(&[legacy(254, 1), ixgbe()], &irqs), "0:-/-");
    // A line that is shared with a device of another kind serves all queues.
    let shared = [(16, "IO-APIC 16-fasteoi   ehci_hcd:usb1, eth9")];
    assert_eq!(queues(&[legacy(16, 2)], &shared), "0:16/16 1:16/16");
}

/// AQtion issue 31: all vectors have the interface's name.
#[test]
fn by_the_order_of_vectors_where_their_names_are_equal() {
    let atlantic = Nic { driver: "atlantic", queues: 4, msi: &[128, 129, 130, 131, 132], ..NIC };
    let irqs = [128, 129, 130, 131, 132].map(|irq| (irq, "eth0"));
    let expected = "0:128/128 1:129/129 2:130/130 3:131/131";
    assert_eq!(queues(&[atlantic], &irqs), expected);
    // Not of a driver that is not known to do so.
    let other = Nic { driver: "nobody", queues: 4, msi: &[128, 129, 130, 131, 132], ..NIC };
    assert_eq!(queues(&[other], &irqs), "0:-/- 1:-/- 2:-/- 3:-/-");
}

#[test]
fn one_vector_for_all_queues() {
    let virtio =
        Nic { driver: "virtio_net", device: "pci0000:00/0000:00:03.0/virtio1", queues: 2, ..NIC };
    let irqs = [(24, "virtio1-config"), (25, "virtio1-virtqueues")];
    assert_eq!(queues(&[virtio], &irqs), "0:25/25 1:25/25");
    let mmio = Nic {
        driver: "virtio_net",
        device: "platform/a003e00.virtio_mmio/virtio0",
        queues: 2,
        ..NIC
    };
    let irqs = [(47, "GICv2  78 Edge      virtio0"), (48, "GICv2  79 Edge      virtio1")];
    assert_eq!(queues(&[mmio], &irqs), "0:47/47 1:47/47");
    let msi = Nic { driver: "r8169", queues: 2, msi: &[40], ..NIC };
    assert_eq!(queues(&[msi], &[(40, "eth0")]), "0:40/40 1:40/40");
    // While others have no handler, it may be that of the link.
    let down = Nic { driver: "ixgbe", queues: 2, msi: &[40, 41, 42], ..NIC };
    assert_eq!(queues(&[down], &[(42, "eth0")]), "0:-/- 1:-/-");
}

/// broadcom/tg3.c: vector 0 is the link's, with one transmit queue if there is only one.
#[test]
fn vectors_that_are_not_numbered_as_queues() {
    let tg3 = || Nic { driver: "tg3", queues: 2, msi: &[50, 51, 52], ..NIC };
    let one_tx = [(50, "eth0-tx-0"), (51, "eth0-rx-1"), (52, "eth0-rx-2")];
    assert_eq!(queues(&[tg3()], &one_tx), "0:51/50 1:52/-");
    let each = [(50, "eth0"), (51, "eth0-txrx-1"), (52, "eth0-txrx-2")];
    assert_eq!(queues(&[tg3()], &each), "0:51/51 1:52/52");
}

#[test]
fn names_of_other_drivers() {
    let nic = |driver| Nic { driver, msi: &[70, 71, 72, 73], ..NIC };
    let of = |driver, names: [&'static str; 4]| {
        queues(&[nic(driver)], &[(70, names[0]), (71, names[1]), (72, names[2]), (73, names[3])])
    };
    let separate = ["eth0_txq0", "eth0_rxq0", "eth0_txq1", "eth0_rxq1"];
    assert_eq!(of("hinic", separate), "0:71/70 1:73/72");
    let pairs = ["eth0_qp0", "eth0_qp1", "x", "y"];
    assert_eq!(of("hinic3", pairs), "0:70/70 1:71/71");
    assert_eq!(of("qlcnic", ["eth0[0]", "eth0[1]", "x", "y"]), "0:70/70 1:71/71");
    assert_eq!(of("bnx2", ["eth0-0", "eth0-1", "x", "y"]), "0:70/70 1:71/71");
    let rx = ["ionic-eth0-L0-rx0", "ionic-eth0-L0-rx1", "x", "ionic-adminq"];
    assert_eq!(of("ionic", rx), "0:70/70 1:71/71");
}

/// Two ports of one device (mlx4): a name of the other one is never taken.
#[test]
fn the_vectors_of_a_devices_other_port_are_not_taken() {
    let port = |name| Nic { name, driver: "mlx4_core", queues: 1, msi: &[80, 81, 82], ..NIC };
    let irqs = [(80, "mlx4-async@pci:0000:00:03.0"), (81, "eth1-0"), (82, "eth1-rx-0")];
    assert_eq!(queues(&[port("eth0"), port("eth1")], &irqs), "0:-/-");
    assert_eq!(queues(&[port("eth1"), port("eth0")], &irqs), "0:81/81");
    // A name from before it was renamed, which an interface of another device has now, is that of its device.
    let renamed = Nic { name: "wan0", driver: "igb", queues: 1, msi: &[90], ..NIC };
    let now = Nic { driver: "igb", device: "pci0000:00/0000:00:04.0", msi: &[91], ..NIC };
    let irqs = [(90, "eth0-TxRx-0"), (91, "eth9-TxRx-0")];
    assert_eq!(queues(&[renamed, now], &irqs), "0:90/90");
}
