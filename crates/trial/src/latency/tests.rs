//! Prober and reflector over loopback.

use super::*;
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn reflector(address: IpAddr) -> Reflector {
    let options = SocketOptions::default();
    let plan = ReflectorPlan { addresses: vec![address], port: 0, cpus: None, options };
    Reflector::start(&plan).unwrap()
}

/// A low rate for busy machines, on which an answer may also take long.
fn plan(target: SocketAddr, transport: Transport, mode: Loop) -> LatencyPlan {
    LatencyPlan {
        target,
        transport,
        mode,
        rate_per_s: Some(400),
        size: 100,
        connections: 2,
        warm_up: Duration::from_millis(50),
        duration: Duration::from_millis(500),
        late_after: Duration::from_secs(10),
        split: true,
        echo: false,
        spin: false,
        lead: None,
        cpus: None,
        options: SocketOptions::default(),
    }
}

/// Continues to the end.
fn sleep(time: Duration) -> bool {
    std::thread::sleep(time);
    true
}

fn run(plan: &LatencyPlan) -> LatencyReport {
    measure_latency(plan, None, &sleep, &mut |_| {}).unwrap()
}

#[test]
fn every_probe_is_answered_over_both_protocols_families_and_loops() {
    let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let has_v6 = UdpSocket::bind((v6, 0)).is_ok();
    for address in [V4].into_iter().chain(has_v6.then_some(v6)) {
        let reflector = reflector(address);
        let target = reflector.addresses()[0];
        let modes = [Loop::Open(Arrivals::Constant), Loop::Open(Arrivals::Poisson), Loop::Closed];
        for (transport, mode) in
            [Transport::Udp, Transport::Tcp].into_iter().flat_map(|t| modes.map(|mode| (t, mode)))
        {
            let report = run(&plan(target, transport, mode));
            assert!(report.sent > 0, "{report:?}");
            if mode == Loop::Open(Arrivals::Constant) {
                assert_eq!(report.sent, 200, "{report:?}");
            }
            assert_eq!((report.received, report.lost), (report.sent, 0), "{report:?}");
            let odd = (report.reordered, report.duplicated, report.ignored, report.not_sent);
            assert_eq!(odd, (0, 0, 0, 0), "{report:?}");
            assert_eq!(report.histogram.iter().map(|b| b.1).sum::<u64>(), report.received);
            let (min, mean) = (report.min_ns.unwrap() as f64, report.mean_ns.unwrap());
            assert!(min <= mean && mean <= report.max_ns.unwrap() as f64);
            the_split_adds_up(&report);
        }
    }
}

fn the_split_adds_up(report: &LatencyReport) {
    let split = report.split.as_ref().unwrap_or_else(|| panic!("{:?}", report.unknown));
    let parts = [
        &split.sender_late,
        &split.send_stack,
        &split.wire,
        &split.far_receive,
        &split.far_turn,
        &split.receive,
    ];
    assert_eq!(split.wire.count + split.not_split, report.received);
    if split.not_split == 0 {
        let sum: f64 = parts.iter().filter_map(|part| part.mean_ns).sum();
        let mean = report.mean_ns.unwrap();
        assert!((sum - mean).abs() < 1.0, "{sum} is not {mean}: {report:?}");
    }
    // Timestamps start when the kernel has enabled them, and exist for nearly all answers.
    assert!(split.not_split * 2 < report.received, "{report:?}");
    if report.mode == Loop::Closed {
        assert_eq!(split.sender_late.max_ns, Some(0));
    }
}

#[test]
fn without_timestamps_the_split_is_null_with_a_reason() {
    let reflector = reflector(V4);
    let mut plan = plan(reflector.addresses()[0], Transport::Udp, Loop::Closed);
    plan.split = false;
    let report = run(&plan);
    assert!(report.split.is_none() && report.received == report.sent);
    assert_eq!(report.unknown[0].fact, "split");
}

#[test]
fn intervals_are_reported_and_stop_requests_are_honoured() {
    let reflector = reflector(V4);
    let mut plan = plan(reflector.addresses()[0], Transport::Udp, Loop::Open(Arrivals::Constant));
    plan.duration = Duration::from_secs(600);
    let (begin, looks) = (Instant::now(), Cell::new(0));
    let should_continue = |time| sleep(time) && looks.get() < 3;
    let mut each = |progress: &Progress| {
        looks.set(looks.get() + 1);
        assert!(progress.sent >= progress.received);
    };
    let every = Some(Duration::from_millis(100));
    let report = measure_latency(&plan, every, &should_continue, &mut each).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(30) && looks.get() >= 3);
    assert!(report.sent > 0 && report.duration_s < 30.0);
    assert_eq!(report.received, report.sent);
}

#[test]
fn a_missing_reflector_is_an_error_with_its_address() {
    let free = UdpSocket::bind((V4, 0)).unwrap().local_addr().unwrap();
    for transport in [Transport::Udp, Transport::Tcp] {
        let plan = plan(free, transport, Loop::Open(Arrivals::Constant));
        let error = measure_latency(&plan, None, &sleep, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(&free.to_string()), "{error}");
        assert!(transport == Transport::Tcp || error.contains("bench reflect"), "{error}");
    }
}

#[test]
fn a_vanished_reflector_is_an_error_over_tcp_and_loss_over_udp() {
    let ends = |transport| {
        let mut reflector = Some(reflector(V4));
        let target = reflector.as_ref().unwrap().addresses()[0];
        let plan = plan(target, transport, Loop::Open(Arrivals::Constant));
        let plan = LatencyPlan { late_after: Duration::from_millis(200), ..plan };
        let mut each = |_: &Progress| drop(reflector.take());
        measure_latency(&plan, Some(Duration::from_millis(100)), &sleep, &mut each)
    };
    let report = ends(Transport::Udp).unwrap();
    assert!(report.lost > 0 && report.received > 0, "{report:?}");
    let error = ends(Transport::Tcp).unwrap_err().to_string();
    assert!(error.starts_with("probing 127.0.0.1:"), "{error}");
}

#[test]
fn invalid_plans_are_refused() {
    let target = SocketAddr::new(V4, 9);
    let good = plan(target, Transport::Udp, Loop::Open(Arrivals::Constant));
    let bad: [fn(&mut LatencyPlan); 6] = [
        |p| p.size = SIZE_MIN as u32 - 1,
        |p| p.size = SIZE_MAX as u32 + 1,
        |p| p.connections = 0,
        |p| p.connections = MAX_CONNECTIONS + 1,
        |p| p.rate_per_s = Some(0),
        |p| p.rate_per_s = None,
    ];
    for (i, spoil) in bad.iter().enumerate() {
        let mut plan = good.clone();
        spoil(&mut plan);
        let refused = measure_latency(&plan, None, &sleep, &mut |_| {});
        assert!(matches!(refused, Err(LatencyError::Plan(_))), "plan {i}");
    }
}

fn probe(size: u32) -> Vec<u8> {
    let (kind, turn) = (Kind::Probe, Turn::default());
    let mut bytes = vec![0x77; size as usize];
    Message { kind, size, flow: 0, session: 1, sequence: 2, times: true, turn }.write(&mut bytes);
    bytes
}

#[test]
fn the_reflector_answers_only_probes_with_equal_length() {
    let reflector = reflector(V4);
    let socket = UdpSocket::bind((V4, 0)).unwrap();
    socket.connect(reflector.addresses()[0]).unwrap();
    let mut answer = vec![0; SIZE_MAX];
    let mut longer = probe(80);
    longer.push(0);
    let mut echoed = probe(64);
    echoed[4] = 2;
    for misplaced in [&[][..], b"hello", &probe(80)[..79], &longer, &echoed] {
        socket.send(misplaced).unwrap();
    }
    // The one that is answered is sent last: the others were not answered.
    for size in [SIZE_MIN as u32, 1_400, 9_000] {
        socket.send(&probe(size)).unwrap();
        let length = socket.recv(&mut answer).unwrap();
        let parsed = Message::parse(&answer[..length]).unwrap();
        assert_eq!((length, parsed.kind, parsed.sequence), (size as usize, Kind::Answer, 2));
        assert!(
            parsed.turn.arrived_ns <= parsed.turn.read_ns
                && parsed.turn.read_ns <= parsed.turn.sent_ns
        );
        assert!(answer[SIZE_MIN..length].iter().all(|&byte| byte == 0x77));
    }
    // The last one may be counted after its answer was read.
    let begin = Instant::now();
    while reflector.reflected().udp_answered < 3 && begin.elapsed() < Duration::from_secs(20) {
        std::thread::yield_now();
    }
    let reflected = reflector.reflected();
    assert_eq!((reflected.udp_answered, reflected.ignored), (3, 5));
}

#[test]
fn a_connection_that_sends_anything_else_is_closed() {
    let reflector = reflector(V4);
    let mut good = TcpStream::connect(reflector.addresses()[0]).unwrap();
    for _ in 0..3 {
        good.write_all(&probe(500)).unwrap();
        let mut answer = [0; 500];
        good.read_exact(&mut answer).unwrap();
        assert_eq!(Message::parse(&answer).unwrap().kind, Kind::Answer);
    }
    let mut bad = TcpStream::connect(reflector.addresses()[0]).unwrap();
    bad.write_all(&[b'x'; 200]).unwrap();
    // Closed with unread data, the connection may be reset.
    assert!(matches!(bad.read(&mut [0; 10]), Ok(0) | Err(_)));
    // The size may not change within a connection.
    good.write_all(&probe(100)).unwrap();
    good.write_all(&[0; 400]).unwrap();
    assert!(matches!(good.read(&mut [0; 10]), Ok(0) | Err(_)));
    let reflected = reflector.reflected();
    assert_eq!((reflected.tcp_answered, reflected.ignored, reflected.connections), (3, 2, 2));
}
