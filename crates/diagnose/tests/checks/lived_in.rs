//! Hosts that are lived in: with a bond, Open vSwitch, guests, an isolated CPU, a busy server. What is usual there may
//! not warn, and must where it costs something.

use crate::healthy::alarms;
use crate::hosts::{INTERVAL_S, Shape, host, measurement, shapes};
use nearpath_model::*;
use std::collections::BTreeMap;

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
        overlimits: None,
        scheduler: None,
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
            byte_limit: None,
        });
    }
    host
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
