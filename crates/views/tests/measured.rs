//! What `measure stages` and `diagnose` print, as text and JSON, as files in `golden/`.

mod golden_files;

use golden_files::{golden, golden_json};
use nearpath_model::accepts::{
    ACCEPT_MEASUREMENT_SCHEMA, AcceptMeasurement, DistanceCounts, Listener,
};
use nearpath_model::locality::{Distances, LOCALITY_SCHEMA, Locality};
use nearpath_model::memory::NotAvailable;
use nearpath_model::tcp::TcpMeasurement;
use nearpath_model::vm::VmMeasurement;
use nearpath_model::*;
use nearpath_model::{CpuId, Detail, NodeId, QueueFile, SnapshotSummary, StageListing};
use nearpath_views::{json, svg, text};

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

fn path_latency(kind: PathKind, buckets: &[(u64, u64)]) -> PathLatency {
    let count = buckets.iter().map(|bucket| bucket.1).sum();
    let from = match kind {
        PathKind::ReceiveFromNic | PathKind::ForwardFromNic => "nic_rx",
        PathKind::Receive | PathKind::Forward => "irq_handler",
        _ => "net_dev_queue",
    };
    let above = |ns| {
        let count = buckets.iter().filter(|bucket| bucket.0 > ns).map(|bucket| bucket.1).sum();
        Above { ns, count, share: count as f64 / 883.0 }
    };
    PathLatency {
        kind,
        from: from.to_owned(),
        count,
        min_ns: Some(2100),
        p50_ns: Some(8_500),
        p90_ns: Some(8_600),
        p99_ns: (count > 100).then_some(101_000),
        p999_ns: None,
        max_ns: buckets.last().map(|bucket| bucket.0),
        total_ns: 40_000_000,
        above: [100_000, 1_000_000, 10_000_000].map(above).into(),
        other_cpu: Some(0.425),
        other_llc: Some(0.425),
        other_node: None,
        buckets: buckets.to_vec(),
    }
}

fn measurement() -> Measurement {
    Measurement {
        nic_stamps: None,
        into_guests: None,
        watch: None,
        clocks: None,
        schema: MEASUREMENT_SCHEMA,
        duration_s: 10.0,
        observed_s: None,
        limit_percent: None,
        filter: "--dev eth0 --proto tcp".into(),
        detail: Some(Detail::Full),
        stages: vec!["netif_rx".into(), "netif_receive_skb".into()],
        packets: Packets {
            started: 1000,
            completed: 900,
            dropped: 60,
            abandoned: 30,
            collided: 10,
            sampled_out: 7,
        },
        events_lost: 3,
        fallback: Some("attaching to fentry/ip_rcv: Operation not supported".to_owned()),
        cost: Some(Cost {
            ns_per_packet: 312.4,
            ns_per_event: 44.9,
            dispatch_ns: None,
            cpu_percent: 0.71,
        }),
        bucket_schema: histogram::SCHEMA,
        paths: vec![
            path_latency(PathKind::Receive, &[(8_700, 850), (102_000, 30), (8_900_000, 3)]),
            path_latency(PathKind::Transmit, &[(4_300, 17)]),
            path_latency(PathKind::KernelTransmit, &[(2_400, 4)]),
        ],
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
        drops: vec![StageDrop {
            direction: Direction::Rx,
            after: "netif_receive_skb".into(),
            reason: Some("SOCKET_RCVBUFF".into()),
            meaning: Some(
                "receive buffer full: the reader is too slow, or the buffer too small (SO_RCVBUF, \
                 net.core.rmem_default)"
                    .into(),
            ),
            function: "udp_queue_rcv_one_skb".into(),
            device: Some("eth0".into()),
            netns: Some(4_026_531_840),
            packets: 1,
        }],
        groups: Vec::new(),
        not_grouped: NotGrouped::default(),
        slow: Slow { seen: 2, lost: 1, complete: 1, span_ns: 2_400_000, paths_lost: 0 },
        outliers: vec![outlier(), later_outlier()],
        budget_totals: vec![
            hog(2_000_000),
            Share { share: ShareKind::NetRxAhead, ns: 300_000, who: None },
            Share { share: ShareKind::Unknown, ns: 100_000, who: None },
        ],
    }
}

fn hog(ns: u64) -> Share {
    let who = Culprit {
        comm: Some("backup".into()),
        pid: Some(4711),
        policy: Some("SCHED_FIFO".into()),
        prio: Some(50),
        ..Culprit::default()
    };
    Share { share: ShareKind::Task, ns, who: Some(who) }
}

fn outlier() -> Outlier {
    let irq = Culprit { irq: Some(33), ..Culprit::default() };
    Outlier {
        direction: Direction::Rx,
        from: "net_rx_raise".into(),
        to: "net_rx_entry".into(),
        span_ns: 1_600_000,
        from_cpu: CpuId(0),
        cpu: CpuId(4),
        node: Some(NodeId(1)),
        flow: Some("TCP 10.0.0.1:5000 > 10.0.0.2:80".into()),
        at_ns: 123_456_789,
        packets_meanwhile: 3,
        complete: true,
        budget: vec![hog(1_500_000), Share { share: ShareKind::Irq, ns: 100_000, who: Some(irq) }],
        packet: 1,
        path: path(),
    }
}

/// The same packet, slow once more.
fn later_outlier() -> Outlier {
    Outlier {
        from: "sched_waking".into(),
        to: "sched_switch".into(),
        span_ns: 800_000,
        from_cpu: CpuId(4),
        at_ns: 124_261_989,
        packets_meanwhile: 0,
        complete: false,
        budget: [(500_000, ShareKind::Unknown), (300_000, ShareKind::Own)]
            .map(|(ns, share)| Share { share, ns, who: None })
            .into(),
        ..outlier()
    }
}

fn path() -> Vec<Passed> {
    let passed = |stage: &str, cpu, at_ns| Passed {
        stage: stage.into(),
        cpu: CpuId(cpu),
        node: Some(NodeId(cpu / 4)),
        at_ns,
    };
    vec![
        passed("irq_handler", 0, 121_855_700),
        passed("net_rx_raise", 0, 121_856_789),
        passed("net_rx_entry", 4, 123_456_789),
        passed("sk_data_ready", 4, 123_460_789),
        passed("sched_waking", 4, 123_461_989),
        passed("sched_switch", 4, 124_261_989),
        passed("sock_recv", 4, 124_263_000),
    ]
}

fn change(before: &str, after: &str, alternative: bool) -> ProposedChange {
    ProposedChange {
        target: SettingFile::queue("eth0", QueueId(0), QueueFile::RpsCpus).into(),
        before: Some(before.into()),
        after: after.into(),
        why: "These CPUs are on the NIC's node.".into(),
        alternative,
        netns: None,
    }
}

fn packets_and_their_cpus() -> Locality {
    let of = |same_cpu, same_llc| Distances {
        packets: same_cpu + same_llc,
        same_cpu,
        same_llc,
        ..Distances::default()
    };
    let (rx, tx) = (of(300_000, 900_000), of(1_200_000, 100));
    Locality { schema: LOCALITY_SCHEMA, duration_s: 10.0, rx, tx, ..Locality::default() }
}

/// Of more listeners than are shown.
fn connections() -> AcceptMeasurement {
    let listener = |port: u64| {
        let places =
            DistanceCounts { accepts: 10 * port, same_cpu: 5 * port, ..DistanceCounts::default() };
        let local = format!("10.0.0.1:{port}");
        Listener { local, netns: 1, places, workers: Vec::new() }
    };
    let listeners = (80..90).map(listener).collect();
    let schema = ACCEPT_MEASUREMENT_SCHEMA;
    AcceptMeasurement { schema, duration_s: 10.0, listeners, ..AcceptMeasurement::default() }
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
                evidence: vec!["42.5% of 905 packets changed CPU.".into(), "\u{1b}[2J".into()],
                cost: FindingCost {
                    seconds_per_second: Some(0.123),
                    share_percent: Some(42.5),
                    per_packet_ns: Some(12_300),
                    share_of: "905 packets".into(),
                    max_ns: Some(656_000),
                },
                subjects: vec![Subject::Nic("eth0".into())],
                whose: nearpath_model::Whose::Host,
                symptoms: vec![
                    Finding::new(Severity::Info, "CPU 1 does 97.7% of the receive work")
                        .evidence("97.7% of 905 NET_RX runs were on CPU 1."),
                ],
                changes: vec![change("f0", "0f", false), change("f0", "00", true)],
                manual: Vec::new(),
            },
            Finding {
                check: "irqbalance".into(),
                severity: Severity::Info,
                title: "irqbalance runs".into(),
                evidence: Vec::new(),
                cost: FindingCost::default(),
                subjects: Vec::new(),
                whose: nearpath_model::Whose::Host,
                symptoms: Vec::new(),
                changes: Vec::new(),
                manual: Vec::new(),
            },
        ],
        not_checked: vec![
            unchecked("xps", "no transmit queue is known"),
            unchecked("rss", "no transmit queue is known"),
        ],
        workers: None,
        vm: None,
        checks: 44,
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
        other_look: Some(Measurement {
            observed_s: Some(1.25),
            detail: Some(Detail::Coarse),
            paths: Vec::new(),
            spans: Vec::new(),
            outliers: Vec::new(),
            ..measurement()
        }),
        locality: Some(packets_and_their_cpus()),
        accepts: Some(connections()),
        tcp: Some(TcpMeasurement { total: 3, ..TcpMeasurement::default() }),
        memory: None,
    }
}

#[test]
fn a_measurement() {
    golden("measurement.txt", &text::measurement(&measurement(), None));
    golden_json("measurement.json", &measurement());
    let nothing = Measurement { duration_s: 1.0, ..Measurement::default() };
    golden("measurement-empty.txt", &text::measurement(&nothing, None));
    let sliced = Measurement { observed_s: Some(0.0623), ..nothing };
    golden("measurement-slices.txt", &text::measurement(&sliced, None));
}

#[test]
fn a_measurement_by_group() {
    let group = |name: &str, packets, spans: &[Span]| Group {
        per: Per::Process,
        name: name.into(),
        packets,
        paths: measurement().paths.into_iter().take(spans.len()).collect(),
        spans: spans.iter().map(|span| Span { places: Vec::new(), ..span.clone() }).collect(),
    };
    let whole = measurement();
    let unknown = Span { min_ns: None, max_ns: None, ..whole.spans[1].clone() };
    let groups = vec![
        group("nginx/4711", 700, &whole.spans),
        group("\u{1b}[2Jevil/1", 200, &whole.spans[..1]),
        group("no process", 60, &[]),
        group("others", 40, &[unknown]),
    ];
    let split = Measurement {
        groups,
        not_grouped: NotGrouped { packets: 12, spans: 3 },
        outliers: Vec::new(),
        slow: Slow::default(),
        ..whole
    };
    let shown = text::measurement(&split, None);
    let start = shown.find("by process").unwrap();
    let end = shown.find("RX netif_rx -> netif_receive_skb:").unwrap();
    golden("measurement-groups.txt", &shown[start..end]);
    golden_json("measurement-groups.json", &split.groups);
}

#[test]
fn latencies_along_the_path_as_a_chart() {
    golden("spans.svg", &svg::spans(&measurement()));
    let none = svg::spans(&Measurement::default());
    assert!(none.contains("of 0 packets"), "{none}");
}

#[test]
fn a_diagnosis() {
    golden("diagnosis.txt", &text::diagnosis(&diagnosis(), None));
    golden("verdict.txt", &text::verdict(&diagnosis(), Some("nearpath fix"), text::SCREEN_LINES));
    let mut long = diagnosis();
    let finding = long.findings[0].clone();
    long.findings = vec![finding; 30];
    let shown = text::verdict(&long, Some("nearpath fix"), text::SCREEN_LINES);
    assert!(shown.lines().count() <= 24 && shown.contains("27 more critical"), "{shown}");
    golden("findings.txt", &text::findings(&diagnosis()));
    golden_json("diagnosis.json", &diagnosis());
    let facts = Diagnosis {
        findings: Vec::new(),
        measurement: None,
        other_look: None,
        locality: None,
        accepts: None,
        tcp: None,
        ..diagnosis()
    };
    golden("diagnosis-facts.txt", &text::diagnosis(&facts, None));
}

/// Without colours.
fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

/// The spans as shown in a terminal of this width.
fn at_width(measurement: &Measurement, width: usize) -> String {
    let shown = plain(&text::measurement(measurement, Some(width)));
    let table: Vec<&str> = shown.lines().take_while(|line| !line.ends_with(':')).collect();
    for line in table.iter().skip(6) {
        assert!(line.chars().count() <= width, "{width}: {line}");
    }
    table.join("\n") + "\n"
}

#[test]
fn a_measurement_fits_its_terminal() {
    let wide = text::measurement(&measurement(), None);
    assert_eq!(text::measurement(&measurement(), Some(200)), wide);
    golden("measurement-100.txt", &at_width(&measurement(), 100));
    golden("measurement-80.txt", &at_width(&measurement(), 80));
    // Nothing that is left gives way: it is then wider than the terminal, and whole.
    let narrow = text::measurement(&measurement(), Some(10));
    assert!(narrow.contains("  -> netif_receive_skb    905  9.00µs  62.0µs"), "{narrow}");
}

#[test]
fn what_no_packet_changed_is_said_once() {
    let mut one_node = measurement();
    for span in &mut one_node.spans {
        (span.other_llc, span.other_node) = (Some(0.0), Some(0.0));
    }
    for path in &mut one_node.paths {
        (path.other_llc, path.other_node) = (Some(0.0), Some(0.0));
    }
    let shown = text::measurement(&one_node, None);
    assert!(!shown.contains("OTHER-LLC") && !shown.contains("OTHER-NODE"), "{shown}");
    assert!(shown.contains("no packet went to another LLC or node"), "{shown}");
    one_node.spans[1].other_llc = None;
    let shown = text::measurement(&one_node, None);
    assert!(shown.contains("OTHER-LLC") && shown.contains("to another node between"), "{shown}");
}

#[test]
fn paths_that_begin_at_the_nic_are_apart_and_say_how_many_they_are() {
    let stamped = path_latency(PathKind::ReceiveFromNic, &[(9_500, 40), (202_000, 10)]);
    let mut measured = measurement();
    measured.paths.insert(0, stamped);
    measured.nic_stamps = Some(NicStamps { used: 50, too_old: 2, ..NicStamps::default() });
    let shown = anstream::adapter::strip_str(&text::measurement(&measured, None)).to_string();
    let first = shown.lines().next().unwrap();
    assert!(first.starts_with("end to end: receive from the NIC p50"), "{first}");
    assert!(
        first.contains("(50 packets); receive p50") && first.contains("(883 packets)"),
        "{first}"
    );
    assert!(shown.contains("50 packets begin at the NIC; not used: 2 more than 1 s"), "{shown}");
    assert!(shown.contains("\nreceive from the NIC    nic_rx "), "{shown}");
}

#[test]
fn the_way_into_guests_follows_the_stages() {
    let missing = NotAvailable {
        what: "the path into virtual machines".into(),
        reason: "this kernel has no types of its module kvm".into(),
    };
    let guests =
        VmMeasurement { started: 7, not_available: vec![missing], ..VmMeasurement::default() };
    let measured = Measurement { into_guests: Some(guests), ..measurement() };
    let shown = anstream::adapter::strip_str(&text::measurement(&measured, None)).to_string();
    let (stages, guests) = shown.split_once("\ninto the guests\n").expect("a table of its own");
    assert!(stages.contains("receive path") && !guests.contains("receive path"), "{shown}");
    assert!(guests.starts_with("packets:      7 at a tap, 0 reached a guest\n"), "{guests}");
    assert!(
        guests.contains("the path into virtual machines: this kernel has no types"),
        "{guests}"
    );
}

#[test]
fn the_stages() {
    let stage = |direction, stage, function, attach: Option<&str>| StageListing {
        direction,
        stage,
        detail: if stage == "netif_rx" { Detail::Path } else { Detail::Coarse },
        function,
        attach: attach.map(str::to_owned),
        reason: attach.is_none().then(|| format!("this kernel has no tracepoint {stage}")),
    };
    let listing = [
        stage(Direction::Rx, "netif_rx", "netif_rx_internal", Some("tp_btf/netif_rx")),
        stage(Direction::Rx, "sock_recv", "sock_recvmsg", None),
        stage(Direction::Tx, "net_dev_queue", "__dev_queue_xmit", Some("raw_tp/net_dev_queue")),
    ];
    let guests = [
        stage(Direction::Rx, "handle_rx", "handle_rx", Some("fentry/handle_rx")),
        stage(Direction::Rx, "vcpu_run", "svm_vcpu_run", None),
    ];
    golden("stages.txt", &text::stages(&listing, &guests));
    golden_json("stages.json", &json::stages(&listing, &guests));
}

#[test]
fn a_snapshot() {
    let saved = SnapshotSummary { files: 435, answers: 12, refused: 4, bytes: 40_550 };
    golden_json("snapshot.json", &json::snapshot("host.tar.zst", &saved));
}
