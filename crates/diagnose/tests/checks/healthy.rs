//! Healthy hosts: on none of them may a check report a warning or worse.
//!
//! Each is as noisy as real ones are: a few lost packets, a squeezed softirq, tails many times the median, interrupts that
//! irqbalance has spread over the nodes, idle readers pinned elsewhere, wake-ups from deep idle states. They are built
//! here and not in fixtures because the largest has 1,024 CPUs. The same hosts with one fault each must not be quiet, so
//! that silence means something.

use nearpath_diagnose::diagnose;
use nearpath_model::*;
use std::collections::BTreeMap;

/// Seconds between the two readings.
const INTERVAL_S: u64 = 10;

/// What differs between the hosts.
#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    cpus: u32,
    nodes: u32,
    queues: u32,
    packets_per_s: u64,
    hypervisor: &'static str,
    kind: NicKind,
    has_irqs: bool,
}

const IDLE: Shape = Shape {
    name: "idle, bare metal",
    cpus: 16,
    nodes: 2,
    queues: 8,
    packets_per_s: 12,
    hypervisor: "none",
    kind: NicKind::Physical,
    has_irqs: true,
};

fn shapes() -> [Shape; 7] {
    [
        IDLE,
        Shape { name: "busy and well placed", packets_per_s: 400_000, ..IDLE },
        Shape { name: "one CPU", cpus: 1, nodes: 1, queues: 1, packets_per_s: 3_000, ..IDLE },
        Shape {
            name: "container",
            packets_per_s: 20_000,
            queues: 1,
            kind: NicKind::Veth,
            has_irqs: false,
            ..IDLE
        },
        Shape {
            name: "virtual machine",
            cpus: 4,
            nodes: 1,
            queues: 4,
            packets_per_s: 15_000,
            hypervisor: "kvm",
            kind: NicKind::Virtio,
            ..IDLE
        },
        Shape {
            name: "1,024 CPUs",
            cpus: 1_024,
            nodes: 16,
            queues: 128,
            packets_per_s: 900_000,
            ..IDLE
        },
        Shape {
            name: "1,024 CPUs, idle",
            cpus: 1_024,
            nodes: 16,
            queues: 128,
            packets_per_s: 5,
            ..IDLE
        },
    ]
}

fn node_of(shape: Shape, cpu: u32) -> u32 {
    cpu / (shape.cpus / shape.nodes).max(1)
}

fn cpus_of(shape: Shape, node: u32) -> CpuSet {
    (0..shape.cpus).filter(|cpu| node_of(shape, *cpu) == node).map(CpuId).collect()
}

fn topology(shape: Shape) -> Topology {
    let all: CpuSet = (0..shape.cpus).map(CpuId).collect();
    let cpu = |number: u32| Cpu {
        cpu: CpuId(number),
        online: true,
        core: Some(number),
        package: Some(node_of(shape, number)),
        die: None,
        cluster: None,
        llc: Some(LlcId(node_of(shape, number))),
        node: Some(NodeId(node_of(shape, number))),
        siblings: [CpuId(number)].into_iter().collect(),
        kind: None,
        capacity: None,
    };
    let distance = |a: u32, b: u32| (NodeId(b), if a == b { 10 } else { 21 });
    Topology {
        possible: all.clone(),
        present: all.clone(),
        online: all,
        cpus: (0..shape.cpus).map(cpu).collect(),
        nodes: (0..shape.nodes)
            .map(|node| Node {
                node: NodeId(node),
                cpus: cpus_of(shape, node),
                memory_bytes: Some(64 << 30),
                free_bytes: Some(32 << 30),
                distances: (0..shape.nodes).map(|other| distance(node, other)).collect(),
                hugepages: BTreeMap::new(),
                numastat: BTreeMap::new(),
            })
            .collect(),
        llcs: (0..shape.nodes)
            .map(|node| Llc {
                llc: LlcId(node),
                level: Some(3),
                size_bytes: Some(32 << 20),
                cpus: cpus_of(shape, node),
            })
            .collect(),
    }
}

/// The host, with `seconds` of traffic counted.
fn host(shape: Shape, seconds: u64) -> Host {
    let packets = shape.packets_per_s * seconds;
    let near: Vec<CpuId> = cpus_of(shape, 0).iter().collect();
    // Where little comes, irqbalance spreads interrupts over all nodes.
    let is_idle = shape.packets_per_s < 1_000;
    let all: Vec<CpuId> = (0..shape.cpus).map(CpuId).collect();
    let place = |queue: u32| {
        let among = if is_idle { &all } else { &near };
        let stride = if is_idle { among.len() / shape.queues as usize } else { 1 };
        among[(queue as usize * stride.max(1)) % among.len()]
    };
    let share = packets / u64::from(shape.queues);
    let irqs = (0..shape.queues).filter(|_| shape.has_irqs).map(|queue| Irq {
        irq: IrqNumber(30 + queue),
        name: format!("eth0-{queue}"),
        counts: [(place(queue), share / 4)].into(),
        affinity: Some([place(queue)].into_iter().collect()),
        effective_affinity: Some([place(queue)].into_iter().collect()),
        ..serde_json::from_str(r#"{"irq": 0, "name": "", "counts": {}}"#).unwrap()
    });
    let irq = |queue: u32| shape.has_irqs.then_some(IrqNumber(30 + queue));
    let mut nic: Nic = serde_json::from_value(serde_json::json!({
        "name": "eth0", "ifindex": 2, "kind": "physical", "state": "up", "netns": {},
        "rx_queues": [], "tx_queues": [],
        "statistics": {
            "rx_packets": packets, "tx_packets": packets, "rx_missed_errors": u64::from(seconds > 0),
            "rx_fifo_errors": 0, "rx_over_errors": 0
        }
    }))
    .unwrap();
    nic.kind = shape.kind;
    nic.numa_node = shape.has_irqs.then_some(NodeId(0));
    // A few packets found no buffer, the switch paused the link now and then.
    nic.driver_counters = Some(BTreeMap::from([
        ("rx_out_of_buffer".to_owned(), u64::from(seconds > 0)),
        ("rx_discards_phy".to_owned(), 0),
        ("rx_pause_ctrl_phy".to_owned(), seconds / 100),
    ]));
    let (speed_mts, width) = (8_000, 8);
    nic.pcie = Some(PcieLink { speed_mts, width, max_speed_mts: speed_mts, max_width: width });
    nic.tx_timeouts = Some(0);
    nic.coalesce =
        Some(BTreeMap::from([("rx-usecs".to_owned(), 8), ("adaptive-rx".to_owned(), 1)]));
    nic.rx_queues = (0..shape.queues)
        .map(|queue| RxQueue {
            queue: QueueId(queue),
            napi_id: None,
            irq: irq(queue),
            rps_cpus: Some(CpuSet::new()),
            rps_flow_cnt: Some(0),
        })
        .collect();
    let runs = (0..shape.queues).map(|queue| (place(queue), share / 4));
    let mut net_rx: BTreeMap<CpuId, u64> = BTreeMap::new();
    for (cpu, count) in runs {
        *net_rx.entry(cpu).or_default() += count;
    }
    let softnet = net_rx.iter().map(|(cpu, count)| SoftnetCpu {
        cpu: *cpu,
        processed: count * 4,
        dropped: 0,
        time_squeeze: count / 2_000,
        received_rps: Some(0),
        flow_limit: Some(0),
        backlog: Some(0),
        input_queue: Some(0),
        process_queue: Some(0),
    });
    let time = |cpu: &CpuId| CpuTime {
        cpu: *cpu,
        user: 10 * seconds,
        nice: 0,
        system: 5 * seconds,
        idle: 82 * seconds,
        iowait: 0,
        irq: 0,
        softirq: 2 * seconds,
        steal: Some(if shape.hypervisor == "none" { 0 } else { seconds }),
    };
    // An idle login server pinned to the last CPU.
    let last: CpuSet = [CpuId(shape.cpus - 1)].into_iter().collect();
    Host {
        schema: HOST_SCHEMA,
        kernel: Kernel {
            release: Some("6.12.0".to_owned()),
            virtualisation: Some(shape.hypervisor.to_owned()),
            isolated: Some(CpuSet::new()),
            nohz_full: Some(CpuSet::new()),
            ..Kernel::default()
        },
        topology: topology(shape),
        nics: vec![nic],
        irqs: irqs.collect(),
        softirqs: vec![SoftirqCounts { vector: "NET_RX".to_owned(), counts: net_rx.clone() }],
        softnet: softnet.collect(),
        cpu_time: all.iter().map(time).collect(),
        counters: BTreeMap::from([
            ("Udp.InDatagrams".to_owned(), packets / 2),
            ("Udp.RcvbufErrors".to_owned(), u64::from(seconds > 0)),
            ("Tcp.InSegs".to_owned(), packets / 2),
            ("Tcp.OutSegs".to_owned(), packets / 2),
            ("Tcp.RetransSegs".to_owned(), packets / 5_000),
            ("TcpExt.RcvPruned".to_owned(), 0),
            ("TcpExt.ListenOverflows".to_owned(), 1),
            ("TcpExt.ListenDrops".to_owned(), 1),
            ("Tcp.PassiveOpens".to_owned(), packets / 100),
            ("conntrack.count".to_owned(), 30_000),
            ("conntrack.max".to_owned(), 262_144),
            ("conntrack.drop".to_owned(), 0),
            ("conntrack.early_drop".to_owned(), 0),
            ("vm.compact_stall".to_owned(), 0),
            ("vm.numa_hint_faults".to_owned(), 20 * seconds),
        ]),
        sysctls: BTreeMap::from([
            ("kernel.numa_balancing".to_owned(), u32::from(shape.nodes > 1).to_string()),
            ("net.core.busy_read".to_owned(), "0".to_owned()),
            ("transparent_hugepage.defrag".to_owned(), "always [madvise] never".to_owned()),
        ]),
        daemons: Daemons { irqbalance: Some(true), ..Daemons::default() },
        sockets: vec![
            serde_json::from_value(serde_json::json!({
                "protocol": "tcp", "address": "0.0.0.0", "port": 22, "inode": 1, "pids": [700]
            }))
            .unwrap(),
        ],
        owners: vec![
            serde_json::from_value(serde_json::json!({
                "pid": 700, "comm": "sshd", "affinity": last.to_string(), "threads": {},
                "migrations": 2 * seconds, "cpu_ticks": seconds / 10
            }))
            .unwrap(),
        ],
        cgroups: vec![Cgroup {
            path: "/system.slice/sshd.service".to_owned(),
            pids: vec![700],
            quota_us: 50_000,
            period_us: 100_000,
            periods: Some(seconds),
            throttled_periods: Some(seconds / 200),
            throttled_us: Some(seconds * 100),
        }],
        process_memory: vec![ProcessMemory {
            pid: 700,
            comm: Some("sshd".to_owned()),
            bytes: BTreeMap::from([(NodeId(0), 148 << 10), (NodeId(shape.nodes - 1), 4 << 20)]),
            huge_bytes: BTreeMap::new(),
            file_bytes: BTreeMap::new(),
            devices: Some(Vec::new()),
        }],
        ..Host::default()
    }
}

/// The same host with what production hosts have and suffer nothing from.
fn lived_in(shape: Shape, seconds: u64) -> Host {
    let mut host = host(shape, seconds);
    let packets = shape.packets_per_s * seconds;
    let all: CpuSet = host.topology.online.clone();
    let nic = &mut host.nics[0];
    nic.mtu_bytes = Some(9_000);
    nic.speed_mbps = Some(100_000);
    nic.bus = Some("0000:5e:00.0".to_owned());
    nic.driver = Some("mlx5_core".to_owned());
    // STP and LLDP frames of the switch, for which there is no handler: one in two seconds.
    nic.statistics.insert("rx_dropped".to_owned(), seconds / 2);
    nic.statistics.insert("rx_nohandler".to_owned(), seconds / 2);
    nic.statistics.insert("tx_dropped".to_owned(), 0);
    nic.statistics.insert("rx_bytes".to_owned(), packets * 900);
    nic.statistics.insert("tx_bytes".to_owned(), packets * 900);
    // Passed through to a guest, or in a slot of half the width: slower than the NIC, and not full.
    nic.pcie = Some(PcieLink { speed_mts: 8_000, width: 4, max_speed_mts: 16_000, max_width: 16 });
    // On a router.
    let off = |name: &str| (name.to_owned(), false);
    nic.offloads = Some([off("rx-gro"), off("tx-tcp-segmentation")].into());
    nic.fixed_offloads = Some(std::collections::BTreeSet::new());
    // fq_codel does its work: a few packets in 100,000.
    nic.qdiscs = Some(vec![Qdisc {
        kind: "fq_codel".to_owned(),
        handle: "8001:".to_owned(),
        parent: "root".to_owned(),
        drops: Some(packets / 20_000),
        backlog_packets: Some(3),
    }]);
    let interface = |value: serde_json::Value| {
        let mut whole = serde_json::json!({
            "ifindex": 2, "kind": "physical", "state": "up", "netns": {}, "rx_queues": [],
            "tx_queues": [], "statistics": {}, "mtu_bytes": 1500
        });
        for (key, value) in value.as_object().unwrap() {
            whole[key] = value.clone();
        }
        serde_json::from_value::<Nic>(whole).unwrap()
    };
    let port = |name: &str, ifindex: u32, sent: u64| {
        interface(serde_json::json!({
            "name": name, "ifindex": ifindex, "master": "bond0", "driver_counters": {},
            "statistics": {"tx_packets": sent, "rx_packets": sent, "tx_dropped": 0, "rx_dropped": 0},
            "offloads": {}, "qdiscs": []
        }))
    };
    // One stream fills one port of the bond. The datapath's device of OVS is down, as it always is.
    host.nics.extend([
        interface(serde_json::json!({
            "name": "bond0", "ifindex": 10, "kind": "bond",
            "bond": {"mode": "802.3ad", "hash": "layer2"}
        })),
        port("bp0", 11, 200_000 * seconds),
        port("bp1", 12, seconds),
        interface(serde_json::json!({
            "name": "ovs-system", "ifindex": 20, "kind": "ovs_internal", "state": "down"
        })),
        interface(serde_json::json!({
            "name": "vnet0", "ifindex": 21, "kind": "tap", "master": "ovs-system",
            "mtu_bytes": 1500, "rx_queues": [], "statistics": {
                "rx_packets": 20 * seconds, "tx_packets": 20 * seconds
            }
        })),
        interface(serde_json::json!({
            "name": "int0", "ifindex": 22, "kind": "ovs_internal", "master": "ovs-system",
            "mtu_bytes": 9000
        })),
    ]);
    // Threads of NAPI and vhost run where the scheduler likes; ksoftirqd waits for a build.
    let thread = |pid: u32, process: Option<u32>, comm: &str, cpus: &CpuSet| NetThread {
        pid,
        process,
        comm: comm.to_owned(),
        cpus: Some(cpus.clone()),
        run_ns: Some(seconds * 10_000_000),
        wait_ns: Some(seconds * 30_000_000),
    };
    let last: CpuSet = [CpuId(shape.cpus - 1)].into_iter().collect();
    host.net_threads = vec![
        thread(900, None, "napi/eth0-8193", &all),
        thread(950, None, "vhost-4711", &all),
        // Of an idle guest, pinned to the other node.
        thread(951, Some(4712), "vhost-4712", &last),
        thread(16, None, "ksoftirqd/0", &[CpuId(0)].into_iter().collect()),
    ];
    host.power.governors = BTreeMap::from([("powersave".to_owned(), all.clone())]);
    // A CPU without packets gets hot now and then.
    host.power.throttle_counts =
        BTreeMap::from([(CpuId(0), 0), (CpuId(shape.cpus - 1), seconds / 5)]);
    host.counters.insert("vm.numa_hint_faults".to_owned(), 2_000 * seconds);
    host.counters.insert("vm.numa_pages_migrated".to_owned(), 20 * seconds);
    host.sysctls.insert("net.ipv4.ip_forward".to_owned(), "1".to_owned());
    host.sysctls.insert("kernel.sched_migration_cost_ns".to_owned(), "500000".to_owned());
    // Pinned to a node, and idle; and a busy server of 64 threads that may run anywhere.
    let server: SocketOwner = serde_json::from_value(serde_json::json!({
        "pid": 800, "comm": "mysqld", "affinity": all.to_string(),
        "threads": (0..64).map(|n| ((800 + n).to_string(), all.to_string()))
            .collect::<BTreeMap<String, String>>(),
        "migrations": 3_000 * seconds, "cpu_ticks": 2_000 * seconds
    }))
    .unwrap();
    host.owners.push(server);
    let socket: Socket = serde_json::from_value(serde_json::json!({
        "protocol": "tcp", "address": "0.0.0.0", "port": 3306, "inode": 2, "pids": [800]
    }))
    .unwrap();
    host.sockets.push(socket);
    // Cores for a workload; a timer or two still comes there.
    if shape.cpus > 4 && shape.has_irqs {
        let isolated: CpuSet = (shape.cpus - 2..shape.cpus).map(CpuId).collect();
        host.kernel.isolated = Some(isolated);
        let rare = Irq {
            irq: IrqNumber(500),
            name: "eth0-async".to_owned(),
            counts: [(CpuId(shape.cpus - 1), seconds / 10)].into(),
            affinity: Some(all.clone()),
            effective_affinity: Some(last),
            ..serde_json::from_str(r#"{"irq": 0, "name": "", "counts": {}}"#).unwrap()
        };
        host.irqs.push(rare);
        let queue = QueueId(shape.queues);
        host.nics[0].tx_queues.push(TxQueue {
            queue,
            napi_id: None,
            irq: Some(IrqNumber(500)),
            xps_cpus: Some(CpuSet::new()),
            xps_rxqs: None,
        });
    }
    host
}

/// One span with a tail: of 100,000 packets ten are late by 3 ms.
fn span(shape: Shape, from: &str, to: &str, typical_ns: u64, moved: f64) -> Span {
    let count = shape.packets_per_s * INTERVAL_S;
    let late = count / 10_000;
    let buckets = [(typical_ns, count * 9 / 10), (typical_ns * 8, count - count * 9 / 10 - late)];
    let mut buckets: Vec<(u64, u64)> = buckets.into_iter().filter(|(_, n)| *n > 0).collect();
    if late > 0 {
        buckets.push((3_000_000, late));
    }
    let max = buckets.iter().map(|(upper, _)| *upper).max();
    let enough = |least: u64, ns: u64| (count >= least).then_some(ns);
    Span {
        direction: Direction::Rx,
        from: from.to_owned(),
        to: to.to_owned(),
        count,
        min_ns: Some(typical_ns / 4),
        p50_ns: enough(20, typical_ns),
        p90_ns: enough(100, typical_ns),
        p99_ns: enough(1_000, typical_ns * 8),
        p999_ns: enough(10_000, typical_ns * 8),
        max_ns: max,
        total_ns: count * typical_ns * 2,
        other_cpu: Some(if shape.cpus == 1 { 0.0 } else { moved }),
        other_llc: Some(0.0),
        other_node: Some(0.0),
        buckets,
        places: Vec::new(),
    }
}

fn measurement(shape: Shape) -> Measurement {
    let packets = shape.packets_per_s * INTERVAL_S;
    let slow = packets / 10_000;
    // What the slowest in 10,000 of any host wait for: an idle CPU's wake-up, and some task that ran before.
    let wait_ns = slow * 2_000_000;
    Measurement {
        duration_s: INTERVAL_S as f64,
        packets: Packets { started: packets, completed: packets, ..Packets::default() },
        spans: vec![
            span(shape, "net_rx_raise", "net_rx_entry", 900, 0.0),
            span(shape, "netif_receive_skb", "sk_data_ready", 1_100, 0.0),
            span(shape, "sched_waking", "sched_switch", 6_000, 0.3),
        ],
        slow: serde_json::from_value(serde_json::json!({
            "seen": slow, "lost": 0, "complete": slow, "span_ns": wait_ns
        }))
        .unwrap(),
        budget_totals: vec![
            Share { share: ShareKind::Idle, ns: wait_ns / 10 * 6, who: None },
            Share { share: ShareKind::NetRxAhead, ns: wait_ns / 10 * 4, who: None },
        ],
        ..Measurement::default()
    }
}

/// What is reported as a warning or worse.
fn alarms(now: &Host, then: Option<&Host>, measured: Option<&Measurement>) -> Vec<String> {
    let diagnosis = diagnose(now, then, measured);
    let serious = diagnosis.findings.iter().filter(|finding| finding.severity > Severity::Info);
    serious
        .map(|f| format!("{:?} [{}] {}: {:?}", f.severity, f.check, f.title, f.evidence))
        .collect()
}

#[test]
fn healthy_hosts_are_quiet() {
    let mut said = Vec::new();
    for shape in shapes() {
        let (then, now) = (host(shape, 86_400), host(shape, 86_400 + INTERVAL_S));
        let measured = measurement(shape);
        for (what, alarms) in [
            ("measured", alarms(&now, Some(&then), Some(&measured))),
            ("counted", alarms(&now, Some(&then), None)),
            ("since boot", alarms(&now, None, None)),
        ] {
            said.extend(alarms.into_iter().map(|alarm| format!("{}, {what}: {alarm}", shape.name)));
        }
    }
    assert!(said.is_empty(), "{}", said.join("\n"));
}

#[test]
fn hosts_that_are_lived_in_are_quiet() {
    let mut said = Vec::new();
    for shape in shapes() {
        let now = lived_in(shape, 86_400 + INTERVAL_S);
        let then = lived_in(shape, 86_400);
        let measured = measurement(shape);
        for (what, alarms) in [
            ("measured", alarms(&now, Some(&then), Some(&measured))),
            ("counted", alarms(&now, Some(&then), None)),
            ("since boot", alarms(&now, None, None)),
        ] {
            said.extend(alarms.into_iter().map(|alarm| format!("{}, {what}: {alarm}", shape.name)));
        }
    }
    assert!(said.is_empty(), "{}", said.join("\n"));
}

/// The same habits are faults where they cost something.
#[test]
fn habits_that_cost_something_are_not_quiet() {
    let busy = shapes()[1];
    let then = lived_in(busy, 86_400);
    let mut silent = Vec::new();
    let mut expect = |check: &str, fault: &dyn Fn(&mut Host)| {
        let mut now = lived_in(busy, 86_400 + INTERVAL_S);
        fault(&mut now);
        let said = alarms(&now, Some(&then), None);
        if !said.iter().any(|alarm| alarm.contains(&format!("[{check}]"))) {
            silent.push(format!("{check}: {said:?}"));
        }
    };
    let add = |counts: &mut BTreeMap<String, u64>, name: &str, more: u64| {
        *counts.entry(name.to_owned()).or_default() += more;
    };
    expect("driver_discards", &|now| {
        let nic = &mut now.nics[0];
        add(&mut nic.statistics, "rx_dropped", 40_000);
        add(nic.driver_counters.as_mut().unwrap(), "rx_out_of_buffer", 40_000);
    });
    expect("pcie_link", &|now| add(&mut now.nics[0].statistics, "rx_bytes", 30_000_000_000));
    expect("offloads_off", &|now| {
        now.sysctls.insert("net.ipv4.ip_forward".to_owned(), "0".to_owned());
    });
    expect("bond_hash", &|now| {
        let port = now.nics.iter_mut().find(|nic| nic.name == "bp0").unwrap();
        add(&mut port.statistics, "tx_dropped", 5_000);
    });
    expect("autonuma_pinning", &|now| {
        add(&mut now.counters, "vm.numa_pages_migrated", 20_000);
    });
    expect("isolated_housekeeping", &|now| {
        let rare = now.irqs.iter_mut().find(|irq| irq.irq == IrqNumber(500)).unwrap();
        *rare.counts.get_mut(&CpuId(busy.cpus - 1)).unwrap() += 2_000;
    });
    expect("net_threads_off_node", &|now| {
        let tap = now.nics.iter_mut().find(|nic| nic.name == "vnet0").unwrap();
        add(&mut tap.statistics, "tx_packets", 50_000);
    });
    expect("cpu_power", &|now| {
        now.power.throttle_counts = BTreeMap::from([(CpuId(0), 100_000)]);
    });
    expect("ksoftirqd_starved", &|now| {
        let thread = now.net_threads.iter_mut().find(|t| t.comm == "ksoftirqd/0").unwrap();
        *thread.wait_ns.as_mut().unwrap() += 2_000_000_000;
    });
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}

#[test]
fn the_same_hosts_with_a_fault_are_not() {
    let busy = shapes()[1];
    let healthy = || (host(busy, 86_400), host(busy, 86_400 + INTERVAL_S), measurement(busy));
    let mut silent = Vec::new();
    let mut expect = |fault: &str, check: &str, said: Vec<String>| {
        if !said.iter().any(|alarm| alarm.contains(&format!("[{check}]"))) {
            silent.push(format!("{fault}: {said:?}"));
        }
    };
    let (then, mut now, measured) = healthy();
    *now.nics[0].statistics.get_mut("rx_missed_errors").unwrap() += 40_000;
    expect("1% lost by the NIC", "nic_drops", alarms(&now, Some(&then), Some(&measured)));
    let (then, mut now, measured) = healthy();
    *now.counters.get_mut("Udp.RcvbufErrors").unwrap() += 5_000;
    expect("full sockets", "socket_buffers", alarms(&now, Some(&then), Some(&measured)));
    let (then, mut now, measured) = healthy();
    for irq in &mut now.irqs {
        irq.effective_affinity = Some([CpuId(busy.cpus - 1)].into_iter().collect());
    }
    expect(
        "interrupts on another node",
        "nic_irq_node",
        alarms(&now, Some(&then), Some(&measured)),
    );
    let (then, mut now, measured) = healthy();
    now.cgroups[0].throttled_periods = Some(then.cgroups[0].throttled_periods.unwrap() + 8);
    expect("a throttled group", "cgroup_throttling", alarms(&now, Some(&then), Some(&measured)));
    let (then, mut now, measured) = healthy();
    *now.counters.get_mut("TcpExt.ListenDrops").unwrap() += 5_000;
    expect("a full accept queue", "listen_overflows", alarms(&now, Some(&then), Some(&measured)));
    let (then, mut now, measured) = healthy();
    *now.counters.get_mut("Tcp.RetransSegs").unwrap() += now.counters["Tcp.OutSegs"] / 50;
    expect("a lossy path", "tcp_retransmissions", alarms(&now, Some(&then), Some(&measured)));
    let (then, mut now, _) = healthy();
    now.owners[0].cpu_ticks = Some(now.owners[0].cpu_ticks.unwrap() + 400);
    expect("a busy reader on the far node", "reader_placement", alarms(&now, Some(&then), None));
    let (then, now, mut measured) = healthy();
    let span = &mut measured.spans[0];
    span.buckets = vec![(900, span.count * 9 / 10), (3_000_000, span.count / 10)];
    span.p99_ns = Some(3_000_000);
    span.p999_ns = Some(3_000_000);
    expect("a tail of a tenth", "latency_tail", alarms(&now, Some(&then), Some(&measured)));
    let (then, mut now, measured) = healthy();
    for time in &mut now.cpu_time {
        time.steal = Some(200);
        time.idle -= 200;
    }
    now.kernel.virtualisation = Some("kvm".to_owned());
    expect("stolen time", "cpu_steal", alarms(&now, Some(&then), Some(&measured)));
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}
