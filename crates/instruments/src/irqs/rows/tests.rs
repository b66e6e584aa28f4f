//! Rows of synthetic machines.

use super::*;
use nearpath_host::{Root, Wanted};
use nearpath_model::{Counters, Host, QueuePackets};
use nearpath_testing::trees::{Layout, Machine, Nic};

const QUEUES: u32 = 4;
const FIRST_IRQ: u32 = 100;
const INDEX: IfIndex = IfIndex(1);

/// A machine with four CPUs whose NIC has had this many interrupts per queue: a CPU and a count.
fn machine(counts: [(u32, u64); QUEUES as usize]) -> Machine {
    let nic = Nic::pci("eth0", "igb", "0000:5e:00.0").queues(QUEUES, FIRST_IRQ);
    let nic = (0..).zip(counts).fold(nic, |nic, (number, (cpu, count))| {
        nic.queue(number, |queue| queue.counts = [(cpu, count)].into())
    });
    Machine::regular(Layout { packages: 1, cores: 4, ..Layout::default() }).nic(nic)
}

fn read(machine: &Machine) -> (Host, Counters) {
    let tree = machine.write();
    let root = Root::tree(tree.path()).unwrap();
    (
        nearpath_host::read(&root, &Wanted::default()).unwrap(),
        nearpath_host::read_counters(&root, &[]),
    )
}

/// The state after a second: the readings, and the assignments.
fn after(first: &Machine, then: &Machine) -> (Readings, Links) {
    let (host, counters) = read(first);
    let mut readings = Readings::new(&counters);
    let mut links = Links::default();
    links.enter(&host.nics, &readings);
    readings.add(&read(then).1, 1.0);
    (readings, links)
}

fn counted<'a>(
    readings: &'a Readings,
    links: &'a Links,
    instances: &'a [Instance],
    sources: &'a BTreeMap<IfIndex, PacketSource>,
) -> Counted<'a> {
    Counted { readings, links, instances: Some(instances), sources, cpus: 4, duration_s: 2.0 }
}

fn instance(napi_id: u32, irq: Option<u32>, work: u64) -> Instance {
    let polls = Polls { polls: work / 2, work, budget: 64 * work, full_polls: 0 };
    Instance {
        napi_id,
        ifindex: Some(INDEX),
        device: "eth0".to_owned(),
        irq: irq.map(IrqNumber),
        per_cpu: [(CpuId(1), polls)].into(),
        ..Instance::default()
    }
}

#[test]
fn a_row_for_each_queue_with_its_interrupts_by_cpu() {
    let (readings, links) = after(
        &machine([(0, 5), (1, 7), (2, 9), (3, 1)]),
        &machine([(0, 642_036), (1, 7), (0, 4), (3, 1)]),
    );
    let sources = BTreeMap::new();
    let (rows, nics) = counted(&readings, &links, &[], &sources).queues();
    let table: Vec<_> = rows
        .iter()
        .map(|row| (row.queue.unwrap().0, row.irq.unwrap().0, row.per_cpu.clone()))
        .collect();
    assert_eq!(table[0], (0, 100, vec![642_031, 0, 0, 0]));
    assert_eq!(table[1], (1, 101, vec![0; 4]));
    // Queue 2 had 9 on CPU 2, now none: the interrupt was re-created.
    assert_eq!(table[2], (2, 102, vec![4, 0, 0, 0]));
    assert_eq!(rows[0].name.as_deref(), Some("eth0-TxRx-0"));
    assert_eq!((rows[0].direction, rows[0].interrupts), (Serves::Both, 642_031));
    assert!((rows[0].interrupts_per_s - 321_015.5).abs() < 1e-6);
    assert_eq!(rows.len(), 4);
    // No polls, so no deliveries.
    assert_eq!((nics[0].rx_imbalance, rows[0].rx_packets), (None, Some(0)));
    assert_eq!(counted(&readings, &links, &[], &sources).others(), []);
}

#[test]
fn napi_is_linked_by_the_interrupt_that_it_was_polled_for() {
    let same = machine([(0, 5), (1, 7), (2, 9), (3, 1)]);
    let (readings, links) = after(&same, &same);
    assert!(!links.knows_napi());
    let instances = [instance(8193, Some(100), 30), instance(8194, Some(102), 10)];
    let sources = BTreeMap::new();
    let counted = counted(&readings, &links, &instances, &sources);
    let (rows, nics) = counted.queues();
    assert_eq!(rows[0].napi.unwrap().work, 30);
    let packets: Vec<_> = rows.iter().map(|row| row.rx_packets).collect();
    assert_eq!(packets, [Some(30), Some(0), Some(10), Some(0)]);
    assert_eq!(nics[0].rx_imbalance, Some(3.0));
    assert_eq!(nics[0].packets_from, Some(PacketSource::Napi));
    let queues: Vec<_> = counted.napi(true).iter().map(|napi| napi.queue.map(|q| q.0)).collect();
    assert_eq!(queues, [Some(0), Some(2)]);
}

#[test]
fn without_evidence_no_queue_is_reported_as_idle() {
    let same = machine([(0, 5), (1, 7), (2, 9), (3, 1)]);
    let (readings, links) = after(&same, &same);
    let instances = [instance(8193, Some(100), 30), instance(8194, None, 10)];
    let sources = BTreeMap::new();
    let (rows, _) = counted(&readings, &links, &instances, &sources).queues();
    let packets: Vec<_> = rows.iter().map(|row| row.rx_packets).collect();
    assert_eq!(packets, [Some(30), None, None, None]);
    // Programs that were refused give no information.
    let unseen = Counted { instances: None, ..counted(&readings, &links, &[], &sources) };
    assert!(unseen.queues().0.iter().all(|row| row.rx_packets.is_none() && row.napi.is_none()));
}

#[test]
fn napi_ids_of_the_kernel_take_precedence_over_evidence() {
    let (mut host, counters) = read(&machine([(0, 0); 4]));
    for (id, queue) in (9000..).zip(&mut host.nics[0].rx_queues) {
        queue.napi_id = Some(id);
    }
    for (id, queue) in (9000..).zip(&mut host.nics[0].tx_queues) {
        queue.napi_id = Some(id);
    }
    let (readings, mut links) = (Readings::new(&counters), Links::default());
    links.enter(&host.nics, &readings);
    assert!(links.knows_napi());
    let instances = [instance(9003, Some(100), 8)];
    let sources = BTreeMap::new();
    let (rows, _) = counted(&readings, &links, &instances, &sources).queues();
    let with_polls: Vec<_> = rows.iter().filter(|row| row.napi.is_some()).collect();
    assert_eq!(with_polls.len(), 1);
    assert_eq!(with_polls[0].queue, Some(QueueId(3)));
}

#[test]
fn packet_counts_of_the_driver_take_precedence() {
    let same = machine([(0, 0); 4]);
    let (host, mut counters) = read(&same);
    let packets = |counts: [u64; 4]| QueuePackets {
        source: PacketSource::Driver,
        rx: (0..).map(QueueId).zip(counts).collect(),
        tx: BTreeMap::new(),
    };
    counters.queue_packets = [(INDEX, packets([10, 10, 10, 10]))].into();
    let (mut readings, mut links) = (Readings::new(&counters), Links::default());
    links.enter(&host.nics, &readings);
    counters.queue_packets = [(INDEX, packets([40, 20, 10, 10]))].into();
    readings.add(&counters, 1.0);
    let (instances, sources) =
        ([instance(1, Some(100), 7)], [(INDEX, PacketSource::Driver)].into());
    let (rows, nics) = counted(&readings, &links, &instances, &sources).queues();
    let packets: Vec<_> = rows.iter().map(|row| (row.rx_packets, row.tx_packets)).collect();
    assert_eq!(packets, [(Some(30), None), (Some(10), None), (Some(0), None), (Some(0), None)]);
    assert_eq!((nics[0].rx_imbalance, nics[0].tx_imbalance), (Some(3.0), None));
    assert_eq!(nics[0].packets_from, Some(PacketSource::Driver));
}

#[test]
fn interrupts_of_other_devices_are_separate() {
    let table = |disk: u64| {
        format!(
            "  CPU0 CPU3\n 9: {disk} 2 PCI-MSIX-0000:00:02.0 1-edge nvme0q1\n 10: 1 1 chip 1-edge idle\n"
        )
    };
    let first = machine([(0, 0); 4]).file("/proc/interrupts", table(5));
    let (readings, links) = after(&first, &machine([(0, 0); 4]).file("/proc/interrupts", table(8)));
    let others = counted(&readings, &links, &[], &BTreeMap::new()).others();
    assert_eq!(others.len(), 1);
    assert_eq!((others[0].irq.0, others[0].name.as_str()), (9, "nvme0q1"));
    assert_eq!(others[0].per_cpu, [3, 0, 0, 0]);
}

#[test]
fn a_thousand_cpus_and_queues_are_rows_of_as_many_columns() {
    let made = |count: u64| {
        let nic = Nic::pci("eth0", "mlx5_core", "0000:5e:00.0").queues(64, FIRST_IRQ);
        let nic = (0..64).fold(nic, |nic, i| {
            nic.queue(i, |queue| queue.counts = [(16 * i as u32, count)].into())
        });
        Machine::regular(Layout { packages: 8, cores: 64, threads: 2, ..Layout::default() })
            .nic(nic)
    };
    let (readings, links) = after(&made(3), &made(10));
    let sources = BTreeMap::new();
    let all = Counted { cpus: 1024, ..counted(&readings, &links, &[], &sources) };
    let (rows, _) = all.queues();
    assert_eq!(rows.len(), 64);
    for row in rows {
        let cpu = 16 * row.queue.unwrap().0 as usize;
        assert_eq!((row.per_cpu.len(), row.per_cpu[cpu], row.interrupts), (1024, 7, 7));
    }
}
