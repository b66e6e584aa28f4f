//! Hosts made by hand, with nothing read: what the views are tested on.

use nearpath_model::*;
use std::collections::BTreeMap;

/// Packages with nodes, LLCs, cores and threads in equal numbers; threads are numbered as most
/// firmware does, the first of all cores before the second.
pub struct Shape {
    pub packages: u32,
    pub nodes: u32,
    pub llcs: u32,
    pub cores: u32,
    pub threads: u32,
}

pub fn topology(shape: &Shape) -> Topology {
    let cores_of_llc = shape.cores;
    let cores_of_node = cores_of_llc * shape.llcs;
    let cores_of_package = cores_of_node * shape.nodes;
    let cores = cores_of_package * shape.packages;
    let all: CpuSet = (0..cores * shape.threads).map(CpuId).collect();
    let mut topology = Topology {
        possible: all.clone(),
        present: all.clone(),
        online: all.clone(),
        ..Topology::default()
    };
    for cpu in all.iter() {
        let core = cpu.0 % cores;
        let (llc, node) = (LlcId(core / cores_of_llc), NodeId(core / cores_of_node));
        topology.cpus.push(Cpu {
            cpu,
            online: true,
            core: Some(core % cores_of_package),
            package: Some(core / cores_of_package),
            die: Some(0),
            cluster: None,
            llc: Some(llc),
            node: Some(node),
            siblings: (0..shape.threads).map(|thread| CpuId(core + thread * cores)).collect(),
            kind: None,
            capacity: None,
        });
    }
    let share = |of: &dyn Fn(&Cpu) -> bool| {
        topology.cpus.iter().filter(|cpu| of(cpu)).map(|cpu| cpu.cpu).collect::<CpuSet>()
    };
    let llcs = (0..cores / cores_of_llc).map(|llc| Llc {
        llc: LlcId(llc),
        level: Some(3),
        size_bytes: Some(16 << 20),
        cpus: share(&|cpu| cpu.llc == Some(LlcId(llc))),
    });
    let node_count = cores / cores_of_node;
    let nodes = (0..node_count).map(|node| Node {
        node: NodeId(node),
        cpus: share(&|cpu| cpu.node == Some(NodeId(node))),
        memory_bytes: Some(64 << 30),
        free_bytes: Some((10 + u64::from(node)) << 30),
        distances: (0..node_count)
            .map(|to| (NodeId(to), if to == node { 10 } else { 21 }))
            .collect(),
        hugepages: BTreeMap::from([(
            2 << 20,
            Hugepages { total: 1024 * u64::from(node), free: 64, surplus: 0 },
        )]),
        numastat: BTreeMap::from([("local_node".into(), 900), ("other_node".into(), 100)]),
    });
    let (llcs, nodes) = (llcs.collect(), nodes.collect());
    Topology { llcs, nodes, ..topology }
}

/// Two packages, one node each, eight CPUs: an SR-IOV NIC on node 0 whose second queue's
/// interrupt is on node 1, a veth of two queues, loopback; CPU 7 is offline.
pub fn two_nodes() -> Host {
    let mut topology = topology(&Shape { packages: 2, nodes: 1, llcs: 1, cores: 2, threads: 2 });
    topology.online.remove(CpuId(7));
    let offline = &mut topology.cpus[7];
    (offline.online, offline.core, offline.package, offline.die) = (false, None, None, None);
    (offline.llc, offline.node, offline.siblings) = (None, None, CpuSet::new());
    topology.cpus[3].siblings.remove(CpuId(7));
    topology.llcs[1].cpus.remove(CpuId(7));
    topology.nodes[1].cpus.remove(CpuId(7));
    let unknown = |subject: &str, fact: &str, reason: &str| Unknown {
        subject: subject.into(),
        fact: fact.into(),
        reason: reason.into(),
    };
    Host {
        schema: HOST_SCHEMA,
        kernel: Kernel {
            release: Some("6.8.0".into()),
            hostname: Some("two\u{1b}nodes".into()),
            cmdline: Some("isolcpus=3".into()),
            virtualisation: Some("none".into()),
            isolated: Some(cpus("3")),
            isolated_by_cgroups: None,
            nohz_full: Some(CpuSet::new()),
            rcu_nocbs: None,
        },
        topology,
        nics: vec![loopback(), physical(), veth()],
        devices: pci_functions(),
        irqs: vec![
            irq(24, "mlx5_comp0@pci:0000:5e:00.0", "0", &[(0, 900_000), (2, 100_000)]),
            irq(25, "mlx5_comp1@pci:0000:5e:00.0", "6", &[(6, 5_000_000)]),
            irq(26, "i8042", "0", &[]),
            irq(27, "nvme0q1", "2", &[]),
        ],
        softirqs: ["NET_TX", "NET_RX"]
            .map(|vector| SoftirqCounts {
                vector: vector.into(),
                counts: (0..7).map(|cpu| (CpuId(cpu), u64::from(cpu) * 10)).collect(),
            })
            .into(),
        softnet: (0..7)
            .map(|cpu| SoftnetCpu {
                cpu: CpuId(cpu),
                processed: [900_000, 0, 100_000, 0, 0, 0, 5_000_000][cpu as usize],
                dropped: u64::from(cpu == 6) * 17,
                time_squeeze: u64::from(cpu == 6) * 400,
                received_rps: Some(u64::from(cpu == 2) * 99),
                flow_limit: Some(0),
                backlog: Some(0),
                input_queue: None,
                process_queue: None,
            })
            .collect(),
        sysctls: BTreeMap::from([("net.core.netdev_budget".into(), "300".into())]),
        daemons: Daemons { irqbalance: Some(true), tuned: Some(false), tuned_profile: None },
        unknown: vec![
            unknown("cpu 7", "core", "/sys/devices/system/cpu/cpu7/topology/core_id: not found"),
            unknown("host", "rcu_nocbs", "not on the kernel command line"),
            unknown("nic lo", "speed_mbps", "/sys/class/net/lo/speed: does not have this"),
            unknown("nic veth0", "rings", "ethtool rings of veth0: the driver does not support it"),
        ],
        ..Host::default()
    }
}

/// The physical function of the NIC and two virtual ones, of which a program drives one, and a port on uio.
fn pci_functions() -> Vec<PciFunction> {
    let function = |address: &str, driver: &str| PciFunction {
        address: address.into(),
        id: Some("15b3:1017".into()),
        driver: Some(driver.into()),
        numa_node: Some(NodeId(0)),
        msix_vectors: Some(64),
        ..PciFunction::default()
    };
    let link = PcieLink { speed_mts: 8_000, width: 8, max_speed_mts: 8_000, max_width: 16 };
    let of = Some("0000:5e:00.0".to_owned());
    vec![
        PciFunction {
            virtual_functions: vec!["0000:5e:00.2".into(), "0000:5e:00.3".into()],
            virtual_functions_max: Some(8),
            irqs: vec![IrqNumber(24), IrqNumber(25)],
            link: Some(link),
            interfaces: vec!["eth0".into()],
            ..function("0000:5e:00.0", "mlx5_core")
        },
        PciFunction {
            physical_function: of.clone(),
            iommu_group: Some(12),
            user_devices: vec!["/dev/vfio/12".into()],
            ..function("0000:5e:00.2", "vfio-pci")
        },
        PciFunction {
            physical_function: of,
            driver: None,
            msix_vectors: None,
            ..function("0000:5e:00.3", "")
        },
        PciFunction {
            numa_node: None,
            user_devices: vec!["/dev/uio0".into()],
            link: Some(PcieLink { max_width: 8, ..link }),
            ..function("0000:af:00.0", "uio_pci_generic")
        },
    ]
}

pub fn cpus(list: &str) -> CpuSet {
    CpuSet::from_list(list).unwrap()
}

fn irq(number: u32, name: &str, to: &str, counts: &[(u32, u64)]) -> Irq {
    Irq {
        irq: IrqNumber(number),
        name: name.into(),
        chip: None,
        counts: counts.iter().map(|&(cpu, count)| (CpuId(cpu), count)).collect(),
        affinity: Some(cpus("0-6")),
        effective_affinity: Some(cpus(to)),
        node: Some(NodeId(0)),
    }
}

fn nic(name: &str, kind: NicKind, queues: u32) -> Nic {
    Nic {
        name: name.into(),
        ifindex: IfIndex(1),
        kind,
        driver: None,
        bus: None,
        numa_node: None,
        local_cpus: None,
        address: None,
        speed_mbps: None,
        mtu_bytes: Some(1500),
        state: Some("up".into()),
        master: None,
        link: None,
        netns: Netns::default(),
        physical_function: None,
        vlan: None,
        vlan_egress: None,
        channels: None,
        rings: None,
        coalesce: None,
        offloads: None,
        fixed_offloads: None,
        rss: None,
        ntuple: None,
        rx_queues: (0..queues)
            .map(|queue| RxQueue {
                queue: QueueId(queue),
                napi_id: None,
                irq: None,
                rps_cpus: Some(CpuSet::new()),
                rps_flow_cnt: Some(0),
            })
            .collect(),
        tx_queues: (0..queues)
            .map(|queue| TxQueue {
                queue: QueueId(queue),
                napi_id: None,
                irq: None,
                xps_cpus: Some(CpuSet::new()),
                xps_rxqs: Some(Vec::new()),
                byte_limit: None,
            })
            .collect(),
        qdiscs: None,
        statistics: BTreeMap::new(),
        driver_counters: None,
        pcie: None,
        tx_timeouts: None,
        gro_flush_timeout_ns: None,
        napi_defer_hard_irqs: None,
        bond: None,
        xdp: None,
    }
}

fn loopback() -> Nic {
    nic("lo", NicKind::Loopback, 1)
}

fn veth() -> Nic {
    let mut veth = nic("veth0", NicKind::Veth, 2);
    veth.driver = Some("veth".into());
    veth.master = Some("br0".into());
    veth
}

fn physical() -> Nic {
    let mut nic = nic("eth0", NicKind::Physical, 2);
    nic.driver = Some("mlx5_core".into());
    nic.bus = Some("0000:5e:00.0".into());
    nic.numa_node = Some(NodeId(0));
    nic.speed_mbps = Some(100_000);
    nic.channels =
        Some(Channels { combined: Some(2), combined_max: Some(8), ..Channels::default() });
    nic.rings = Some(Rings { rx: Some(1024), tx: Some(512), rx_max: Some(8192), tx_max: None });
    nic.coalesce = Some(BTreeMap::from([("rx-usecs".into(), 8)]));
    nic.rss = Some(Rss {
        indirection: (0..8).map(|bucket| QueueId(u32::from(bucket > 5))).collect(),
        key: None,
        function: Some("toeplitz".into()),
    });
    let qdisc = |kind: &str, parent: &str| Qdisc {
        kind: kind.into(),
        handle: "0:0".into(),
        parent: parent.into(),
        drops: Some(0),
        backlog_packets: Some(0),
        overlimits: None,
        scheduler: None,
    };
    nic.qdiscs = Some(vec![qdisc("mq", "root"), qdisc("fq_codel", "8001:1")]);
    for (i, queue) in nic.rx_queues.iter_mut().enumerate() {
        queue.napi_id = Some(8193 + i as u32);
        queue.irq = Some(IrqNumber(24 + i as u32));
    }
    for (i, queue) in nic.tx_queues.iter_mut().enumerate() {
        queue.napi_id = Some(8193 + i as u32);
        queue.irq = Some(IrqNumber(24 + i as u32));
        queue.xps_cpus = Some(cpus(["0-3", "4-6"][i]));
    }
    nic.rx_queues[0].rps_cpus = Some(cpus("4-5"));
    nic
}
