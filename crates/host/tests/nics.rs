//! Interfaces of other machines: trees as shown by their kernels, with answers recorded from netlink and ioctl,
//! and without.

use nearpath_host::{Root, Wanted};
use nearpath_model::{IrqNumber, Nic, NicKind, NodeId, QueueId};
use nearpath_testing::trees::{Layout, Machine, Nic as TreeNic, Tree};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;

const ANSWERS: &str = include_str!("fixtures/nics/answers.json");
const ETH0: &str = include_str!("fixtures/nics/eth0.json");

/// Two packages of two cores, each a node.
fn two_nodes() -> Machine {
    Machine::regular(Layout { packages: 2, cores: 2, ..Layout::default() })
}

/// Two nodes, a NIC on the second, its virtual function, and software interfaces stacked on it.
fn host_of_vms() -> Tree {
    let software = |name: &str, index| TreeNic { ifindex: Some(index), ..TreeNic::software(name) };
    let eth0 = TreeNic {
        speed: Some(100_000),
        address: "04:3f:72:00:00:01".to_owned(),
        ..TreeNic::pci("eth0", "mlx5_core", "0000:5e:00.0")
    };
    let tree = two_nodes()
        .nic(eth0.on_node(1).queues(2, 100).queue(1, |queue| {
            queue.rps_cpus = vec![2, 3];
            queue.rps_flow_cnt = 4096;
            queue.xps_cpus = vec![3];
        }))
        .nic(TreeNic::pci("eth0v0", "mlx5_core", "0000:5e:00.2").on_node(1).queues(1, 200))
        .nic(software("tap0", 3))
        .nic(software("macvtap0", 4))
        .nic(software("eth0.100", 5))
        .nic(software("br-int", 6))
        .nic(software("ovs-system", 7))
        .file("/sys/class/net/bonding_masters", "\n")
        .file("/sys/devices/virtual/net/tap0/tun_flags", "0x1002\n")
        .file("/sys/devices/virtual/net/macvtap0/macvtap/tap4/dev", "240:4\n")
        .file("/sys/devices/virtual/net/eth0.100/uevent", "DEVTYPE=vlan\nINTERFACE=eth0.100\n")
        .write();
    let pci = "/sys/devices/pci0000:5e";
    link(&tree, &format!("{pci}/0000:5e:00.2/physfn"), "../0000:5e:00.0");
    link(&tree, &format!("{pci}/0000:5e:00.0/virtfn0"), "../0000:5e:00.2");
    link(&tree, "/sys/devices/virtual/net/tap0/master", "../ovs-system");
    link(&tree, "/sys/devices/virtual/net/macvtap0/lower_eth0", &format!("../../..{}", &pci[12..]));
    put(&tree, "/sys/devices/virtual/net/macvtap0/iflink", "1\n");
    tree
}

fn put(tree: &Tree, path: &str, content: &str) {
    let path = tree.path().join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn link(tree: &Tree, path: &str, target: &str) {
    let path = tree.path().join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(target, path).unwrap();
}

/// Saves answers by key at the path used in snapshots.
fn answer(tree: &Tree, answers: &str) {
    for (key, answer) in serde_json::from_str::<BTreeMap<String, Value>>(answers).unwrap() {
        let file = format!("/nearpath/answers/{}.json", key.replace('/', "%2F"));
        put(tree, &file, &json!({ "given": answer }).to_string());
    }
}

fn read(tree: &Tree) -> (BTreeMap<String, Nic>, Vec<String>) {
    let root = Root::tree(tree.path()).unwrap();
    let host = nearpath_host::read(&root, &Wanted::default()).unwrap();
    let unknown = host.unknown.iter().filter(|unknown| unknown.subject.starts_with("nic "));
    let unknown = unknown.map(|u| format!("{}: {}: {}", u.subject, u.fact, u.reason)).collect();
    (host.nics.into_iter().map(|nic| (nic.name.clone(), nic)).collect(), unknown)
}

#[test]
fn a_physical_nic_with_all_answers() {
    let tree = host_of_vms();
    answer(&tree, ANSWERS);
    let (nics, unknown) = read(&tree);
    let text = serde_json::to_string_pretty(&nics["eth0"]).unwrap();
    assert_eq!(text, ETH0.trim(), "fixtures/nics/eth0.json");
    assert_eq!(unknown.iter().filter(|u| u.starts_with("nic eth0:")).count(), 0, "{unknown:?}");
    assert!(
        unknown.contains(&"nic eth0v0: coalesce: input/output error".to_owned()),
        "{unknown:?}"
    );
}

#[test]
fn interfaces_by_rtnetlink_kind() {
    let tree = host_of_vms();
    answer(&tree, ANSWERS);
    let (nics, _) = read(&tree);
    for (name, kind, link, master) in [
        ("eth0", NicKind::Physical, None, Some("ovs-system")),
        ("eth0v0", NicKind::Vf, None, None),
        ("tap0", NicKind::Tap, None, Some("ovs-system")),
        ("macvtap0", NicKind::Macvtap, Some("eth0"), None),
        ("eth0.100", NicKind::Vlan, Some("eth0"), None),
        ("br-int", NicKind::OvsInternal, None, None),
        ("ovs-system", NicKind::OvsInternal, None, None),
    ] {
        let nic = &nics[name];
        assert_eq!(
            (nic.kind, nic.link.as_deref(), nic.master.as_deref()),
            (kind, link, master),
            "{name}"
        );
    }
    assert_eq!(nics.len(), 7, "bonding_masters is not an interface");
    assert_eq!(nics["eth0.100"].vlan, Some(100));
    assert_eq!(nics["eth0v0"].physical_function.as_deref(), Some("eth0"));
    assert_eq!(nics["br-int"].driver.as_deref(), Some("openvswitch"));
}

/// As answered by igb on Linux 6.12: a table without a key, and queues without NAPI instances.
#[test]
fn fields_missing_in_an_answer_have_a_reason() {
    let tree = host_of_vms();
    let rss = json!({ "indirection": [0, 0], "key": null, "function": "toeplitz" });
    let answers = json!({ "ethtool/rss": { "answers": { "2": rss } }, "netdev/queues": {}, "netdev/napi-irqs": {} });
    answer(&tree, ANSWERS);
    answer(&tree, &answers.to_string());
    let (nics, unknown) = read(&tree);
    let vf = &nics["eth0v0"];
    assert_eq!(vf.rss.as_ref().map(|rss| (rss.indirection.len(), &rss.key)), Some((2, &None)));
    assert_eq!((vf.rx_queues[0].napi_id, vf.tx_queues[0].napi_id), (None, None));
    for reason in [
        "nic eth0v0: channels, rings, offloads, fixed_offloads, ntuple, driver_counters, rss.key: not supported by the driver",
        "nic eth0v0: napi_id: not reported by the kernel's netdev family",
    ] {
        assert_eq!(unknown.iter().filter(|u| u.starts_with(reason)).count(), 1, "{unknown:?}");
    }
    assert!(!unknown.iter().any(|u| u.starts_with("nic br-int: napi_id")), "software has none");
}

#[test]
fn a_tree_without_answers_gives_one_reason_per_nic() {
    let (nics, unknown) = read(&host_of_vms());
    for (name, kind) in [
        ("eth0", NicKind::Physical),
        ("eth0v0", NicKind::Vf),
        ("tap0", NicKind::Tap),
        ("macvtap0", NicKind::Macvtap),
        ("eth0.100", NicKind::Vlan),
        ("ovs-system", NicKind::OvsInternal),
        // Without rtnetlink an internal port looks like any software device.
        ("br-int", NicKind::Other),
    ] {
        assert_eq!(nics[name].kind, kind, "{name}");
        let about = unknown.iter().filter(|u| u.starts_with(&format!("nic {name}:")));
        assert_eq!(about.count(), 1, "{name}: {unknown:?}");
    }
    assert_eq!(nics["macvtap0"].link.as_deref(), Some("eth0"));
    assert_eq!(nics["tap0"].master.as_deref(), Some("ovs-system"));
    // Without the netdev family the names of the interrupts are used.
    let irqs: Vec<_> = nics["eth0"].rx_queues.iter().map(|queue| queue.irq).collect();
    assert_eq!(irqs, [Some(IrqNumber(100)), Some(IrqNumber(101))]);
    assert_eq!((&nics["eth0"].channels, &nics["eth0"].rss), (&None, &None));
}

#[test]
fn what_tells_of_loss_and_of_the_link() {
    let bond = TreeNic { ifindex: Some(9), ..TreeNic::software("bond0") };
    let tree = two_nodes()
        .nic(TreeNic::pci("eth0", "mlx5_core", "0000:5e:00.0").on_node(1).queues(2, 100))
        .nic(bond)
        .file("/sys/devices/virtual/net/bond0/bonding/mode", "802.3ad 4\n")
        .file("/sys/devices/virtual/net/bond0/bonding/xmit_hash_policy", "layer3+4 1\n")
        .write();
    let pci = "/sys/devices/pci0000:5e/0000:5e:00.0";
    for (file, text) in [
        ("current_link_speed", "8.0 GT/s PCIe\n"),
        ("current_link_width", "8\n"),
        ("max_link_speed", "16.0 GT/s PCIe\n"),
        ("max_link_width", "16\n"),
        ("net/eth0/queues/tx-0/tx_timeout", "2\n"),
        ("net/eth0/queues/tx-1/tx_timeout", "1\n"),
    ] {
        put(&tree, &format!("{pci}/{file}"), text);
    }
    answer(&tree, r#"{"ethtool/driver-counters": {"answers": {"1": {"rx_out_of_buffer": 7}}}}"#);
    let (nics, _) = read(&tree);
    let eth0 = &nics["eth0"];
    assert_eq!(eth0.tx_timeouts, Some(3));
    let link = eth0.pcie.unwrap();
    assert_eq!((link.speed_mts, link.width, link.max_speed_mts), (8_000, 8, 16_000));
    assert_eq!(eth0.driver_counters.as_ref().unwrap()["rx_out_of_buffer"], 7);
    let bond = nics["bond0"].bond.as_ref().unwrap();
    assert_eq!((bond.mode.as_str(), bond.hash.as_deref()), ("802.3ad", Some("layer3+4")));
    assert_eq!((nics["bond0"].pcie, nics["bond0"].tx_timeouts), (None, None));
}

#[test]
fn unknown_nodes_are_not_node_0() {
    let tree = two_nodes()
        .nic(TreeNic::pci("minus", "ixgbe", "0000:01:00.0").on_node(-1))
        .nic(TreeNic::pci("absent", "ixgbe", "0000:02:00.0"))
        .nic(TreeNic::pci("garbage", "ixgbe", "0000:03:00.0"))
        .nic(TreeNic::pci("zero", "ixgbe", "0000:04:00.0").on_node(0))
        .file("/sys/devices/pci0000:03/0000:03:00.0/numa_node", "4294967296\n")
        .write();
    let (nics, unknown) = read(&tree);
    for name in ["minus", "absent", "garbage"] {
        assert_eq!(nics[name].numa_node, None, "{name}");
        let why = format!("nic {name}: numa_node:");
        assert_eq!(unknown.iter().filter(|u| u.starts_with(&why)).count(), 1, "{unknown:?}");
    }
    assert_eq!(nics["zero"].numa_node, Some(NodeId(0)));
}

#[test]
fn a_device_of_a_host_with_one_node_is_on_it() {
    let nic = || TreeNic::pci("minus", "ixgbe", "0000:01:00.0").on_node(-1);
    let one = Layout { cores: 2, ..Layout::default() };
    let (nics, unknown) = read(&Machine::regular(one).nic(nic()).write());
    assert_eq!(nics["minus"].numa_node, Some(NodeId(0)));
    assert!(!unknown.iter().any(|u| u.contains("numa_node")), "{unknown:?}");
    // Without NUMA there is no node to be on.
    let mut machine = Machine::regular(one).nic(nic());
    machine.nodes.clear();
    let (nics, _) = read(&machine.each_cpu(|_, cpu| cpu.node = None).write());
    assert_eq!(nics["minus"].numa_node, None);
}

/// A virtio NIC: its node, address and interrupts are those of the PCI function.
#[test]
fn virtio_has_the_node_of_its_parent() {
    let interrupts = "           CPU0       CPU1\n\
         37:  0  0 PCI-MSIX-0000:00:03.0 0-edge virtio2-config\n\
         38:  5  0 PCI-MSIX-0000:00:03.0 1-edge virtio2-input.0\n\
         39:  0  7 PCI-MSIX-0000:00:03.0 2-edge virtio2-output.0\n\
         40:  5  0 PCI-MSIX-0000:00:03.0 3-edge virtio2-input.1\n\
         41:  0  7 PCI-MSIX-0000:00:03.0 4-edge virtio2-output.1\n";
    let tree = two_nodes().file("/proc/interrupts", interrupts).write();
    let pci = "/sys/devices/pci0000:00/0000:00:03.0";
    let net = format!("{pci}/virtio2/net/eth1");
    put(&tree, &format!("{pci}/numa_node"), "1\n");
    put(&tree, &format!("{pci}/local_cpulist"), "2-3\n");
    for irq in 37..=41 {
        put(&tree, &format!("{pci}/msi_irqs/{irq}"), "msix\n");
    }
    put(&tree, "/sys/bus/virtio/drivers/virtio_net/module", "");
    link(&tree, &format!("{pci}/virtio2/driver"), "../../../../bus/virtio/drivers/virtio_net");
    link(&tree, "/sys/class/net/eth1", &format!("../..{}", &net[4..]));
    link(&tree, &format!("{net}/device"), "../../../virtio2");
    put(&tree, &format!("{net}/ifindex"), "2\n");
    put(&tree, &format!("{net}/speed"), "-1\n");
    for queue in ["rx-0/rps_cpus", "rx-1/rps_cpus", "tx-0/xps_cpus", "tx-1/xps_cpus"] {
        put(&tree, &format!("{net}/queues/{queue}"), "0\n");
    }
    let (nics, unknown) = read(&tree);
    let nic = &nics["eth1"];
    assert_eq!((nic.kind, nic.numa_node), (NicKind::Virtio, Some(NodeId(1))));
    assert_eq!(
        (nic.bus.as_deref(), nic.driver.as_deref()),
        (Some("0000:00:03.0"), Some("virtio_net"))
    );
    assert_eq!(nic.local_cpus.as_ref().map(ToString::to_string).as_deref(), Some("2-3"));
    assert_eq!(nic.speed_mbps, None);
    let why = "nic eth1: speed_mbps: /sys/class/net/eth1/speed: not reported by the driver";
    assert!(unknown.contains(&why.to_owned()), "{unknown:?}");
    let rx: Vec<_> = nic.rx_queues.iter().map(|q| (q.queue, q.irq)).collect();
    let tx: Vec<_> = nic.tx_queues.iter().map(|q| (q.queue, q.irq)).collect();
    assert_eq!(rx, [(QueueId(0), Some(IrqNumber(38))), (QueueId(1), Some(IrqNumber(40)))]);
    assert_eq!(tx, [(QueueId(0), Some(IrqNumber(39))), (QueueId(1), Some(IrqNumber(41)))]);
}

/// As answered by e1000e on Linux 7.2: one NAPI instance for both directions, with the interrupt of the receive
/// queue; the transmit queue has a separate one.
#[test]
fn an_interrupt_named_for_the_other_direction_is_not_assigned() {
    let interrupts = "           CPU0\n\
        100:  5 PCI-MSIX-0000:01:00.0 0-edge eth0-rx-0\n\
        101:  7 PCI-MSIX-0000:01:00.0 1-edge eth0-tx-0\n";
    let nic = TreeNic::pci("eth0", "e1000e", "0000:01:00.0").on_node(0);
    let tree = two_nodes().nic(nic).file("/proc/interrupts", interrupts).write();
    let device = "/sys/devices/pci0000:01/0000:01:00.0";
    for irq in [100, 101] {
        put(&tree, &format!("{device}/msi_irqs/{irq}"), "msix\n");
    }
    let index = fs::read_to_string(tree.path().join(&device[1..]).join("net/eth0/ifindex"));
    let queues = json!({ index.unwrap().trim(): { "rx": { "0": 8193 }, "tx": { "0": 8193 } } });
    let answers = json!({ "netdev/queues": queues, "netdev/napi-irqs": { "8193": 100 } });
    answer(&tree, &answers.to_string());
    let (nics, _) = read(&tree);
    let (rx, tx) = (&nics["eth0"].rx_queues[0], &nics["eth0"].tx_queues[0]);
    assert_eq!((rx.napi_id, rx.irq), (Some(8193), Some(IrqNumber(100))));
    assert_eq!((tx.napi_id, tx.irq), (Some(8193), Some(IrqNumber(101))));
}

#[test]
fn malformed_or_removed_interfaces_are_skipped() {
    let tree = two_nodes()
        .nic(TreeNic::pci("eth0", "ixgbe", "0000:01:00.0").on_node(0))
        .nic(TreeNic::software("bad"))
        .file("/sys/devices/virtual/net/bad/ifindex", "x\n")
        .file("/sys/devices/pci0000:01/0000:01:00.0/net/eth0/mtu", "\u{fffd}\n")
        .file("/sys/devices/pci0000:01/0000:01:00.0/net/eth0/queues/rx-0/rps_cpus", "zz\n")
        .file("/sys/devices/pci0000:01/0000:01:00.0/net/eth0/queues/rx-x/rps_cpus", "1\n")
        .write();
    link(&tree, "/sys/class/net/gone", "../../devices/virtual/net/gone");
    answer(&tree, r#"{ "ethtool/rings": { "answers": { "x": 1 } } }"#);
    let (nics, unknown) = read(&tree);
    assert_eq!(nics.keys().collect::<Vec<_>>(), ["eth0"]);
    assert!(unknown.iter().any(|u| u.starts_with("nic bad: ifindex:")), "{unknown:?}");
    assert!(
        unknown.iter().any(|u| u.contains("rings: the saved answer is damaged")),
        "{unknown:?}"
    );
    let eth0 = &nics["eth0"];
    assert_eq!((eth0.mtu_bytes, eth0.rx_queues.len()), (None, 1));
    assert_eq!(eth0.rx_queues[0].rps_cpus, None);
}

/// Queues in numerical order, each with the interrupt of its number.
#[test]
fn many_queues() {
    let eth0 = TreeNic::pci("eth0", "mlx5_core", "0000:10:00.0").on_node(1).queues(128, 1000);
    let (nics, _) = read(&two_nodes().nic(eth0).write());
    let queues = &nics["eth0"].rx_queues;
    let read: Vec<_> = queues.iter().map(|queue| (queue.queue, queue.irq)).collect();
    let expected = (0..128).map(|i| (QueueId(i), Some(IrqNumber(1000 + i))));
    assert_eq!(read, expected.collect::<Vec<_>>());
    assert_eq!(nics["eth0"].tx_queues.len(), 128);
}

#[test]
fn unreadable_steering_is_reported_once() {
    let nic = TreeNic::pci("eth0", "mlx5_core", "0000:5e:00.0").queues(4, 100);
    let one = TreeNic::pci("eth1", "igb", "0000:5f:00.0").queues(1, 200);
    let queues = |pci: &str, nic| format!("/sys/devices/pci{}/{pci}/net/{nic}/queues", &pci[..7]);
    let (eth0, eth1) = (queues("0000:5e:00.0", "eth0"), queues("0000:5f:00.0", "eth1"));
    let mut machine = two_nodes().nic(nic).nic(one);
    for i in 1..4 {
        machine = machine.without(&format!("{eth0}/rx-{i}/rps_cpus"));
        machine = machine.without(&format!("{eth0}/tx-{i}/xps_rxqs"));
    }
    let machine = machine
        .file(&format!("{eth0}/tx-2/xps_cpus"), "nonsense\n")
        .without(&format!("{eth1}/tx-0/xps_cpus"));
    let (nics, unknown) = read(&machine.write());
    let about = |fact: &str| {
        let fact = format!(": {fact}: ");
        unknown.iter().filter(|u| u.contains(&fact)).map(String::as_str).collect::<Vec<_>>()
    };
    let rps = "nic eth0: rps_cpus: /sys/class/net/eth0/queues/rx-1/rps_cpus: not found";
    assert_eq!(about("rps_cpus"), [rps]);
    let xps = "nic eth0: xps_cpus: /sys/class/net/eth0/queues/tx-2/xps_cpus: not a CPU mask: \
               \"nonsense\"";
    assert_eq!(about("xps_cpus"), [xps]);
    assert!(about("xps_rxqs").is_empty() && about("rps_flow_cnt").is_empty());
    assert!(nics["eth0"].rx_queues[0].rps_cpus.is_some());
    assert!(nics["eth1"].tx_queues[0].xps_cpus.is_none());
}
