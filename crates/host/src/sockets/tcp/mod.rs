//! TCP sockets with all that the kernel's sock_diag reports about them (net/ipv4/inet_diag.c,
//! net/ipv4/tcp_diag.c), as `ss -tie` does.
//!
//! Input: states and a filter, which the kernel applies. Output: each socket, passed to the caller as it is
//! read: a host may have a hundred thousand.

mod filter;
mod info;
mod reply;

pub use filter::TcpFilter;
pub use info::TcpInfo;
pub use reply::{SocketMemory, TcpSocket, parse_tcp_socket};

use crate::nics::netlink::Connection;
use crate::nics::netlink::attributes::attribute;
use nearpath_model::tcp::TcpState;
use netlink_packet_core::Emitable;
use netlink_packet_sock_diag::SOCK_DIAG_BY_FAMILY;
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use std::io;

/// Attribute of a request: the filter's program (`INET_DIAG_REQ_BYTECODE`, include/uapi/linux/inet_diag.h).
const REQUEST_BYTECODE: u16 = 1;

/// Reads TCP sockets of the network namespace in which it was opened.
pub struct TcpDiag {
    connection: Connection,
}

impl TcpDiag {
    /// Opens a netlink socket.
    ///
    /// # Errors
    /// The kernel has no sock_diag, or refuses it.
    pub fn open() -> io::Result<Self> {
        Ok(Self { connection: Connection::open(libc::NETLINK_SOCK_DIAG)? })
    }

    /// Passes each socket in these states that matches the filter to `each`. Sockets that are closed in the
    /// meantime are missing; one may be passed twice.
    ///
    /// # Errors
    /// The kernel refused, for example because the module `tcp_diag` cannot be loaded; the sockets before the
    /// error were passed.
    pub fn dump(
        &mut self,
        states: &[TcpState],
        filter: &TcpFilter,
        mut each: impl FnMut(TcpSocket),
    ) -> io::Result<()> {
        let bytecode = filter.bytecode()?;
        for v6 in [false, true] {
            let mut payload = request(v6, states);
            if !bytecode.is_empty() {
                payload.extend(attribute(REQUEST_BYTECODE, &bytecode));
            }
            let dumped = self.connection.dump(SOCK_DIAG_BY_FAMILY, &payload, |reply| {
                if let Some(socket) = parse_tcp_socket(reply) {
                    each(socket);
                }
            });
            match dumped {
                // A kernel without IPv6 has no such sockets.
                Err(error) if v6 && error.raw_os_error() == Some(libc::ENOENT) => {}
                dumped => dumped?,
            }
        }
        Ok(())
    }
}

fn request(v6: bool, states: &[TcpState]) -> Vec<u8> {
    let bits = states.iter().fold(0u32, |bits, state| bits | 1 << state.number());
    let request = InetRequest {
        family: if v6 { libc::AF_INET6 } else { libc::AF_INET } as u8,
        protocol: libc::IPPROTO_TCP as u8,
        extensions: ExtensionFlags::INFO | ExtensionFlags::CONG | ExtensionFlags::SKMEMINFO,
        states: StateFlags::from_bits_truncate(bits),
        socket_id: if v6 { SocketId::new_v6() } else { SocketId::new_v4() },
    };
    let mut payload = vec![0; request.buffer_len()];
    request.emit(&mut payload);
    payload
}

#[cfg(test)]
mod tests;
