//! What `measure stages` and `diagnose` print, as text and JSON, as files in `golden/`.

mod golden_files;

use golden_files::{golden, golden_json};
use nearpath_diagnose::*;
use nearpath_host::{CpuId, NodeId};
use nearpath_instruments::*;
use nearpath_views::text;

fn span(direction: Direction, from: &str, to: &str, buckets: &[(u64, u64)]) -> Span {
    let count = buckets.iter().map(|bucket| bucket.1).sum();
    Span {
        direction,
        from: from.into(),
        to: to.into(),
        count,
        min_ns: Some(2100),
        p50_ns: Some(9000),
        p90_ns: Some(31_500),
        p99_ns: (count > 100).then_some(62_000),
        p999_ns: None,
        max_ns: buckets.last().map(|bucket| bucket.0),
        total_ns: 1_000_000,
        other_cpu: Some(0.425),
        other_llc: Some(0.425),
        other_node: None,
        buckets: buckets.to_vec(),
        places: vec![Place {
            from_cpu: CpuId(0),
            to_cpu: CpuId(4),
            from_node: Some(NodeId(0)),
            to_node: None,
            count,
        }],
    }
}

fn measurement() -> Measurement {
    Measurement {
        schema: MEASUREMENT_SCHEMA,
        duration_s: 10.0,
        filter: "--dev eth0 --proto tcp".into(),
        packets: Packets {
            started: 1000,
            completed: 900,
            dropped: 60,
            abandoned: 30,
            collided: 10,
            sampled_out: 7,
        },
        events_lost: 3,
        cost: Some(Cost { ns_per_packet: 312.4, ns_per_event: 44.9, cpu_percent: 0.71 }),
        spans: vec![
            span(
                Direction::Rx,
                "netif_rx",
                "netif_receive_skb",
                &[(800, 3), (3_000, 400), (15_000, 500), (8_300_000, 2)],
            ),
            span(Direction::Rx, "sched_waking", "sched_switch", &[(9_000, 40)]),
            span(Direction::Tx, "net_dev_queue", "net_dev_xmit", &[(2_400, 870)]),
        ],
        not_observable: ["qdisc_enqueue", "qdisc_dequeue"]
            .map(|stage| NotObservable {
                direction: Some(Direction::Tx),
                stage: stage.into(),
                reason: "this kernel has no such tracepoint".into(),
            })
            .into(),
    }
}

fn change(before: &str, after: &str, alternative: bool) -> ProposedChange {
    ProposedChange {
        target: "/sys/class/net/eth0/queues/rx-0/rps_cpus".into(),
        before: Some(before.into()),
        after: after.into(),
        why: "These CPUs are on the NIC's node.".into(),
        alternative,
    }
}

fn diagnosis() -> Diagnosis {
    let unchecked =
        |check: &str, reason: &str| NotChecked { check: check.into(), reason: reason.into() };
    Diagnosis {
        schema: DIAGNOSIS_SCHEMA,
        findings: vec![
            Finding {
                check: "rps_placement".into(),
                severity: Severity::Critical,
                title: "RPS of eth0 sends packets to node 1".into(),
                evidence: vec!["42.5 % of 905 packets changed CPU.".into(), "\u{1b}[2J".into()],
                cost: FindingCost {
                    seconds_per_second: Some(0.123),
                    share_percent: Some(42.5),
                    per_packet_ns: Some(12_300),
                },
                changes: vec![change("f0", "0f", false), change("f0", "00", true)],
            },
            Finding {
                check: "irqbalance".into(),
                severity: Severity::Info,
                title: "irqbalance runs".into(),
                evidence: Vec::new(),
                cost: FindingCost::default(),
                changes: Vec::new(),
            },
        ],
        not_checked: vec![
            unchecked("xps", "no transmit queue is known"),
            unchecked("rss", "no transmit queue is known"),
        ],
        host: HostSummary {
            kernel: Some("6.8.0".into()),
            virtualisation: Some("kvm".into()),
            online_cpus: 8,
            packages: 2,
            nodes: 2,
            llcs: 2,
            nics: vec!["eth0 mlx5_core node 0, 2 rx queues".into()],
        },
        measurement: Some(measurement()),
    }
}

#[test]
fn a_measurement() {
    golden("measurement.txt", &text::measurement(&measurement()));
    golden_json("measurement.json", &measurement());
    let nothing = Measurement { duration_s: 1.0, ..Measurement::default() };
    golden("measurement-empty.txt", &text::measurement(&nothing));
}

#[test]
fn a_diagnosis() {
    golden("diagnosis.txt", &text::diagnosis(&diagnosis()));
    golden_json("diagnosis.json", &diagnosis());
    let facts = Diagnosis { findings: Vec::new(), measurement: None, ..diagnosis() };
    golden("diagnosis-facts.txt", &text::diagnosis(&facts));
}
