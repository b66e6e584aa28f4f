//! Sockets that receive, and the processes behind them.
//!
//! In goes a root, out come the listening TCP and all UDP sockets of the namespace that is
//! read, and their owners with the CPUs that their threads may run on. A process that ends
//! while it is looked at is passed over; processes of other users, whose descriptors may not be
//! read, are noted once.

mod owners;
mod table;
mod workers;

pub use table::{ByteOrder, SocketTable, parse_sockets};
pub use workers::{WorkedSocket, socket_workers};

use crate::{Notes, Root};
use nearpath_model::{Socket, SocketOwner, SocketProtocol};

const TABLES: [(&str, SocketProtocol); 4] = [
    ("/proc/net/tcp", SocketProtocol::Tcp),
    ("/proc/net/tcp6", SocketProtocol::Tcp),
    ("/proc/net/udp", SocketProtocol::Udp),
    ("/proc/net/udp6", SocketProtocol::Udp),
];

/// Tells `little` or `big` (kernel/ksysfs.c, 6.2 and later).
const BYTE_ORDER: &str = "/sys/kernel/cpu_byteorder";

/// Reads the sockets and their owners.
pub fn read(root: &Root, notes: &mut Notes) -> (Vec<Socket>, Vec<SocketOwner>) {
    let mut sockets = Vec::new();
    let order = byte_order(root);
    for (path, protocol) in TABLES {
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
            let reason = format!("{path}: {} lines are not understood", table.malformed);
            notes.add("host", "sockets", &reason);
        }
        if table.cut {
            let reason = format!("{path}: only the first {} sockets", table.sockets.len());
            notes.add("host", "sockets", &reason);
        }
        sockets.extend(table.sockets);
    }
    sockets.sort_by_key(|s| (s.protocol, s.port, s.address, s.inode));
    if order.is_none() && sockets.iter().any(|socket| !socket.address.is_unspecified()) {
        let reason = format!("{BYTE_ORDER} is not there: taken to be as on this machine");
        notes.add("host", "sockets' addresses", &reason);
    }
    let owners = owners::read(root, notes, &mut sockets);
    (sockets, owners)
}

/// The byte order of the machine, which a snapshot may have from elsewhere.
fn byte_order(root: &Root) -> Option<ByteOrder> {
    // Also read on a live machine, so that a snapshot of it has it.
    match root.text(BYTE_ORDER).as_deref() {
        Ok("little") => Some(ByteOrder::Little),
        Ok("big") => Some(ByteOrder::Big),
        _ => root.is_live().then_some(ByteOrder::NATIVE),
    }
}

#[cfg(test)]
mod tests;
