//! Replies and filters, against the kernel that runs the tests.

use super::*;
use ipnet::IpNet;
use proptest::prelude::*;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};

/// What the kernel reports for a filter; `None` (with a note) if it has no sock_diag.
fn dumped(states: &[TcpState], filter: &TcpFilter) -> Option<Vec<TcpSocket>> {
    let mut sockets = Vec::new();
    match TcpDiag::open().and_then(|mut diag| diag.dump(states, filter, |s| sockets.push(s))) {
        Ok(()) => Some(sockets),
        Err(error) => {
            nearpath_testing::skip(&format!("sock_diag: {error}"));
            None
        }
    }
}

/// A connection on the loopback interface: the listener, the client and the server.
fn connection(address: &str) -> Option<(TcpListener, TcpStream, TcpStream)> {
    let listener = TcpListener::bind(address).ok()?;
    let client = TcpStream::connect(listener.local_addr().ok()?).ok()?;
    let (server, _) = listener.accept().ok()?;
    Some((listener, client, server))
}

#[test]
fn a_connection_is_reported_from_both_ends() {
    let (_listener, mut client, server) = connection("127.0.0.1:0").unwrap();
    client.write_all(&[7; 1000]).unwrap();
    let port = server.local_addr().unwrap().port();
    let filter = TcpFilter { port: Some(port), ..TcpFilter::default() };
    let Some(sockets) = dumped(&[TcpState::Established], &filter) else { return };
    assert_eq!(sockets.len(), 2, "{sockets:?}");
    let of = |end: &TcpStream| {
        let wanted = (end.local_addr().unwrap(), end.peer_addr().unwrap());
        sockets.iter().find(|s| (s.local, s.remote) == wanted).unwrap()
    };
    let (sender, receiver) = (of(&client), of(&server));
    let (sent, received) = (sender.info.unwrap(), receiver.info.unwrap());
    assert_eq!((sent.bytes_sent, received.bytes_received), (1000, 1000));
    assert_eq!((sent.data_segs_out, received.data_segs_in), (1, 1));
    assert_eq!((receiver.receive_queue, sender.receive_queue), (1000, 0));
    assert!(receiver.memory.unwrap().receive_limit > 0 && sender.inode != receiver.inode);
    assert!(sender.congestion.as_ref().is_some_and(|name| !name.is_empty()));
    assert!(sender.cookie.is_some() && sender.cookie != receiver.cookie);
    assert!(sent.options & 4 != 0 && sent.snd_cwnd > 0 && sent.snd_wnd > 0);
}

#[test]
fn a_listening_socket_reports_its_backlog() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let _clients: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    let filter = TcpFilter { sport: Some(address.port()), ..TcpFilter::default() };
    let Some(sockets) = dumped(&[TcpState::Listen], &filter) else { return };
    let [listening] = sockets.as_slice() else { panic!("{sockets:?}") };
    assert_eq!((listening.receive_queue, listening.send_queue > 3), (3, true));
}

/// The kernel's filter selects what the same conditions select in user space.
#[test]
fn the_kernels_filter_is_that_of_this_program() {
    let ends: Vec<_> = ["127.0.0.1:0", "127.0.0.2:0", "[::1]:0"].map(connection).into();
    let ends: Vec<_> = ends.into_iter().flatten().collect();
    let states = [TcpState::Established];
    let port = |stream: &TcpStream| stream.local_addr().unwrap().port();
    let ours: Vec<u16> = ends.iter().flat_map(|(_, c, s)| [port(c), port(s)]).collect();
    let Some(all) = dumped(&states, &TcpFilter::default()) else { return };
    let is_ours =
        |s: &&TcpSocket| ours.contains(&s.local.port()) && ours.contains(&s.remote.port());
    let all: Vec<TcpSocket> = all.iter().filter(is_ours).cloned().collect();
    assert_eq!(all.len(), 2 * ends.len());
    let net = |text: &str| text.parse::<IpNet>().ok();
    let first = ours[0];
    let hosts = [None, net("127.0.0.2/32"), net("127.0.0.0/30"), net("::1/128"), net("10.0.0.0/8")];
    for host in hosts {
        for (sport, dport, port) in [
            (None, None, None),
            (Some(first), None, None),
            (None, Some(first), None),
            (None, None, Some(first)),
            (Some(first), None, Some(first)),
            (Some(first), Some(first), None),
        ] {
            for (src, dst, host) in [(host, None, None), (None, host, None), (None, None, host)] {
                let filter = TcpFilter { sport, dport, port, src, dst, host };
                let kernels = dumped(&states, &filter).unwrap();
                let ports = |s: &TcpSocket| (s.local.port(), s.remote.port());
                let mut seen: Vec<_> = kernels.iter().filter(is_ours).map(ports).collect();
                let pair = |a: SocketAddr| (a.ip(), a.port());
                let chosen = |s: &&TcpSocket| filter.matches(pair(s.local), pair(s.remote));
                let mut wanted: Vec<_> = all.iter().filter(chosen).map(ports).collect();
                seen.sort_unstable();
                wanted.sort_unstable();
                assert_eq!(seen, wanted, "{filter:?}");
            }
        }
    }
}

/// IPv4 on an IPv6 socket is matched and shown as IPv4.
#[test]
fn ipv4_in_ipv6_is_found_by_its_ipv4_address() {
    let Ok(listener) = TcpListener::bind("[::]:0") else {
        nearpath_testing::skip("no IPv6");
        return;
    };
    let port = listener.local_addr().unwrap().port();
    let Ok(_client) = TcpStream::connect(("127.0.0.1", port)) else {
        nearpath_testing::skip("net.ipv6.bindv6only");
        return;
    };
    let _server = listener.accept().unwrap();
    let host = "127.0.0.0/8".parse::<IpNet>().ok();
    let filter = TcpFilter { sport: Some(port), host, ..TcpFilter::default() };
    let Some(sockets) = dumped(&[TcpState::Established], &filter) else { return };
    let [server] = sockets.as_slice() else { panic!("{sockets:?}") };
    assert!(server.v6 && server.local.ip().is_ipv4(), "{server:?}");
}

proptest! {
    #[test]
    fn no_reply_panics(reply in proptest::collection::vec(any::<u8>(), 0..500)) {
        let _ = parse_tcp_socket(&reply);
        let family = [[libc::AF_INET as u8, 1, 1, 0].as_slice(), &reply].concat();
        let _ = parse_tcp_socket(&family);
    }

    /// The attribute may have any length.
    #[test]
    fn a_longer_tcp_info_is_read_as_far_as_it_is_known(length in 0usize..400) {
        let info = TcpInfo::parse(&vec![1; length]);
        prop_assert_eq!(info.is_some(), length >= 232);
        let last = info.and_then(|info| info.total_rto_time_ms);
        prop_assert_eq!(last.is_some(), length >= 248);
    }
}
