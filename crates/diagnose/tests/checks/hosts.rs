//! Healthy hosts, as noisy as real ones, and what was measured on them. They are built here and not in fixtures because the
//! largest has 1,024 CPUs.

use nearpath_model::*;
use std::collections::BTreeMap;

/// Seconds between the two readings.
pub const INTERVAL_S: u64 = 10;

/// What differs between the hosts.
#[derive(Clone, Copy)]
pub struct Shape {
    pub name: &'static str,
    pub cpus: u32,
    pub nodes: u32,
    pub queues: u32,
    pub packets_per_s: u64,
    pub hypervisor: &'static str,
    pub kind: NicKind,
    pub has_irqs: bool,
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

pub fn shapes() -> [Shape; 7] {
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
pub fn host(shape: Shape, seconds: u64) -> Host {
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
        Some(BTreeMap::from([("rx-usecs".to_owned(), 250), ("use-adaptive-rx".to_owned(), 1)]));
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
            ("TcpExt.TCPTimeouts".to_owned(), packets / 20_000),
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
            ("net.core.somaxconn".to_owned(), "4096".to_owned()),
            ("net.core.rmem_max".to_owned(), "212992".to_owned()),
            ("net.core.wmem_max".to_owned(), "212992".to_owned()),
            ("net.ipv4.tcp_rmem".to_owned(), "4096\t131072\t6291456".to_owned()),
            ("net.ipv4.tcp_wmem".to_owned(), "4096\t16384\t4194304".to_owned()),
            ("net.ipv4.tcp_mem".to_owned(), {
                // The kernel takes it from the memory: 256 MiB for each CPU.
                let pages = u64::from(shape.cpus) << 16;
                format!("{}\t{pages}\t{}", pages / 4 * 3, pages / 2 * 3)
            }),
            ("net.ipv4.tcp_sack".to_owned(), "1".to_owned()),
            ("net.ipv4.tcp_notsent_lowat".to_owned(), "4294967295".to_owned()),
            ("net.ipv4.tcp_congestion_control".to_owned(), "cubic".to_owned()),
            ("net.ipv4.tcp_available_congestion_control".to_owned(), "reno cubic bbr".to_owned()),
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

pub fn measurement(shape: Shape) -> Measurement {
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
