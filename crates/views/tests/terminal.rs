//! What `top` shows, as screens in `golden/`.

mod golden_files;

use golden_files::golden;
use nearpath_model::frame::{
    ConnectionActivity, CpuActivity, DropActivity, Frame, QueueActivity, VmActivity, WorkerActivity,
};
use nearpath_model::locality::{Distances, Locality};
use nearpath_model::*;
use nearpath_views::terminal::{Action, Key, Mode, Palette, Status, View, draw};
use ratatui::Terminal;
use ratatui::backend::TestBackend;

fn span(direction: Direction, from: &str, to: &str, p50: u64, p99: u64, max: u64) -> Span {
    Span {
        direction,
        from: from.to_owned(),
        to: to.to_owned(),
        count: 120_000,
        min_ns: None,
        p50_ns: Some(p50),
        p90_ns: Some(p50),
        p99_ns: Some(p99),
        p999_ns: None,
        max_ns: Some(max),
        total_ns: 0,
        other_cpu: Some(0.25),
        other_llc: None,
        other_node: Some(0.125),
        buckets: Vec::new(),
        places: Vec::new(),
    }
}

fn path(kind: PathKind, p50: u64, p99: u64, bound: u64) -> PathLatency {
    PathLatency {
        kind,
        from: String::new(),
        count: 118_000,
        min_ns: None,
        p50_ns: Some(p50),
        p90_ns: None,
        p99_ns: Some(p99),
        p999_ns: None,
        max_ns: None,
        total_ns: 0,
        above: Vec::new(),
        other_cpu: Some(0.5),
        other_llc: None,
        other_node: None,
        buckets: vec![(p50, 117_000), (bound, 1_000)],
    }
}

fn share(kind: ShareKind, ns: u64, comm: Option<&str>) -> Share {
    let who = comm.map(|comm| Culprit {
        comm: Some(comm.to_owned()),
        pid: Some(4711),
        ..Culprit::default()
    });
    Share { share: kind, ns, who }
}

fn late() -> Outlier {
    let passed = |stage: &str, cpu: u32, at_ns: u64| Passed {
        stage: stage.to_owned(),
        cpu: CpuId(cpu),
        node: Some(NodeId(0)),
        at_ns,
    };
    Outlier {
        direction: Direction::Rx,
        from: "sock_queue".to_owned(),
        to: "reader_copy".to_owned(),
        span_ns: 2_500_000,
        from_cpu: CpuId(1),
        cpu: CpuId(3),
        node: Some(NodeId(0)),
        flow: Some("TCP 10.0.0.1:5000 > 10.0.0.2:80".to_owned()),
        at_ns: 1_002_530_000,
        packets_meanwhile: 7,
        complete: true,
        budget: vec![
            share(ShareKind::Runqueue, 2_000_000, Some("stress\u{1b}[2J")),
            share(ShareKind::Idle, 400_000, None),
            share(ShareKind::Own, 100_000, None),
        ],
        packet: 1,
        path: vec![
            passed("netif_rx", 1, 1_000_000_000),
            passed("tcp_rcv", 1, 1_000_020_000),
            passed("sock_queue", 1, 1_000_030_000),
            passed("reader_copy", 3, 1_002_530_000),
        ],
    }
}

fn finding(severity: Severity, title: &str) -> Finding {
    Finding {
        check: "runqueue".to_owned(),
        severity,
        title: title.to_owned(),
        evidence: vec!["The reader waited in the run queue 1,203 times.".to_owned()],
        cost: FindingCost { seconds_per_second: Some(0.0123), ..FindingCost::default() },
        subjects: Vec::new(),
        whose: nearpath_model::Whose::Host,
        symptoms: Vec::new(),
        changes: Vec::new(),
        manual: vec!["chrt -o -p 0 4711".to_owned()],
    }
}

fn measurement() -> Measurement {
    Measurement {
        duration_s: 10.0,
        packets: Packets { started: 120_000, completed: 118_000, ..Packets::default() },
        paths: vec![
            path(PathKind::Receive, 21_000, 430_000, 2_600_000),
            path(PathKind::Transmit, 9_000, 60_000, 240_000),
        ],
        spans: vec![
            span(Direction::Rx, "netif_rx", "tcp_rcv", 2_100, 9_000, 31_000),
            span(Direction::Rx, "sock_queue", "reader_copy", 12_000, 410_000, 2_500_000),
            span(Direction::Tx, "net_dev_queue", "net_dev_xmit", 800, 2_100, 8_000),
        ],
        outliers: vec![late()],
        budget_totals: vec![
            share(ShareKind::Runqueue, 61_000_000, Some("stress")),
            share(ShareKind::NetRxAhead, 25_000_000, None),
            share(ShareKind::Idle, 14_000_000, None),
        ],
        ..Measurement::default()
    }
}

fn busy() -> Frame {
    let cpu = |cpu: u32| CpuActivity {
        node: Some(NodeId(cpu / 8)),
        processed: f64::from(cpu % 8) * 900.0,
        interrupts: if cpu == 7 { 8_123.0 } else { 0.0 },
        squeezed: if cpu == 7 { 0.3 } else { 0.0 },
        ..CpuActivity::idle(CpuId(cpu))
    };
    let diagnosis = Diagnosis {
        schema: DIAGNOSIS_SCHEMA,
        findings: vec![
            finding(Severity::Critical, "The reader of port 80 waits up to 2.50ms for CPU 3"),
            finding(Severity::Warning, "Interrupts of eth0 are handled on the other node"),
        ],
        not_checked: Vec::new(),
        checks: 40,
        host: HostSummary::default(),
        measurement: Some(measurement()),
        other_look: None,
        locality: Some(Locality {
            rx: Distances::of([40_000, 0, 60_000, 0, 20_000, 0]),
            tx: Distances::of([118_000, 0, 0, 0, 0, 0]),
            ..Locality::default()
        }),
        accepts: None,
        tcp: None,
        memory: None,
        workers: None,
        vm: None,
    };
    let queue = |queue: &str, irq, cpus: &[(u32, f64)]| QueueActivity {
        device: "eth0".to_owned(),
        queue: queue.to_owned(),
        irq,
        cpus: cpus.iter().map(|(cpu, rate)| (CpuId(*cpu), *rate)).collect(),
    };
    let connection = |peer: &str, rtt_ns, bytes_in| ConnectionActivity {
        local: "10.0.0.2:80".to_owned(),
        peer: peer.to_owned(),
        comm: "nginx".to_owned(),
        rtt_ns: Some(rtt_ns),
        rttvar_ns: Some(rtt_ns / 4),
        bytes_out: 125_000.0,
        bytes_in,
        retransmitted: 0.0,
    };
    Frame {
        host: "edge-7".to_owned(),
        time_us: 1_795_608_000_000_000,
        window_s: 10.0,
        diagnosis,
        cpus: (0..16).map(cpu).collect(),
        queues: vec![queue("0", 33, &[(7, 8_000.0)]), queue("1", 34, &[(7, 123.0), (2, 1.0)])],
        connections: vec![
            connection("10.0.0.1:5000", 180_000, 1_250.0),
            connection("10.0.0.9:6000", 1_500_000, 90.0),
        ],
        workers: vec![WorkerActivity {
            app: "dpdk-l3fwd".to_owned(),
            pid: 812,
            lcore: Some(4),
            busy: Some(0.83),
            empty_polls: Some(0.1),
            packets: Some(1_200_000.0),
            delayed: None,
        }],
        vms: vec![VmActivity {
            vm: "web1".to_owned(),
            packets: 9_000.0,
            p50_ns: Some(21_000),
            p99_ns: Some(340_000),
            slowest: Some(("kvm_to_guest".to_owned(), 320_000)),
        }],
        drops: vec![DropActivity {
            reason: "NO_SOCKET".to_owned(),
            device: "eth0".to_owned(),
            packets: 4.2,
        }],
        programs_share: Some(0.0061),
        notes: Vec::new(),
    }
}

/// A host of which nothing is known yet.
fn nothing() -> Frame {
    let mut frame = busy();
    frame.diagnosis =
        Diagnosis { findings: Vec::new(), measurement: None, locality: None, ..frame.diagnosis };
    frame.cpus.clear();
    frame.queues.clear();
    frame.connections.clear();
    frame.workers.clear();
    frame.vms.clear();
    frame.drops.clear();
    frame.programs_share = None;
    frame
}

fn view() -> View {
    View::new(Palette { colours: true })
}

fn live() -> Status {
    Status { mode: Mode::Live, own_share: Some(0.012), notice: None }
}

fn screen(frame: &Frame, view: &View, status: &Status, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|screen| draw(screen, frame, view, status)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y: u16| {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        line.trim_end().to_owned() + "\n"
    };
    (0..height).map(line).collect()
}

fn pressed(keys: &str, frame: &Frame) -> View {
    let mut view = view();
    for key in keys.chars() {
        let key = if key == '\n' { Key::Enter } else { Key::Char(key) };
        view.press(key, frame);
    }
    view
}

#[test]
fn the_first_screen_says_what_is_wrong_and_where() {
    let (frame, view) = (busy(), view());
    let small = screen(&frame, &view, &live(), (80, 24));
    golden("top_overview_80x24.txt", &small);
    golden("top_overview_120x40.txt", &screen(&frame, &view, &live(), (120, 40)));
    let second = small.lines().nth(1).unwrap();
    assert!(second.starts_with("1 critical, 1 warning: The reader of port 80"), "{second}");
    golden("top_nothing_80x24.txt", &screen(&nothing(), &view, &live(), (80, 24)));
}

#[test]
fn each_list_has_its_screen() {
    let frame = busy();
    let mut all = String::new();
    for keys in ["2", "3", "4", "5", "6", "7", "8", "9", "3\n", "8\n", "?"] {
        let name = keys.replace('\n', " Enter");
        all.push_str(&format!(
            "--- {name}\n{}",
            screen(&frame, &pressed(keys, &frame), &live(), (100, 18))
        ));
    }
    golden("top_lists_100x18.txt", &all);
    // A name cannot move the cursor.
    assert!(all.contains("stress\\u{1b}[2J") && !all.contains('\u{1b}'));
}

#[test]
fn lists_are_sorted_and_filtered() {
    let frame = busy();
    let first = |keys: &str| {
        let shown = screen(&frame, &pressed(keys, &frame), &live(), (100, 18));
        shown.lines().nth(2).unwrap_or_default().to_owned()
    };
    assert!(first("6").contains("10.0.0.1:5000"), "those with most bytes first");
    assert!(first("6>").contains("10.0.0.9:6000"), "by round-trip time, the longest first");
    assert!(first("6>r").contains("10.0.0.1:5000"), "and the shortest");
    assert!(first("6/9:6\n").contains("10.0.0.9:6000"));
    assert!(first("6/no such\n").contains("no row passes the filter"));
    // The filter is taken as text, and cleared by Escape.
    let mut view = pressed("6/q2 ", &frame);
    assert!(screen(&frame, &view, &live(), (100, 18)).contains("filter: q2 _"));
    assert_eq!(view.press(Key::Escape, &frame), Action::None);
    assert!(screen(&frame, &view, &live(), (100, 18)).contains("10.0.0.1:5000"));
    assert_eq!(view.press(Key::Char('q'), &frame), Action::Quit);
}

#[test]
fn a_chosen_packet_stays_while_others_come() {
    let frame = busy();
    let view = pressed("3\n", &frame);
    let shown = screen(&nothing(), &view, &live(), (100, 18));
    assert!(shown.contains("TCP 10.0.0.1:5000 > 10.0.0.2:80"), "{shown}");
}

#[test]
fn modes_are_named() {
    let (frame, view) = (busy(), view());
    let of = |mode| screen(&frame, &view, &Status { mode, ..live() }, (100, 18));
    assert!(of(Mode::Frozen).contains("FROZEN"));
    let recorded = of(Mode::Recorded { playing: true });
    assert!(
        recorded.contains("2026-11-25 12:00:00 UTC  last 10.0s, recording, playing"),
        "{recorded}"
    );
    let notice = Status { notice: Some("cannot observe stages: no".to_owned()), ..live() };
    assert!(screen(&frame, &view, &notice, (80, 24)).contains("cannot observe stages: no"));
}

#[test]
fn without_colours_nothing_is_lost() {
    let frame = busy();
    let plain = View::new(Palette { colours: false });
    let (with, without) = (view(), plain);
    assert_eq!(
        screen(&frame, &with, &live(), (80, 24)),
        screen(&frame, &without, &live(), (80, 24))
    );
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|screen| draw(screen, &frame, &without, &live())).unwrap();
    let coloured = |cell: &&ratatui::buffer::Cell| cell.fg != ratatui::style::Color::Reset;
    assert_eq!(terminal.backend().buffer().content().iter().filter(coloured).count(), 0);
}

#[test]
fn it_fits_on_every_screen_with_every_key() {
    let keys = [
        Key::Char('2'),
        Key::End,
        Key::Char('>'),
        Key::Char('<'),
        Key::Enter,
        Key::PageDown,
        Key::End,
        Key::Escape,
        Key::Tab,
        Key::BackTab,
        Key::Up,
        Key::Home,
        Key::Char('?'),
    ];
    let mut huge = busy();
    huge.cpus = (0..1024)
        .map(|cpu| CpuActivity { processed: f64::from(cpu), ..CpuActivity::idle(CpuId(cpu)) })
        .collect();
    huge.host = "ホスト".repeat(40);
    for frame in [busy(), nothing(), huge] {
        for tab in '1'..='9' {
            let mut view = view();
            view.press(Key::Char(tab), &frame);
            for key in keys.iter().skip(1) {
                view.press(*key, &frame);
                for size in [(1, 1), (20, 5), (40, 10), (80, 24), (300, 100)] {
                    screen(&frame, &view, &live(), size);
                }
            }
        }
    }
    golden("top_tiny_20x5.txt", &screen(&busy(), &view(), &live(), (20, 5)));
    golden("top_small_40x10.txt", &screen(&busy(), &view(), &live(), (40, 10)));
}
