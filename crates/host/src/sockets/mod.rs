//! Receiving sockets and the processes that own them.
//!
//! Input: a root. Output: the listening TCP and all UDP sockets of the namespace (by sock_diag, else from
//! `/proc/net`), and their owners with the CPUs that their threads may run on. A process that exits in the
//! meantime is skipped; processes of other users, whose descriptors are not accessible, are noted once.

mod diag;
mod owners;
mod table;
mod tcp;
mod workers;

pub use owners::{ConnectionOwner, connection_owners};
pub use table::{ByteOrder, SocketTable, parse_sockets};
pub use tcp::{SocketMemory, TcpDiag, TcpFilter, TcpInfo, TcpSocket, parse_tcp_socket};
pub use workers::{WorkedSocket, socket_workers};

use crate::{Notes, Root};
use nearpath_model::{Socket, SocketOwner, SocketProtocol};

const TABLES: [(&str, SocketProtocol); 4] = [
    ("/proc/net/tcp", SocketProtocol::Tcp),
    ("/proc/net/tcp6", SocketProtocol::Tcp),
    ("/proc/net/udp", SocketProtocol::Udp),
    ("/proc/net/udp6", SocketProtocol::Udp),
];

/// Contains `little` or `big` (kernel/ksysfs.c, since 6.2).
const BYTE_ORDER: &str = "/sys/kernel/cpu_byteorder";

/// Reads the sockets and their owners.
pub fn read(root: &Root, notes: &mut Notes) -> (Vec<Socket>, Vec<SocketOwner>) {
    let mut sockets = Vec::new();
    let order = byte_order(root);
    let mut addresses_in_order = false;
    for (path, protocol) in TABLES {
        if let Ok(answered) = diag::read(root, protocol, path.ends_with('6')) {
            sockets.extend(answered);
            continue;
        }
        let bytes = match root.read(path) {
            Ok(bytes) => bytes,
            // A kernel without IPv6 has no such table, and no such socket.
            Err(error) if error.absent && path.ends_with('6') => continue,
            Err(error) => {
                notes.add("host", "sockets", &error.to_string());
                continue;
            }
        };
        let table = parse_sockets(&bytes, protocol, order.unwrap_or(ByteOrder::NATIVE));
        if table.malformed > 0 {
            let reason = format!("{path}: {} malformed lines", table.malformed);
            notes.add("host", "sockets", &reason);
        }
        if table.cut {
            let reason =
                format!("{path}: only the first {} sockets were read", table.sockets.len());
            notes.add("host", "sockets", &reason);
        }
        addresses_in_order |= table.sockets.iter().any(|s| !s.address.is_unspecified());
        sockets.extend(table.sockets);
    }
    sockets.sort_by_key(|s| (s.protocol, s.port, s.address, s.inode));
    if order.is_none() && addresses_in_order {
        let reason = format!("{BYTE_ORDER} not found: assumed to be that of this machine");
        notes.add("host", "sockets' addresses", &reason);
    }
    let owners = owners::read(root, notes, &mut sockets);
    (sockets, owners)
}

/// The byte order of the machine, which differs if a snapshot is from another architecture.
fn byte_order(root: &Root) -> Option<ByteOrder> {
    // Also read on a live machine, so that its snapshot contains it.
    match root.text(BYTE_ORDER).as_deref() {
        Ok("little") => Some(ByteOrder::Little),
        Ok("big") => Some(ByteOrder::Big),
        _ => root.is_live().then_some(ByteOrder::NATIVE),
    }
}

#[cfg(test)]
mod tests;
