//! Sockets from the kernel's sock_diag (net/ipv4/inet_diag.c, net/ipv4/udp_diag.c). It selects listening
//! sockets, so that a server's hundred thousand connections are neither generated nor parsed, as they
//! would be with `/proc/net/tcp`.
//!
//! Input: a protocol and a family. Output: the receiving sockets. The kernel's answer is stored in
//! snapshots; without an answer, `/proc/net` is read.

use super::table::MAX_SOCKETS;
use crate::nics::netlink::Connection;
use crate::nics::netlink::attributes::attributes;
use crate::{ReadError, Root};
use nearpath_model::{Socket, SocketProtocol};
use netlink_packet_core::{Emitable, Parseable};
use netlink_packet_sock_diag::inet::{
    ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags,
};
use netlink_packet_sock_diag::{SOCK_DIAG_BY_FAMILY, TCP_ESTABLISHED};
use std::collections::BTreeMap;
use std::io;

/// Size of `struct inet_diag_msg`, before the attributes; which of these has the memory of the socket, and which of its
/// words counts drops (include/uapi/linux/{inet_diag,sock_diag}.h).
const HEADER_BYTES: usize = 72;
const INET_DIAG_SKMEMINFO: u16 = 7;
const SK_MEMINFO_RMEM_ALLOC: usize = 0;
const SK_MEMINFO_DROPS: usize = 8;

/// The receiving sockets of a protocol: listening TCP, and UDP.
///
/// # Errors
/// The kernel has no sock_diag for it, or the tree has no answer to it.
pub(super) fn read(
    root: &Root,
    protocol: SocketProtocol,
    v6: bool,
) -> Result<Vec<Socket>, ReadError> {
    let name = match protocol {
        SocketProtocol::Tcp => "tcp",
        SocketProtocol::Udp => "udp",
    };
    let key = format!("sock_diag/{name}{}", if v6 { "6" } else { "" });
    let mut sockets = root.answer(&key, || {
        ask(protocol, v6).map_err(|error| ReadError::new(&key, &error.to_string()))
    })?;
    sockets.truncate(MAX_SOCKETS);
    Ok(sockets)
}

fn ask(protocol: SocketProtocol, v6: bool) -> io::Result<Vec<Socket>> {
    let request = request(protocol, v6);
    let mut payload = vec![0; request.buffer_len()];
    request.emit(&mut payload);
    let mut found = BTreeMap::new();
    let mut connection = Connection::open(libc::NETLINK_SOCK_DIAG)?;
    // A dump may be restarted, and then contains a socket twice.
    connection.dump(SOCK_DIAG_BY_FAMILY, &payload, |reply| {
        if let Some(socket) = socket(protocol, reply)
            && found.len() < MAX_SOCKETS
        {
            found.insert((socket.inode, socket.port, socket.address), socket);
        }
    })?;
    Ok(found.into_values().collect())
}

fn request(protocol: SocketProtocol, v6: bool) -> InetRequest {
    let (number, states) = match protocol {
        SocketProtocol::Tcp => (libc::IPPROTO_TCP, StateFlags::LISTEN),
        SocketProtocol::Udp => (libc::IPPROTO_UDP, StateFlags::CLOSE | StateFlags::ESTABLISHED),
    };
    InetRequest {
        family: if v6 { libc::AF_INET6 } else { libc::AF_INET } as u8,
        protocol: number as u8,
        extensions: ExtensionFlags::SKMEMINFO,
        states,
        socket_id: if v6 { SocketId::new_v6() } else { SocketId::new_v4() },
    }
}

/// The socket of a reply; `None` if it is truncated.
fn socket(protocol: SocketProtocol, reply: &[u8]) -> Option<Socket> {
    let header = InetResponseHeader::parse(reply).ok()?;
    let memory = |word| memory(reply, word).filter(|_| protocol == SocketProtocol::Udp);
    Some(Socket {
        protocol,
        address: header.socket_id.source_address,
        port: header.socket_id.source_port,
        connected: header.state == TCP_ESTABLISHED,
        inode: header.inode.into(),
        pids: Vec::new(),
        drops: memory(SK_MEMINFO_DROPS),
        receive_queue_bytes: memory(SK_MEMINFO_RMEM_ALLOC),
    })
}

/// A number of the socket's memory and drops, if the kernel reports it.
fn memory(reply: &[u8], number: usize) -> Option<u64> {
    let mut attributes = attributes(reply.get(HEADER_BYTES..)?);
    let (_, memory) = attributes.find(|(kind, _)| *kind == INET_DIAG_SKMEMINFO)?;
    let word = memory.get(number * 4..)?.first_chunk::<4>()?;
    Some(u32::from_ne_bytes(*word).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    /// The sockets of the kernel that runs this test, if it has sock_diag.
    fn kernels(protocol: SocketProtocol, v6: bool) -> Option<Vec<Socket>> {
        match read(&Root::live(), protocol, v6) {
            Ok(sockets) => Some(sockets),
            Err(error) => {
                nearpath_testing::skip(&error.to_string());
                None
            }
        }
    }

    #[test]
    fn listeners_are_found_and_connections_are_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let Some(sockets) = kernels(SocketProtocol::Tcp, false) else { return };
        let with = |port| sockets.iter().filter(move |s| s.port == port);
        let found: Vec<_> = with(port).map(|s| (s.address.to_string(), s.connected)).collect();
        assert_eq!(found, [("127.0.0.1".to_owned(), false)]);
        assert_eq!(with(client.local_addr().unwrap().port()).count(), 0);
        assert!(with(port).all(|socket| socket.inode != 0));
    }

    #[test]
    fn datagram_sockets_are_found_connected_or_not() {
        let (one, other) = (UdpSocket::bind("[::1]:0"), UdpSocket::bind("[::1]:0"));
        let (Ok(one), Ok(other)) = (one, other) else {
            nearpath_testing::skip("no IPv6 on the loopback interface");
            return;
        };
        other.connect(one.local_addr().unwrap()).unwrap();
        let Some(sockets) = kernels(SocketProtocol::Udp, true) else { return };
        let connected = |socket: &UdpSocket| {
            let port = socket.local_addr().unwrap().port();
            sockets.iter().find(|s| s.port == port).map(|s| s.connected)
        };
        assert_eq!((connected(&one), connected(&other)), (Some(false), Some(true)));
    }

    #[test]
    fn what_a_full_socket_drops_is_counted() {
        let (socket, sender) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let to = socket.local_addr().unwrap();
        // More than net.core.rmem_default holds on any host.
        for _ in 0..2_000 {
            let _ = sender.send_to(&[0; 16_000], to);
        }
        let Some(sockets) = kernels(SocketProtocol::Udp, false) else { return };
        let drops = |s: &Socket| if s.port == to.port() { s.drops } else { None };
        assert!(sockets.iter().find_map(drops).is_some_and(|drops| drops > 0));
        let text = Root::live().read("/proc/net/udp").unwrap();
        let table = super::super::parse_sockets(
            &text,
            SocketProtocol::Udp,
            super::super::ByteOrder::NATIVE,
        );
        assert_eq!(sockets.iter().find_map(drops), table.sockets.iter().find_map(drops));
    }

    /// `/proc/net` and sock_diag have the same data of a socket.
    #[test]
    fn both_sources_agree() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let Some(sockets) = kernels(SocketProtocol::Tcp, false) else { return };
        let text = Root::live().read("/proc/net/tcp").unwrap();
        let table = super::super::parse_sockets(
            &text,
            SocketProtocol::Tcp,
            super::super::ByteOrder::NATIVE,
        );
        let of = |sockets: &[Socket]| sockets.iter().find(|s| s.port == port).cloned();
        assert_eq!(of(&sockets), of(&table.sockets));
        assert!(of(&sockets).is_some());
    }

    proptest! {
        #[test]
        fn no_reply_panics(reply in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = socket(SocketProtocol::Tcp, &reply);
            let family = [[libc::AF_INET6 as u8, 10, 1, 0].as_slice(), &reply].concat();
            let _ = socket(SocketProtocol::Udp, &family);
        }
    }
}
