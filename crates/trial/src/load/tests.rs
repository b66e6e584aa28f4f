//! The load over loopback: everything planned is sent, everything sent arrives, and both sides end on request.

use super::*;
use nearpath_model::CpuSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::time::{Duration, Instant};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn cpus() -> CpuSet {
    crate::affinity::current().unwrap()
}

/// A low rate for busy machines.
fn small() -> LoadPlan {
    LoadPlan {
        requests: RequestLoad {
            connections: 2,
            rate_hz: 200,
            request_bytes: 64,
            response_bytes: 900,
        },
        streams: StreamLoad { connections: 1, rate_hz: 50, write_bytes: 10_000 },
        datagrams: DatagramLoad { flows: 2, rate_hz: 300, sizes_bytes: vec![1, 700] },
    }
}

fn addresses() -> Vec<IpAddr> {
    let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let has_v6 = std::net::UdpSocket::bind((v6, 0)).is_ok();
    [V4].into_iter().chain(has_v6.then_some(v6)).collect()
}

/// The client first, so that nothing is cut off.
fn finish(client: Client, server: Server) -> LoadReport {
    let sent = client.finish();
    sent.with(&server.finish())
}

fn run(plan: &LoadPlan, addresses: &[IpAddr], time: Duration) -> LoadReport {
    let server = Server::start(plan, addresses, &cpus()).unwrap();
    let client = Client::start(plan, server.endpoints(), &cpus()).unwrap();
    std::thread::sleep(time);
    finish(client, server)
}

#[test]
fn everything_sent_arrives_over_both_protocols_and_families() {
    let addresses = addresses();
    let report = run(&small(), &addresses, Duration::from_millis(600));
    assert_eq!(report.failures, Vec::<String>::new());
    assert_eq!(report.counts.len(), 3 * addresses.len(), "{report:?}");
    for count in &report.counts {
        assert!(count.sent > 0 && count.sent <= count.planned, "{count:?}");
        assert_eq!((count.received, count.lost()), (count.sent, 0), "{count:?}");
    }
    let of = |kind| *report.counts.iter().find(|c| c.kind == kind && !c.ipv6).unwrap();
    let requests = of(LoadKind::TcpRequests);
    assert_eq!((requests.connections, requests.received_bytes), (2, 64 * requests.sent));
    let stream = of(LoadKind::TcpStream);
    assert_eq!((stream.connections, stream.received_bytes), (1, 10_000 * stream.sent));
    assert_eq!(of(LoadKind::UdpDatagrams).connections, 2);
    let sent: u64 = report.counts.iter().map(|c| c.sent).sum();
    let responses: u64 =
        report.counts.iter().filter(|c| c.kind == LoadKind::TcpRequests).map(|c| c.received).sum();
    assert_eq!((report.messages(), report.lost()), (sent + responses, 0));
}

#[test]
fn a_part_without_connections_is_omitted() {
    let mut plan = small();
    plan.requests.connections = 0;
    plan.streams.connections = 0;
    let report = run(&plan, &[V4], Duration::from_millis(100));
    let sending: Vec<_> = report.counts.iter().filter(|c| c.connections > 0).collect();
    assert_eq!(sending.len(), 1, "{report:?}");
    assert_eq!(sending[0].kind, LoadKind::UdpDatagrams);
}

#[test]
fn lost_datagrams_are_counted_and_do_not_delay_the_end() {
    let mut plan = small();
    plan.requests.connections = 0;
    plan.streams.connections = 0;
    let server = Server::start(&plan, &[V4], &cpus()).unwrap();
    // Another socket receives the datagrams, so that the server gets none.
    let elsewhere = std::net::UdpSocket::bind((V4, 0)).unwrap();
    let endpoint =
        Endpoint { datagrams: elsewhere.local_addr().unwrap().port(), ..server.endpoints()[0] };
    let client = Client::start(&plan, &[endpoint], &cpus()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let ending = Instant::now();
    let report = finish(client, server);
    assert!(ending.elapsed() < Duration::from_secs(2));
    let count = report.counts.iter().find(|c| c.kind == LoadKind::UdpDatagrams).unwrap();
    assert!(count.sent > 0 && count.received == 0, "{count:?}");
    assert_eq!(report.lost(), count.sent);
}

#[test]
fn a_vanished_server_is_a_failure_of_each_connection() {
    let plan = small();
    let server = Server::start(&plan, &[V4], &cpus()).unwrap();
    let client = Client::start(&plan, server.endpoints(), &cpus()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    drop(server);
    std::thread::sleep(Duration::from_millis(50));
    let other = Server::start(&plan, &[], &cpus()).unwrap();
    let report = finish(client, other);
    let requests = report.failures.iter().filter(|f| f.starts_with("client-requests4:")).count();
    assert_eq!(requests, 2, "{report:?}");
}

#[test]
fn readers_are_waited_for_until_the_last_connection() {
    let mut plan = small();
    plan.streams.connections = 0;
    let server = Server::start(&plan, &[V4], &cpus()).unwrap();
    let port = server.endpoints()[0].requests;
    let connect = || TcpStream::connect((V4, port)).unwrap();
    let waiting = std::thread::spawn(move || server.wait_for_readers());
    let _first = connect();
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waiting.is_finished());
    let _second = connect();
    waiting.join().unwrap().unwrap();
}

#[test]
fn a_server_without_clients_ends_immediately_when_dropped() {
    let server = Server::start(&small(), &addresses(), &cpus()).unwrap();
    let ending = Instant::now();
    drop(server);
    assert!(ending.elapsed() < Duration::from_secs(1));
}

#[test]
fn errors_name_the_operation() {
    let plan = small();
    let nobody = Endpoint { address: V4, requests: 1, streams: 1, datagrams: 1 };
    let error = Client::start(&plan, &[nobody], &cpus()).unwrap_err().to_string();
    assert!(error.starts_with("connecting to 127.0.0.1:1: "), "{error}");
    let documentation: IpAddr = "192.0.2.1".parse().unwrap();
    let error = Server::start(&plan, &[documentation], &cpus()).unwrap_err().to_string();
    assert!(error.starts_with("listening on 192.0.2.1"), "{error}");
    let nowhere = CpuSet::from_list("60000").unwrap();
    let error = Server::start(&plan, &[V4], &nowhere).unwrap_err().to_string();
    assert!(error.contains("pinning to CPUs 60000"), "{error}");
}

#[test]
fn invalid_plans_are_refused() {
    let bad: [fn(&mut LoadPlan); 6] = [
        |p| p.requests.rate_hz = 0,
        |p| p.streams.write_bytes = 0,
        |p| p.requests.response_bytes = u32::MAX,
        |p| p.datagrams.sizes_bytes.clear(),
        |p| p.datagrams.sizes_bytes.push(65_508),
        |p| p.streams.connections = u16::MAX,
    ];
    for (i, spoil) in bad.iter().enumerate() {
        let mut plan = small();
        spoil(&mut plan);
        assert!(Server::start(&plan, &[V4], &cpus()).is_err(), "plan {i}");
    }
}
