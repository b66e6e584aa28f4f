//! What `measure irqs` prints, as text and JSON, as files in `golden/`.

mod golden_files;

use golden_files::{golden, golden_json};
use nearpath_model::irqs::*;
use nearpath_model::{CpuId, EventCost, IrqNumber, NodeId, PacketSource, QueueId, Unknown};
use nearpath_views::text;

fn queue(number: u32, per_cpu: &[u64]) -> QueueInterrupts {
    let interrupts = per_cpu.iter().sum();
    QueueInterrupts {
        nic: "eth0".into(),
        queue: Some(QueueId(number)),
        irq: Some(IrqNumber(59 + number)),
        name: Some(format!("eth0-TxRx-{number}")),
        per_cpu: per_cpu.to_vec(),
        interrupts,
        interrupts_per_s: interrupts as f64 / 10.0,
        rx_packets: Some(8 * interrupts),
        tx_packets: Some(interrupts),
        napi: (interrupts > 0).then_some(Polls {
            polls: interrupts,
            work: 8 * interrupts,
            budget: 64 * interrupts,
            full_polls: interrupts / 50,
        }),
        ..QueueInterrupts::default()
    }
}

fn cpu(number: u32, interrupts: u64) -> CpuInterrupts {
    CpuInterrupts {
        node: Some(NodeId(number / 2)),
        online: true,
        interrupts,
        irq_ns: Some(12_000_000 + 900 * interrupts),
        softirq_ns: Some(5_000_000 + 4_000 * interrupts),
        hard_ns: [("device".into(), 900 * interrupts), ("timer".into(), 12_000_000)].into(),
        soft_ns: [("NET_RX".into(), 4_000 * interrupts), ("TIMER".into(), 5_000_000)].into(),
        processed: Some(8 * interrupts),
        dropped: Some(0),
        time_squeeze: Some(interrupts / 100_000),
        received_rps: Some(interrupts / 3),
        flow_limit: Some(0),
        backlog: Some(0),
        backlog_max: Some(interrupts / 10_000),
        backlog_polls: Some(Polls::default()),
        ..CpuInterrupts::new(CpuId(number))
    }
}

/// The table of a host with four queues, each served by a CPU, and most of it by one.
fn measurement() -> IrqMeasurement {
    let per_cpu = [642_031, 312_611, 61, 0];
    let mut queues: Vec<_> = (0..4)
        .map(|number| {
            let mut counts = [0; 4];
            counts[number as usize] = per_cpu[number as usize];
            queue(number, &counts)
        })
        .collect();
    let tx = QueueInterrupts { direction: Serves::Tx, rx_packets: None, ..queue(4, &[0; 4]) };
    queues.push(QueueInterrupts { nic: "eth1".into(), tx_packets: None, ..tx });
    IrqMeasurement {
        schema: IRQ_MEASUREMENT_SCHEMA,
        duration_s: 10.0,
        queues,
        nics: vec![NicBalance {
            nic: "eth0".into(),
            packets_from: Some(PacketSource::Driver),
            rx_imbalance: Some(2.69),
            tx_imbalance: Some(2.69),
        }],
        irqs: vec![OtherInterrupts {
            irq: IrqNumber(36),
            name: "nvme0q1\u{1b}[2J".into(),
            per_cpu: vec![0, 55, 0, 1],
        }],
        arch_irqs: vec![ArchInterrupts {
            name: "CAL".into(),
            description: Some("Function call interrupts".into()),
            per_cpu: vec![4, 3, 2, 1],
        }],
        softirqs: [
            ("NET_RX".into(), vec![640_000, 312_000, 60, 0]),
            ("NET_TX".into(), vec![10, 0, 0, 0]),
        ]
        .into(),
        cpus: (0..4).map(|number| cpu(number, per_cpu[number as usize])).collect(),
        napi: vec![NapiPolls {
            device: "eth0".into(),
            netns: 4_026_531_840,
            napi_id: Some(8193),
            queue: Some(QueueId(0)),
            polls: Polls {
                polls: 642_031,
                work: 5_136_248,
                budget: 41_089_984,
                full_polls: 12_840,
            },
            per_cpu: vec![642_031, 0, 0, 0],
        }],
        priorities: None,
        events_lost: 2,
        cost: Some(EventCost { ns_per_event: 61.2, cpu_percent: 1.84 }),
        unknown: Vec::new(),
    }
}

#[test]
fn the_matrix_comes_first() {
    let m = measurement();
    golden("interrupts.txt", &text::interrupts(&m, None));
    golden_json("interrupts.json", &m);
}

/// PCP 3 has CPU 3 to itself but for a packet without a tag; PCP 5 is spread.
fn priorities() -> Priorities {
    let row = |priority, queue: Option<u32>, per_cpu: [u64; 4]| PriorityPackets {
        nic: "eth0".into(),
        priority,
        queue: queue.map(QueueId),
        packets: per_cpu.iter().sum(),
        per_cpu: per_cpu.to_vec(),
    };
    Priorities {
        by: PriorityField::Pcp,
        rows: vec![
            row(Some(3), None, [0, 0, 0, 10_000]),
            row(Some(5), Some(0), [40, 0, 0, 0]),
            row(Some(5), Some(1), [0, 60, 0, 0]),
            row(None, Some(2), [0, 0, 7000, 1]),
        ],
    }
}

#[test]
fn stray_packets_of_a_priority_show_at_once() {
    let m = IrqMeasurement { priorities: Some(priorities()), ..measurement() };
    golden("interrupts-priorities.txt", &text::interrupts(&m, None));
    golden_json("interrupts-priorities.json", &m);
    let narrow = text::interrupts(&m, Some(40));
    assert!(narrow.contains("RECEIVED-BY") && narrow.contains("cpu 2: 7000, cpu 3: 1"), "{narrow}");
    let by = Priorities { by: PriorityField::Dscp, rows: Vec::new() };
    let m = IrqMeasurement { priorities: Some(by), ..measurement() };
    let shown = text::interrupts(&m, None);
    assert!(shown.contains("received packets by DSCP") && shown.contains("\nnone\n"), "{shown}");
}

#[test]
fn a_narrow_terminal_has_the_cpus_of_each_queue() {
    let shown = text::interrupts(&measurement(), Some(40));
    assert!(shown.contains("TAKEN-BY") && shown.contains("cpu 0: 642031"), "{shown}");
    assert!(!shown.contains("cpu#"), "{shown}");
    // Columns give way, and it is said which.
    let shown = text::interrupts(&measurement(), Some(80));
    assert!(shown.lines().all(|line| line.chars().count() <= 90), "{shown}");
    golden("interrupts-80.txt", &shown);
}

#[test]
fn a_thousand_cpus_are_readable() {
    let of = |number: usize| {
        let mut counts = vec![0; 1024];
        counts[16 * number] = 1_000_000 - 1_000 * number as u64;
        counts[16 * number + 1] = 7;
        queue(number as u32, &counts)
    };
    let idle = (64..600).map(|number| queue(number, &vec![0; 1024]));
    let m = IrqMeasurement {
        queues: (0..64).map(of).chain(idle).collect(),
        cpus: (0..1024).map(|n| cpu(n, if n % 16 == 0 { 1_000_000 } else { 0 })).collect(),
        ..measurement()
    };
    let shown = text::interrupts(&m, None);
    golden("interrupts-1024.txt", &shown);
    assert!(shown.lines().count() < 150, "{}", shown.lines().count());
}

#[test]
fn what_is_not_known_is_not_made_up() {
    let unseen = |row: CpuInterrupts| CpuInterrupts {
        irq_ns: None,
        softirq_ns: None,
        hard_ns: Default::default(),
        soft_ns: Default::default(),
        received_rps: None,
        backlog: None,
        backlog_max: None,
        backlog_polls: None,
        ..row
    };
    let reason = "using BPF needs root (CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN)";
    let m = IrqMeasurement {
        queues: measurement()
            .queues
            .into_iter()
            .map(|q| QueueInterrupts { napi: None, ..q })
            .collect(),
        cpus: measurement().cpus.into_iter().map(unseen).collect(),
        napi: Vec::new(),
        cost: None,
        unknown: vec![Unknown {
            subject: "host".into(),
            fact: "time in interrupts and softirqs, NAPI polls".into(),
            reason: reason.into(),
        }],
        ..measurement()
    };
    golden("interrupts-unseen.txt", &text::interrupts(&m, None));
    golden("interrupts-empty.txt", &text::interrupts(&IrqMeasurement::default(), None));
}

#[test]
fn an_interval_is_a_line() {
    let before = IrqMeasurement { duration_s: 8.0, ..measurement() };
    let mut now = measurement();
    now.queues[1].per_cpu[1] += 4_000;
    now.cpus[1].interrupts += 4_000;
    now.cpus[1].softirq_ns = now.cpus[1].softirq_ns.map(|ns| ns + 500_000_000);
    let first = text::interrupts_line(&IrqMeasurement::default(), &before);
    let lines = [text::interrupts_heading(), first, text::interrupts_line(&before, &now)].concat();
    golden("interrupts-lines.txt", &lines);
}
