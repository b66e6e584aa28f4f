//! One socket in a reply of sock_diag: `struct inet_diag_msg` and its attributes
//! (include/uapi/linux/inet_diag.h).

use super::TcpInfo;
use crate::nics::netlink::attributes::{attributes, text_of, uint_of};
use nearpath_model::tcp::TcpState;
use netlink_packet_core::Parseable;
use netlink_packet_sock_diag::inet::InetResponseHeader;
use std::net::{IpAddr, SocketAddr};

/// `sizeof(struct inet_diag_msg)`.
const HEADER_BYTES: usize = 72;

/// Types of attributes.
const INFO: u16 = 2;
const CONGESTION: u16 = 4;
const MEMORY: u16 = 7;
const ULP: u16 = 19;
const CGROUP: u16 = 21;
/// Inside of [`ULP`]: its name.
const ULP_NAME: u16 = 1;

/// A TCP socket. Numbers are of the moment at which the kernel wrote the reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TcpSocket {
    /// Whether it is an IPv6 socket; it may carry IPv4.
    pub v6: bool,
    /// Its state.
    pub state: TcpState,
    /// The timer that is armed: 1 retransmission or loss probe, 2 keep-alive, 4 window probe
    /// (`inet_diag_msg_common_fill`).
    pub timer: u8,
    /// Local address and port; IPv4 also where an IPv6 socket carries it.
    pub local: SocketAddr,
    /// Remote address and port.
    pub remote: SocketAddr,
    /// Index of the interface to which it is bound; 0: none.
    pub interface: u32,
    /// Identifies the socket until the next boot, unlike its ports; `None` if the kernel has not assigned one.
    pub cookie: Option<u64>,
    /// Its inode; 0 if no process has it open.
    pub inode: u32,
    /// Owner.
    pub uid: u32,
    /// Bytes received and not read. Of a listening socket: connections not accepted.
    pub receive_queue: u32,
    /// Bytes sent and not acknowledged, or not sent. Of a listening socket: how many connections it holds.
    pub send_queue: u32,
    /// Its memory.
    pub memory: Option<SocketMemory>,
    /// Name of its congestion control.
    pub congestion: Option<String>,
    /// Protocol above TCP inside of the kernel: `tls`, `mptcp`.
    pub ulp: Option<String>,
    /// Id of its cgroup in version 2.
    pub cgroup: Option<u64>,
    /// Its `tcp_info`; listening sockets and those without a full socket have none.
    pub info: Option<TcpInfo>,
}

/// Memory of a socket, in bytes (`SK_MEMINFO_*`, include/uapi/linux/sock_diag.h).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SocketMemory {
    /// Used by received packets.
    pub receive: u32,
    /// Limit of that.
    pub receive_limit: u32,
    /// Used by packets being sent, in queues below TCP.
    pub transmit: u32,
    /// Limit of queued data to send.
    pub send_limit: u32,
    /// Queued data to send.
    pub send_queued: u32,
    /// Reserved and not used.
    pub reserved: u32,
    /// Used by the backlog, which holds packets while a process has the socket locked.
    pub backlog: u32,
    /// Packets dropped because a queue was full.
    pub drops: u32,
}

impl SocketMemory {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let at = |index: usize| Some(u32::from_ne_bytes(*bytes.get(4 * index..)?.first_chunk()?));
        Some(Self {
            receive: at(0)?,
            receive_limit: at(1)?,
            transmit: at(2)?,
            send_limit: at(3)?,
            reserved: at(4)?,
            send_queued: at(5)?,
            backlog: at(7)?,
            drops: at(8)?,
        })
    }
}

/// Parses a reply; `None` if it is truncated or its state is unknown.
pub fn parse_tcp_socket(reply: &[u8]) -> Option<TcpSocket> {
    let header = InetResponseHeader::parse(reply).ok()?;
    let id = header.socket_id;
    let address = |address: IpAddr, port: u16| SocketAddr::new(address.to_canonical(), port);
    // Two words, the lower one first (`sock_diag_save_cookie`, net/core/sock_diag.c).
    let word = |at: usize| Some(u32::from_ne_bytes(*id.cookie.get(at..)?.first_chunk()?));
    let cookie = u64::from(word(0)?) | u64::from(word(4)?) << 32;
    let mut socket = TcpSocket {
        v6: i32::from(header.family) == libc::AF_INET6,
        state: TcpState::from_number(header.state)?,
        timer: *reply.get(2)?,
        local: address(id.source_address, id.source_port),
        remote: address(id.destination_address, id.destination_port),
        interface: id.interface_id,
        cookie: (cookie != u64::MAX).then_some(cookie),
        inode: header.inode,
        uid: header.uid,
        receive_queue: header.recv_queue,
        send_queue: header.send_queue,
        memory: None,
        congestion: None,
        ulp: None,
        cgroup: None,
        info: None,
    };
    for (kind, value) in attributes(reply.get(HEADER_BYTES..)?) {
        match kind {
            INFO => socket.info = TcpInfo::parse(value),
            CONGESTION => socket.congestion = Some(text_of(value)),
            MEMORY => socket.memory = SocketMemory::parse(value),
            CGROUP => socket.cgroup = uint_of(value),
            ULP => {
                let name = attributes(value).find(|(kind, _)| *kind == ULP_NAME);
                socket.ulp = name.map(|(_, name)| text_of(name));
            }
            _ => {}
        }
    }
    Some(socket)
}
