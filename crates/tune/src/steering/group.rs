//! The REUSEPORT groups of a network namespace with their workers and programs, joined from facts of the host and
//! the kernel's BPF iterators; and the selection of one by a request.

use crate::TuneError;
use nearpath_host::{Notes, Root, current_netns, receiving_sockets, socket_workers};
use nearpath_instruments::{
    ReuseportProgram, ReuseportSocket, reuseport_sockets, reuseport_sockets_of,
};
use nearpath_model::{GroupSocket, Program, ReuseportGroup, Socket, SocketProtocol, SocketWorker};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::sockets;

/// Whether it is the program that the kernel reports.
pub fn is_program(program: &Program, found: &ReuseportProgram) -> bool {
    match (program, found) {
        (Program::Nearest { id, tag, .. }, ReuseportProgram::Ebpf { id: there, tag: its, .. }) => {
            id == there && *tag == hex(its)
        }
        (Program::Classic { instructions }, ReuseportProgram::Classic { length, .. }) => {
            instructions.len() == *length as usize && restorable(found).as_ref() == Some(program)
        }
        _ => false,
    }
}

/// A program that the kernel exposes completely, so that it can be restored.
pub fn restorable(found: &ReuseportProgram) -> Option<Program> {
    match found {
        ReuseportProgram::Classic { instructions, .. } if !instructions.is_empty() => {
            Some(Program::Classic { instructions: instructions.clone() })
        }
        _ => None,
    }
}

/// Bytes in the format of a program tag.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The current state of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The group, with its visible sockets.
    pub group: ReuseportGroup,
    /// Number of sockets according to the kernel.
    pub sockets: u32,
    /// The program that selects among them; `None`: the kernel, by hash.
    pub program: Option<ReuseportProgram>,
}

/// Selects a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// TCP or UDP.
    pub protocol: SocketProtocol,
    /// The local port.
    pub port: u16,
    /// The local address, if several groups use the port.
    pub address: Option<IpAddr>,
    /// A process with sockets in it.
    pub pid: Option<u32>,
}

/// The groups of the root's network namespace with a wanted socket. `btf` is a file with the kernel's BTF, for
/// kernels without their own.
///
/// # Errors
/// The groups cannot be queried.
pub fn groups(
    root: &Root,
    btf: Option<&Path>,
    wanted: impl Fn(&Socket) -> bool,
) -> Result<Vec<Found>, TuneError> {
    let mut notes = Notes::default();
    let (sockets, _) = receiving_sockets(root, &mut notes);
    let netns = current_netns(root).inode;
    let workers = |sockets: &[&Socket]| -> Workers {
        socket_workers(root, sockets).into_iter().map(|w| (w.inode, (w.held, w.workers))).collect()
    };
    let Some(btf) = btf else {
        return Ok(joined(&sockets, &reuseport_sockets()?, netns, wanted, workers));
    };
    // Only duplicated sockets can be inspected: those that may share a group with a wanted one.
    let place = |socket: &Socket| (socket.protocol, socket.port);
    let places: BTreeSet<_> = sockets.iter().filter(|s| wanted(s)).map(place).collect();
    let near: Vec<&Socket> = sockets.iter().filter(|s| places.contains(&place(s))).collect();
    let workers = workers(&near);
    let taken = workers.iter().filter_map(|(&inode, &(held, _))| {
        sockets::take(&GroupSocket { inode, held, workers: Vec::new() }).ok()
    });
    let members = reuseport_sockets_of(taken, btf)?;
    Ok(joined(&sockets, &members, netns, wanted, |_| workers))
}

type Workers = BTreeMap<u64, (Option<(u32, i32)>, Vec<SocketWorker>)>;

/// Sockets and groups by inode; then the workers of those groups.
fn joined(
    sockets: &[Socket],
    members: &[ReuseportSocket],
    netns: Option<u64>,
    wanted: impl Fn(&Socket) -> bool,
    workers: impl FnOnce(&[&Socket]) -> Workers,
) -> Vec<Found> {
    let by_inode: BTreeMap<u64, &Socket> = sockets.iter().map(|s| (s.inode, s)).collect();
    let mut groups: BTreeMap<u64, Vec<(&ReuseportSocket, &Socket)>> = BTreeMap::new();
    for member in members {
        if let Some(socket) = by_inode.get(&member.inode) {
            groups.entry(member.group).or_default().push((member, socket));
        }
    }
    groups.retain(|_, group| group.iter().any(|(_, socket)| wanted(socket)));
    let all: Vec<&Socket> = groups.values().flatten().map(|&(_, socket)| socket).collect();
    let mut workers = workers(&all);
    let mut found: Vec<Found> = groups
        .into_values()
        .filter_map(|mut group| {
            group.sort_by_key(|(member, _)| (member.index.is_none(), member.index, member.inode));
            let &(first, socket) = group.first()?;
            let sockets = group.iter().map(|(member, _)| {
                let (held, workers) = workers.remove(&member.inode).unwrap_or_default();
                GroupSocket { inode: member.inode, held, workers }
            });
            let local = SocketAddr::new(socket.address, socket.port);
            let sockets = sockets.collect();
            let group = ReuseportGroup { protocol: socket.protocol, local, netns, sockets };
            Some(Found { group, sockets: first.sockets, program: first.program.clone() })
        })
        .collect();
    found.sort_by_key(|found| (found.group.protocol, found.group.local));
    found
}

/// The one group that matches.
///
/// # Errors
/// None or several match; the message says what to do.
pub fn select(root: &Root, btf: Option<&Path>, request: &Request) -> Result<Found, TuneError> {
    let name = format!("{} port {}", protocol_name(request.protocol), request.port);
    let on_port = |s: &Socket| s.protocol == request.protocol && s.port == request.port;
    let mut found = groups(root, btf, on_port)?;
    let in_groups = !found.is_empty();
    found.retain(|found| {
        let held_by = |pid| {
            let sockets = &found.group.sockets;
            let holders = sockets.iter().flat_map(|s| s.held.map(|(pid, _)| pid));
            let workers = sockets.iter().flat_map(|s| s.workers.iter().map(|w| w.pid));
            holders.chain(workers).any(|other| other == pid)
        };
        request.address.is_none_or(|address| address == found.group.local.ip())
            && request.pid.is_none_or(held_by)
    });
    match found.len() {
        1 => found.pop().ok_or(TuneError::Refused(name)),
        0 if in_groups => Err(TuneError::Refused(format!(
            "{name}: no REUSEPORT group of that address and process"
        ))),
        0 => Err(none(root, request, &name, on_port)),
        _ => {
            let locals = found.iter().map(|f| format!("{} ({} sockets)", f.group.local, f.sockets));
            let locals: Vec<String> = locals.collect();
            Err(TuneError::Refused(format!(
                "{name}: the sockets are in different REUSEPORT groups: {}; select one with \
                 --address",
                locals.join(", ")
            )))
        }
    }
}

/// Why there is no group.
fn none(
    root: &Root,
    request: &Request,
    name: &str,
    on_port: impl Fn(&Socket) -> bool,
) -> TuneError {
    let (sockets, _) = receiving_sockets(root, &mut Notes::default());
    if sockets.iter().any(on_port) {
        return TuneError::Refused(format!(
            "{name}: its sockets are not in a REUSEPORT group; the server must open one per \
             worker (nginx: 'listen ... reuseport')"
        ));
    }
    let link = |pid: &str| root.link(&format!("/proc/{pid}/ns/net")).ok();
    if let Some(pid) = request.pid
        && let (Some(its), Some(ours)) = (link(&pid.to_string()), link("thread-self"))
        && its != ours
    {
        return TuneError::Refused(format!(
            "{name}: process {pid} is in another network namespace; use --netns \
             pid:{pid}"
        ));
    }
    TuneError::Refused(format!("{name}: no socket is bound to it in this network namespace"))
}

/// `TCP` or `UDP`.
pub(super) fn protocol_name(protocol: SocketProtocol) -> &'static str {
    match protocol {
        SocketProtocol::Tcp => "TCP",
        SocketProtocol::Udp => "UDP",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(inode: u64, port: u16) -> Socket {
        let address = IpAddr::from([0, 0, 0, 0]);
        let protocol = SocketProtocol::Tcp;
        Socket {
            protocol,
            address,
            port,
            connected: false,
            inode,
            pids: vec![7],
            drops: None,
            receive_queue_bytes: None,
        }
    }

    fn member(inode: u64, group: u64, index: Option<u32>) -> ReuseportSocket {
        ReuseportSocket { inode, group, sockets: 2, index, program: None }
    }

    #[test]
    fn groups_are_separated_and_keep_the_kernels_order() {
        let sockets = [socket(1, 80), socket(2, 80), socket(3, 81), socket(4, 80)];
        let members = [
            member(3, 9, Some(0)),
            member(1, 8, Some(1)),
            member(2, 8, Some(0)),
            member(99, 8, None),
        ];
        let found = joined(
            &sockets,
            &members,
            Some(5),
            |s| s.port == 80,
            |sockets| {
                assert_eq!(sockets.iter().map(|s| s.inode).collect::<Vec<_>>(), [1, 2]);
                BTreeMap::from([(2, (Some((7, 3)), vec![]))])
            },
        );
        let [only] = found.as_slice() else { panic!("{found:?}") };
        let inodes: Vec<u64> = only.group.sockets.iter().map(|s| s.inode).collect();
        assert_eq!(inodes, [2, 1]);
        assert_eq!(only.group.sockets[0].held, Some((7, 3)));
        assert_eq!(only.group.local.to_string(), "0.0.0.0:80");
    }

    #[test]
    fn programs_are_compared() {
        let modulo = Program::cpu_modulo(12);
        let Program::Classic { instructions } = modulo.clone() else { panic!() };
        let found = ReuseportProgram::Classic { length: 3, instructions };
        assert!(is_program(&modulo, &found) && !is_program(&Program::cpu_modulo(11), &found));
        assert_eq!(restorable(&found), Some(modulo.clone()));
        // Only its length is known.
        let long = ReuseportProgram::Classic { length: 3, instructions: vec![] };
        assert!(!is_program(&modulo, &long) && restorable(&long).is_none());
        let tag = [0xab, 0, 1, 2, 3, 4, 5, 6];
        let ours = Program::Nearest { id: 4, tag: "ab00010203040506".into(), choices: vec![] };
        let found = |id| ReuseportProgram::Ebpf { id, tag, name: "nearpath_steer".into() };
        assert!(
            is_program(&ours, &found(4))
                && !is_program(&ours, &found(5))
                && !is_program(&modulo, &found(4))
        );
        assert!(restorable(&found(4)).is_none());
    }
}
