//! Connections that are no plain ones: ports used again, floods of TIME-WAIT, subflows of MPTCP, IPv4 in IPv6 sockets,
//! resets, and connections that wait to be accepted.

use crate::{begin, can_run, connect, ended, listen, whole};
use nearpath_model::tcp::{TcpConnection, TcpFamily, TcpReset, TcpState};
use nearpath_testing::veth::{Side, VethPair};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A client socket bound to a port that may be used again.
fn bound(port: u16) -> OwnedFd {
    let socket =
        socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::empty(), None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    let any = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), port);
    rustix::net::bind(&socket, &any).unwrap();
    socket
}

/// Closes with a reset, so that the port is free at once.
fn reset(stream: TcpStream) {
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// The same four numbers, one connection after another: each is its own.
#[test]
fn a_port_that_is_used_again_is_another_connection() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() || !nearpath_testing::require_bpf() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = listen(&pair);
    let address = listener.local_addr().unwrap();
    let port = address.port().to_string();
    let children = [Side::Server, Side::Client]
        .map(|side| begin(&pair, side, &["--port", &port, "--detail", "full"]));
    for round in 1..=20u8 {
        let client = pair
            .run(Side::Client, |_| {
                let socket = bound(45_678);
                rustix::net::connect(&socket, &address)?;
                Ok(TcpStream::from(socket))
            })
            .unwrap();
        let (mut server, from) = listener.accept().unwrap();
        assert_eq!(from.port(), 45_678);
        server.write_all(&vec![0; usize::from(round)]).unwrap();
        (&client).read_exact(&mut vec![0; usize::from(round)]).unwrap();
        reset(client);
        // It has arrived when reading fails.
        assert!(server.read(&mut [0]).is_err());
    }
    let documents = children.map(ended);
    for (document, by) in documents.iter().zip([TcpReset::Received, TcpReset::Sent]) {
        assert_eq!((document.total, document.events_lost), (20, 0), "{document:?}");
        assert!(document.connections.iter().all(|c| c.closed), "{document:?}");
        let is_reset = |c: &&TcpConnection| c.reset == Some(by);
        // A reset by close(2) is sent without a tracepoint.
        let wanted = if by == TcpReset::Received { 20 } else { 0 };
        let count = document.connections.iter().filter(is_reset).count();
        assert!(count >= wanted, "{count} {document:?}");
    }
    let mut sent: Vec<u64> =
        documents[0].connections.iter().map(|c| c.totals.bytes_acked).collect();
    sent.sort_unstable();
    assert_eq!(sent, (1..=20).collect::<Vec<u64>>());
}

/// Thousands of connections in TIME-WAIT are none of those that transfer, and cost nothing.
#[test]
fn a_flood_of_time_wait_hides_nothing() {
    if !nearpath_testing::require_lengthy() || !can_run() {
        return;
    }
    const MANY: usize = 5_000;
    let pair = VethPair::new(1).unwrap();
    let listener = listen(&pair);
    let port = listener.local_addr().unwrap().port();
    for _ in 0..MANY {
        // The client closes first, and keeps the TIME-WAIT.
        let (client, mut server) = connect(&pair, &listener);
        drop(client);
        assert_eq!(server.read(&mut [0]).unwrap(), 0);
    }
    let (client, server) = connect(&pair, &listener);
    let waiting =
        pair.run(Side::Client, |_| std::fs::read_to_string("/proc/thread-self/net/sockstat"));
    let waiting = waiting.unwrap();
    let count = waiting.split("tw ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(count.parse::<usize>().unwrap() >= MANY / 2, "{waiting}");
    let port = port.to_string();
    let document = whole(&pair, Side::Client, &["--dport", &port, "--for", "500ms"]);
    let live = |c: &&TcpConnection| !c.closed && c.state == TcpState::Established;
    assert_eq!(document.connections.iter().filter(live).count(), 1, "{}", document.total);
    drop((client, server));
}

#[test]
fn subflows_of_mptcp_are_connections_that_are_not_in_the_backlog() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let open = |side: Side| {
        pair.run(side, |_| {
            let protocol = Some(ipproto::MPTCP);
            Ok(socket_with(
                AddressFamily::INET,
                SocketType::STREAM,
                SocketFlags::empty(),
                protocol,
            )?)
        })
    };
    let Ok(listener) = open(Side::Server) else {
        nearpath_testing::skip("this kernel has no MPTCP");
        return;
    };
    let address = SocketAddr::new(Side::Server.ipv4(), 7400);
    rustix::net::bind(&listener, &address).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    let client = open(Side::Client).unwrap();
    pair.run(Side::Client, |_| Ok(rustix::net::connect(&client, &address)?)).unwrap();
    let mut server = TcpStream::from(rustix::net::accept(&listener).unwrap());
    let mut client = TcpStream::from(client);
    client.write_all(&[0; 5000]).unwrap();
    server.read_exact(&mut [0; 5000]).unwrap();
    let document = whole(&pair, Side::Server, &["--sport", "7400", "--for", "500ms"]);
    let [subflow] = document.connections.as_slice() else { panic!("{document:?}") };
    assert_eq!(subflow.ulp.as_deref(), Some("mptcp"), "{document:?}");
    let limit = subflow.verdict.as_ref().map(|verdict| verdict.limit);
    assert_ne!(limit, Some(nearpath_model::tcp::TcpLimit::Backlog));
}

#[test]
fn ipv4_in_an_ipv6_socket_is_shown_and_found_as_ipv4() {
    if !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = pair.run(Side::Server, |_| TcpListener::bind("[::]:7401")).unwrap();
    let address = (Side::Server.ipv4(), 7401);
    let mut client = pair.run(Side::Client, |_| TcpStream::connect(address)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(&[0; 300]).unwrap();
    server.read_exact(&mut [0; 300]).unwrap();
    let from = Side::Client.ipv4();
    for net in [from.to_string(), format!("::ffff:{from}")] {
        for option in ["--dst", "--host"] {
            let args = [option, net.as_str(), "--sport", "7401", "--for", "300ms"];
            let document = whole(&pair, Side::Server, &args);
            let [one] = document.connections.as_slice() else { panic!("{args:?} {document:?}") };
            assert_eq!((one.family, one.dst), (TcpFamily::Inet6, from), "{document:?}");
            assert_eq!(one.totals.bytes_received, 300);
        }
    }
}

/// A connection that is accepted late, and how long it took to be established, are known while it lives.
#[test]
fn a_late_accept_and_the_time_to_connect_are_known_of_live_connections() {
    if !can_run() || !nearpath_testing::require_bpf() {
        return;
    }
    const LATE: Duration = Duration::from_millis(900);
    // To the time between two readings, which a busy machine makes longer.
    const READINGS: Duration = Duration::from_millis(300);
    let pair = VethPair::new(1).unwrap();
    let listener = listen(&pair);
    let address = listener.local_addr().unwrap();
    let port = address.port().to_string();
    let children = [Side::Server, Side::Client].map(|side| begin(&pair, side, &["--port", &port]));
    let began = Instant::now();
    let client = pair.run(Side::Client, |_| TcpStream::connect(address)).unwrap();
    let connected = began.elapsed();
    std::thread::sleep(LATE);
    let (server, _) = listener.accept().unwrap();
    let accepted = began.elapsed();
    // Another reading sees that it was accepted.
    std::thread::sleep(Duration::from_millis(400));
    let [at_server, at_client] = children.map(ended);
    let [one] = at_server.connections.as_slice() else { panic!("{at_server:?}") };
    let waited = Duration::from_nanos(one.accept_wait_ns.unwrap());
    let [one] = at_client.connections.as_slice() else { panic!("{at_client:?}") };
    let took = Duration::from_nanos(one.connect_ns.unwrap());
    assert!(!one.closed && took > Duration::ZERO && took <= connected, "{took:?} {connected:?}");
    assert_eq!(one.accept_wait_ns, None);
    drop((client, server));
    let is_it = waited + READINGS >= LATE && waited <= accepted + READINGS;
    assert!(is_it, "{waited:?} of {accepted:?}");
}
