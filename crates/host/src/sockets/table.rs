//! `/proc/net/{tcp,tcp6,udp,udp6}` (net/ipv4/tcp_ipv4.c, net/ipv4/udp.c): a line for each socket.
//!
//! ```text
//!   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
//!    0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 20437 …
//! ```
//! In goes the text, out come the sockets that receive from anybody: listening TCP, and UDP that
//! is bound and not connected. A server may have a hundred thousand connections: their lines are
//! passed over by their state alone.

use crate::cpu_table::number;
use crate::{Socket, SocketProtocol};
use std::net::IpAddr;

/// More sockets than this are not kept: each of 65,535 ports of several addresses may be bound,
/// but the text may come from a stranger.
const MAX_SOCKETS: usize = 262_144;

/// What a table tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SocketTable {
    /// The sockets that receive, without their processes.
    pub sockets: Vec<Socket>,
    /// Lines that are not understood.
    pub malformed: usize,
    /// Whether there were more sockets than are kept.
    pub cut: bool,
}

/// Reads the text of one of the tables.
pub fn parse_sockets(bytes: &[u8], protocol: SocketProtocol) -> SocketTable {
    let mut table = SocketTable::default();
    let state: &[u8] = match protocol {
        SocketProtocol::Tcp => b"0A", // TCP_LISTEN (include/net/tcp_states.h)
        SocketProtocol::Udp => b"07", // TCP_CLOSE: UDP that is not connected
    };
    for line in bytes.split(|&b| b == b'\n').skip(1) {
        let mut words = line.split(|&b| b == b' ').filter(|word| !word.is_empty());
        let Some(local) = words.nth(1) else {
            table.malformed += usize::from(!line.trim_ascii().is_empty());
            continue;
        };
        if words.nth(1) != Some(state) {
            continue;
        }
        let (address, inode) = (address(local), words.nth(5).and_then(number));
        let (Some((address, port)), Some(inode)) = (address, inode) else {
            table.malformed += 1;
            continue;
        };
        if table.sockets.len() == MAX_SOCKETS {
            table.cut = true;
            break;
        }
        table.sockets.push(Socket { protocol, address, port, inode, pids: Vec::new() });
    }
    table
}

/// `0100007F:1F90`, or four such groups for IPv6. The kernel prints the words of an address in
/// its own byte order; a tree is taken to come from a machine of the same order as this one.
fn address(text: &[u8]) -> Option<(IpAddr, u16)> {
    let (address, port) = str::from_utf8(text).ok()?.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    if address.len() == 8 {
        return Some((IpAddr::from(word(address)?), port));
    }
    let mut octets = [0; 16];
    if address.len() != 32 {
        return None;
    }
    for (i, to) in octets.chunks_exact_mut(4).enumerate() {
        to.copy_from_slice(&word(address.get(i * 8..i * 8 + 8)?)?);
    }
    Some((IpAddr::from(octets), port))
}

fn word(hex: &str) -> Option<[u8; 4]> {
    Some(u32::from_str_radix(hex, 16).ok()?.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Address and port as people write them, and the inode.
    fn shown(table: &SocketTable) -> Vec<(String, u64)> {
        table.sockets.iter().map(|s| (format!("{} {}", s.address, s.port), s.inode)).collect()
    }

    #[test]
    #[cfg(target_endian = "little")] // the fixtures are from such a machine
    fn sockets_that_receive() {
        let table = parse_sockets(include_bytes!("fixtures/tcp.txt"), SocketProtocol::Tcp);
        assert_eq!(shown(&table), [("127.0.0.1 8080".into(), 20437), ("0.0.0.0 22".into(), 1180)]);
        let table = parse_sockets(include_bytes!("fixtures/tcp6.txt"), SocketProtocol::Tcp);
        assert_eq!(shown(&table), [(":: 5201".into(), 31001), ("2001:db8::7 443".into(), 31002)]);
        let table = parse_sockets(include_bytes!("fixtures/udp.txt"), SocketProtocol::Udp);
        assert_eq!(shown(&table), [("0.0.0.0 68".into(), 933), ("10.0.0.5 53".into(), 1044)]);
        assert_eq!((table.malformed, table.cut), (0, false));
    }

    #[test]
    fn other_text_is_counted() {
        let text =
            b"header\n 0: 0100007F:1F90 0:0 0A 0 0 0 0 0 x\n 1: 01:1 0:0 0A 0 0 0 0 0 1\nzz\n\n\
            2: 0100007F:1F90 0:0 01 0 0 0 0 0 1\n 3: \xff:1 0:0 0A 0 0 0 0 0 1\n";
        let table = parse_sockets(text, SocketProtocol::Tcp);
        assert_eq!((table.sockets.len(), table.malformed), (0, 4));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_sockets(&bytes, SocketProtocol::Udp);
            let line = [b"\n 0: ", &bytes[..], b" 0:0 07 0 0 0 0 0 7"].concat();
            let _ = parse_sockets(&line, SocketProtocol::Udp);
        }

        #[test]
        fn addresses_read_back(address: [u32; 4], port: u16, inode: u64) {
            let hex: String = address.iter().map(|w| format!("{:08X}", u32::from_ne_bytes(w.to_be_bytes()))).collect();
            let text = format!("h\n  12: {hex}:{port:04X} 0:0 0A 0:0 0:0 0 0 0 {inode} 1 0\n");
            let table = parse_sockets(text.as_bytes(), SocketProtocol::Tcp);
            let socket = &table.sockets[0];
            let expected: Vec<u8> = address.iter().flat_map(|w| w.to_be_bytes()).collect();
            let IpAddr::V6(read) = socket.address else { panic!("{socket:?}") };
            prop_assert_eq!(read.octets().to_vec(), expected);
            prop_assert_eq!((socket.port, socket.inode), (port, inode));
        }
    }
}
