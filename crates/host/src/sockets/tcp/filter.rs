//! A filter of sockets, as the program that the kernel runs for each (`inet_diag_bc_run`, `inet_diag_bc_audit`
//! of net/ipv4/inet_diag.c; `struct inet_diag_bc_op` and `inet_diag_hostcond`, include/uapi/linux/inet_diag.h).
//!
//! An operation says how many bytes to continue when it holds and when it does not. At the end the socket is
//! reported; 4 bytes beyond, it is not.

use ipnet::IpNet;
use std::io;
use std::net::IpAddr;

/// `INET_DIAG_BC_*`.
const JUMP: u8 = 1;
const LOCAL_PORT_GE: u8 = 2;
const LOCAL_PORT_LE: u8 = 3;
const REMOTE_PORT_GE: u8 = 4;
const REMOTE_PORT_LE: u8 = 5;
const LOCAL_HOST: u8 = 7;
const REMOTE_HOST: u8 = 8;

/// Length of an operation without operands.
const OPERATION_BYTES: usize = 4;

/// Which sockets are wanted; all given conditions must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TcpFilter {
    /// Of this local port.
    pub sport: Option<u16>,
    /// Of this remote port.
    pub dport: Option<u16>,
    /// Of this port, local or remote.
    pub port: Option<u16>,
    /// With a local address in this network.
    pub src: Option<IpNet>,
    /// With a remote address in this network.
    pub dst: Option<IpNet>,
    /// With a local or remote address in this network.
    pub host: Option<IpNet>,
}

/// A condition on one end.
#[derive(Clone, Copy)]
enum Condition {
    LocalPort(u16),
    RemotePort(u16),
    LocalHost(IpNet),
    RemoteHost(IpNet),
}

impl TcpFilter {
    /// Whether a socket with these ends is wanted; for sources that do not pass the kernel's filter.
    pub fn matches(&self, (src, sport): (IpAddr, u16), (dst, dport): (IpAddr, u16)) -> bool {
        let is_port = |wanted: Option<u16>, port| wanted.is_none_or(|wanted| wanted == port);
        let is_in = |net: Option<IpNet>, address: IpAddr| net.is_none_or(|n| n.contains(&address));
        is_port(self.sport, sport)
            && is_port(self.dport, dport)
            && (is_port(self.port, sport) || is_port(self.port, dport))
            && is_in(self.src, src)
            && is_in(self.dst, dst)
            && (is_in(self.host, src) || is_in(self.host, dst))
    }

    /// The program; empty if all sockets are wanted.
    ///
    /// # Errors
    /// It is too long, which conditions of this type cannot be.
    pub(super) fn bytecode(&self) -> io::Result<Vec<u8>> {
        use Condition::{LocalHost, LocalPort, RemoteHost, RemotePort};
        let clauses: Vec<Vec<Condition>> = [
            self.sport.map(|port| vec![LocalPort(port)]),
            self.dport.map(|port| vec![RemotePort(port)]),
            self.port.map(|port| vec![LocalPort(port), RemotePort(port)]),
            self.src.map(|net| vec![LocalHost(net)]),
            self.dst.map(|net| vec![RemoteHost(net)]),
            self.host.map(|net| vec![LocalHost(net), RemoteHost(net)]),
        ]
        .into_iter()
        .flatten()
        .collect();
        // From the last clause to the first, as each must know how far the end is.
        let mut program = Vec::new();
        for clause in clauses.iter().rev() {
            program = [either(clause, program.len())?, program].concat();
        }
        Ok(program)
    }
}

/// A clause that holds if one of its conditions does, followed by `rest` bytes.
fn either(conditions: &[Condition], rest: usize) -> io::Result<Vec<u8>> {
    let mut program: Vec<u8> = Vec::new();
    for (index, condition) in conditions.iter().enumerate().rev() {
        let is_last = index + 1 == conditions.len();
        // If it holds, the other conditions are skipped; if not, they are tried.
        let skip = if is_last { Vec::new() } else { jump(OPERATION_BYTES + program.len())? };
        let otherwise = if is_last { rest + OPERATION_BYTES } else { skip.len() };
        program = [condition.operations(otherwise)?, skip, program].concat();
    }
    Ok(program)
}

impl Condition {
    /// Its operations; `otherwise` is how far after them to continue if it does not hold.
    fn operations(self, otherwise: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::LocalPort(port) => ports(LOCAL_PORT_GE, LOCAL_PORT_LE, port, otherwise),
            Self::RemotePort(port) => ports(REMOTE_PORT_GE, REMOTE_PORT_LE, port, otherwise),
            Self::LocalHost(net) => host(LOCAL_HOST, net, otherwise),
            Self::RemoteHost(net) => host(REMOTE_HOST, net, otherwise),
        }
    }
}

/// A port that is at least and at most this. The number follows in the field of a second operation.
fn ports(at_least: u8, at_most: u8, port: u16, otherwise: usize) -> io::Result<Vec<u8>> {
    const LENGTH: usize = 2 * OPERATION_BYTES;
    let compare = |code: u8, left: usize| -> io::Result<Vec<u8>> {
        Ok([operation(code, LENGTH, left + otherwise)?, operation(0, 0, port.into())?].concat())
    };
    Ok([compare(at_least, 2 * LENGTH)?, compare(at_most, LENGTH)?].concat())
}

/// An address in a network, with any port.
fn host(code: u8, net: IpNet, otherwise: usize) -> io::Result<Vec<u8>> {
    let (family, address) = match net.network() {
        IpAddr::V4(address) => (libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, address.octets().to_vec()),
    };
    let mut condition = vec![family as u8, net.prefix_len(), 0, 0];
    condition.extend((-1i32).to_ne_bytes());
    condition.extend(address);
    let length = OPERATION_BYTES + condition.len();
    Ok([operation(code, length, length + otherwise)?, condition].concat())
}

/// Continues this far after itself.
fn jump(distance: usize) -> io::Result<Vec<u8>> {
    operation(JUMP, OPERATION_BYTES, distance)
}

fn operation(code: u8, yes: usize, no: usize) -> io::Result<Vec<u8>> {
    let yes = u8::try_from(yes).map_err(io::Error::other)?;
    let no = u16::try_from(no).map_err(io::Error::other)?;
    let [low, high] = no.to_ne_bytes();
    Ok(vec![code, yes, low, high])
}
