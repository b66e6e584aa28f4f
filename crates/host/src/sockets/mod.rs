//! Sockets that receive, and the processes behind them.
//!
//! In goes a root, out come the listening TCP and bound UDP sockets of the namespace that is
//! read, and their owners with the CPUs that their threads may run on. A process that ends
//! while it is looked at is passed over; processes of other users, whose descriptors may not be
//! read, are noted once.

mod owners;
mod table;

pub use table::{SocketTable, parse_sockets};

use crate::{Notes, Root, Socket, SocketOwner, SocketProtocol};

const TABLES: [(&str, SocketProtocol); 4] = [
    ("/proc/net/tcp", SocketProtocol::Tcp),
    ("/proc/net/tcp6", SocketProtocol::Tcp),
    ("/proc/net/udp", SocketProtocol::Udp),
    ("/proc/net/udp6", SocketProtocol::Udp),
];

/// Reads the sockets and their owners.
pub(crate) fn read(root: &Root, notes: &mut Notes) -> (Vec<Socket>, Vec<SocketOwner>) {
    let mut sockets = Vec::new();
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
        let table = parse_sockets(&bytes, protocol);
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
    let owners = owners::read(root, notes, &mut sockets);
    (sockets, owners)
}

#[cfg(test)]
mod tests;
