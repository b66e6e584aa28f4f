//! `/proc/net/{tcp,tcp6,udp,udp6}` (net/ipv4/tcp_ipv4.c, net/ipv4/udp.c): a line per socket.
//!
//! ```text
//!   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
//!    0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20437 …
//! ```
//! Input: the text. Output: the sockets that receive without a prior accept: listening TCP sockets, and UDP
//! sockets, connected or not. A server may have a hundred thousand TCP connections; their lines are skipped
//! after checking the state.

use crate::cpu_table::number;
use nearpath_model::{Socket, SocketProtocol};
use std::net::IpAddr;

/// Maximum number of sockets: each of 65,535 ports may be bound on several addresses, but the text may be
/// untrusted.
pub(super) const MAX_SOCKETS: usize = 262_144;

/// Contents of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SocketTable {
    /// The receiving sockets, without their processes.
    pub sockets: Vec<Socket>,
    /// Number of malformed lines.
    pub malformed: usize,
    /// Whether there were more sockets than the maximum.
    pub cut: bool,
}

/// The byte order of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteOrder {
    /// x86, arm64, ppc64le, riscv.
    Little,
    /// s390, ppc64, sparc.
    Big,
}

impl ByteOrder {
    /// The byte order of this machine.
    pub const NATIVE: Self = if cfg!(target_endian = "big") { Self::Big } else { Self::Little };
}

/// Whether a socket in this state receives and, if so, whether it is connected (include/net/tcp_states.h; UDP
/// has only these two states).
fn connected(state: &[u8], protocol: SocketProtocol) -> Option<bool> {
    match (protocol, state) {
        (SocketProtocol::Tcp, b"0A") => Some(false), // TCP_LISTEN
        (SocketProtocol::Udp, b"07") => Some(false), // TCP_CLOSE
        (SocketProtocol::Udp, b"01") => Some(true),  // TCP_ESTABLISHED
        _ => None,
    }
}

/// Parses one of the tables, of a machine with this byte order.
pub fn parse_sockets(bytes: &[u8], protocol: SocketProtocol, order: ByteOrder) -> SocketTable {
    let mut table = SocketTable::default();
    for line in bytes.split(|&b| b == b'\n').skip(1) {
        let mut words = line.split(|&b| b == b' ').filter(|word| !word.is_empty());
        let Some(local) = words.nth(1) else {
            table.malformed += usize::from(!line.trim_ascii().is_empty());
            continue;
        };
        let Some(connected) = words.nth(1).and_then(|state| connected(state, protocol)) else {
            continue;
        };
        let queued = words.next().and_then(receive_queue);
        let (address, inode) = (address(local, order), words.nth(4).and_then(number));
        let (Some((address, port)), Some(inode)) = (address, inode) else {
            table.malformed += 1;
            continue;
        };
        if table.sockets.len() == MAX_SOCKETS {
            table.cut = true;
            break;
        }
        // `ref pointer drops` follow (`udp4_format_sock`).
        let drops = match protocol {
            SocketProtocol::Udp => words.nth(2).and_then(number),
            SocketProtocol::Tcp => None,
        };
        table.sockets.push(Socket {
            protocol,
            address,
            port,
            connected,
            inode,
            pids: Vec::new(),
            drops,
            receive_queue_bytes: queued.filter(|_| protocol == SocketProtocol::Udp),
        });
    }
    table
}

/// The bytes of `00000000:00000300`, the queues to send and to read.
fn receive_queue(text: &[u8]) -> Option<u64> {
    u64::from_str_radix(str::from_utf8(text).ok()?.split_once(':')?.1, 16).ok()
}

/// `0100007F:1F90`, or four such groups for IPv6. The kernel prints the words of an address in its own byte
/// order.
fn address(text: &[u8], order: ByteOrder) -> Option<(IpAddr, u16)> {
    let (address, port) = str::from_utf8(text).ok()?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    if address.len() == 8 {
        return Some((IpAddr::from(word(address, order)?), port));
    }
    let mut octets = [0; 16];
    if address.len() != 32 {
        return None;
    }
    for (i, to) in octets.chunks_exact_mut(4).enumerate() {
        to.copy_from_slice(&word(address.get(i * 8..i * 8 + 8)?, order)?);
    }
    Some((IpAddr::from(octets), port))
}

fn word(hex: &str, order: ByteOrder) -> Option<[u8; 4]> {
    let word = u32::from_str_radix(hex, 16).ok()?;
    Some(match order {
        ByteOrder::Little => word.to_le_bytes(),
        ByteOrder::Big => word.to_be_bytes(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Address and port, and the inode.
    fn shown(table: &SocketTable) -> Vec<(String, u64)> {
        table.sockets.iter().map(|s| (format!("{} {}", s.address, s.port), s.inode)).collect()
    }

    #[test]
    fn sockets_that_receive() {
        let table = parse_sockets(
            include_bytes!("fixtures/tcp.txt"),
            SocketProtocol::Tcp,
            ByteOrder::Little,
        );
        assert_eq!(shown(&table), [("127.0.0.1 8080".into(), 20437), ("0.0.0.0 22".into(), 1180)]);
        let table = parse_sockets(
            include_bytes!("fixtures/tcp6.txt"),
            SocketProtocol::Tcp,
            ByteOrder::Little,
        );
        assert_eq!(shown(&table), [(":: 5201".into(), 31001), ("2001:db8::7 443".into(), 31002)]);
        let table = parse_sockets(
            include_bytes!("fixtures/udp.txt"),
            SocketProtocol::Udp,
            ByteOrder::Little,
        );
        let expected = [("0.0.0.0 68", 933), ("10.0.0.5 53", 1044), ("10.0.0.5 40000", 1050)];
        assert_eq!(shown(&table), expected.map(|(socket, inode)| (socket.to_owned(), inode)));
        let connected: Vec<_> = table.sockets.iter().map(|s| s.connected).collect();
        assert_eq!(connected, [false, false, true]);
        let drops: Vec<_> = table.sockets.iter().map(|s| s.drops).collect();
        assert_eq!(drops, [Some(0), Some(17), Some(0)]);
        assert_eq!((table.malformed, table.cut), (0, false));
    }

    #[test]
    fn addresses_of_a_big_endian_machine() {
        let line = "h\n 0: 7F000001:1F90 0:0 0A 0 0 0 0 0 7\n \
            1: 20010DB8000000000000000000000007:01BB 0:0 0A 0 0 0 0 0 8\n";
        let table = parse_sockets(line.as_bytes(), SocketProtocol::Tcp, ByteOrder::Big);
        let expected = [("127.0.0.1 8080".into(), 7), ("2001:db8::7 443".into(), 8)];
        assert_eq!(shown(&table), expected);
    }

    #[test]
    fn malformed_lines_are_counted() {
        let text =
            b"header\n 0: 0100007F:1F90 0:0 0A 0 0 0 0 0 x\n 1: 01:1 0:0 0A 0 0 0 0 0 1\nzz\n\n\
            2: 0100007F:1F90 0:0 01 0 0 0 0 0 1\n 3: \xff:1 0:0 0A 0 0 0 0 0 1\n";
        let table = parse_sockets(text, SocketProtocol::Tcp, ByteOrder::Little);
        assert_eq!((table.sockets.len(), table.malformed), (0, 4));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_sockets(&bytes, SocketProtocol::Udp, ByteOrder::Little);
            let line = [b"\n 0: ", &bytes[..], b" 0:0 07 0 0 0 0 0 7"].concat();
            let _ = parse_sockets(&line, SocketProtocol::Udp, ByteOrder::Little);
        }

        #[test]
        fn addresses_round_trip(address: [u32; 4], port: u16, inode: u64) {
            let hex: String = address.iter().map(|w| format!("{:08X}", u32::from_le_bytes(w.to_be_bytes()))).collect();
            let text = format!("h\n  12: {hex}:{port:04X} 0:0 0A 0:0 0:0 0 0 0 {inode} 1 0\n");
            let table = parse_sockets(text.as_bytes(), SocketProtocol::Tcp, ByteOrder::Little);
            let socket = &table.sockets[0];
            let expected: Vec<u8> = address.iter().flat_map(|w| w.to_be_bytes()).collect();
            let IpAddr::V6(read) = socket.address else { panic!("{socket:?}") };
            prop_assert_eq!(read.octets().to_vec(), expected);
            prop_assert_eq!((socket.port, socket.inode), (port, inode));
        }
    }
}
