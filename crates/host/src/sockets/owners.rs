//! The processes that have a socket open: the links `socket:[inode]` in `/proc/PID/fd`, in one pass over all
//! processes; then the facts of those processes.

use crate::processes::{self, parse_cgroup, parse_status};
use crate::{Notes, ReadError, Root};
use nearpath_model::{CpuSet, Socket, SocketOwner};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Maximum threads whose affinity is read, per process and in total: a status costs the kernel some ten
/// microseconds, and a Java server may have ten thousand threads.
const MAX_THREADS: usize = 1024;
const MAX_THREADS_IN_ALL: usize = 16_384;
/// Maximum threads per process whose migrations are read: each is a file of some kilobytes.
const MAX_MIGRATIONS: usize = 64;
/// Maximum descriptors of processes of other network namespaces that are read for a connection's owner: each costs
/// a microsecond, and a proxy in a container may have a million, none of them of this namespace.
const MAX_DESCRIPTORS_OF_OTHERS: usize = 65_536;

/// Finds the processes of the sockets, and returns their facts.
pub(super) fn read(root: &Root, notes: &mut Notes, sockets: &mut [Socket]) -> Vec<SocketOwner> {
    let mut by_inode: HashMap<u64, usize> = HashMap::new();
    for (i, socket) in sockets.iter().enumerate().filter(|(_, socket)| socket.inode != 0) {
        by_inode.insert(socket.inode, i);
    }
    if by_inode.is_empty() {
        return Vec::new();
    }
    let Some(pids) = notes.take("host", "sockets' processes", processes::pids(root)) else {
        return Vec::new();
    };
    let mut owners = Vec::new();
    let mut refused = Refused::default();
    let mut threads_left = MAX_THREADS_IN_ALL;
    for pid in pids {
        let held = match held_sockets(root, pid, &by_inode, usize::MAX) {
            Ok(Held::Sockets { held, .. }) => held,
            Ok(Held::TooMany) => continue,
            Err(error) => {
                refused.count(error);
                continue;
            }
        };
        for &i in &held {
            sockets.get_mut(i).into_iter().for_each(|socket| socket.pids.push(pid));
        }
        if !held.is_empty() {
            owners.extend(owner(root, notes, pid, &mut threads_left));
        }
    }
    refused.note(notes);
    owners
}

/// The process that has a connection open; of several, the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectionOwner {
    /// Process id.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Its cgroup, as in `/proc/PID/cgroup`.
    pub cgroup: Option<String>,
}

/// Finds the processes of sockets by their inodes, in one pass over processes that ends when all are found: those of
/// the network namespace first, then a limited number of descriptors of the others. A process that exits in the
/// meantime is skipped.
///
/// Returns also why the processes of some sockets are missing: descriptors of other users are not accessible.
pub fn connection_owners(
    root: &Root,
    wanted: &HashSet<u64>,
) -> (HashMap<u64, ConnectionOwner>, Option<String>) {
    let mut owners = HashMap::new();
    if wanted.is_empty() {
        return (owners, None);
    }
    let pids = match processes::pids(root) {
        Ok(pids) => pids,
        Err(error) => return (owners, Some(error.to_string())),
    };
    let mut missing: HashMap<u64, u64> = wanted.iter().map(|&inode| (inode, inode)).collect();
    let mut refused = Refused::default();
    let (own, others) = by_namespace(root, pids);
    let mut left_of_others = MAX_DESCRIPTORS_OF_OTHERS;
    let mut is_truncated = false;
    let unlimited = own.into_iter().map(|pid| (pid, false));
    for (pid, is_limited) in unlimited.chain(others.into_iter().map(|pid| (pid, true))) {
        let most = if is_limited { left_of_others } else { usize::MAX };
        let held = match held_sockets(root, pid, &missing, most) {
            Ok(Held::TooMany) => {
                is_truncated = true;
                continue;
            }
            Ok(Held::Sockets { held, descriptors }) => {
                left_of_others -= if is_limited { descriptors } else { 0 };
                held
            }
            Err(error) => {
                refused.count(error);
                continue;
            }
        };
        if held.is_empty() {
            continue;
        }
        let Ok(comm) = processes::comm(root, pid) else { continue };
        let owner = ConnectionOwner { pid, comm, cgroup: processes::cgroup_of(root, pid) };
        for inode in held {
            missing.remove(&inode);
            owners.insert(inode, owner.clone());
        }
        if missing.is_empty() {
            return (owners, None);
        }
    }
    let truncated = is_truncated.then(|| {
        format!(
            "of other network namespaces, only {MAX_DESCRIPTORS_OF_OTHERS} descriptors were read"
        )
    });
    (owners, refused.reason().or(truncated))
}

/// The processes of the current network namespace, or of one that is unknown; and the others, which can have a socket
/// of this one as well (it was passed to them, or they entered theirs later).
fn by_namespace(root: &Root, pids: Vec<u32>) -> (Vec<u32>, Vec<u32>) {
    let Ok(own) = root.link("/proc/thread-self/ns/net") else { return (pids, Vec::new()) };
    pids.into_iter()
        .partition(|pid| root.link(&format!("/proc/{pid}/ns/net")).map_or(true, |its| its == own))
}

/// What a process has open.
enum Held<T> {
    /// More descriptors than may be read.
    TooMany,
    /// The sockets that are wanted, of so many descriptors.
    Sockets { held: BTreeSet<T>, descriptors: usize },
}

/// What is known of the sockets that a process has open, if it has no more descriptors than `most`. Links that vanish
/// are skipped.
fn held_sockets<T: Copy + Ord>(
    root: &Root,
    pid: u32,
    by_inode: &HashMap<u64, T>,
    most: usize,
) -> Result<Held<T>, ReadError> {
    let folder = format!("/proc/{pid}/fd");
    let mut held = BTreeSet::new();
    let entries = root.list(&folder)?;
    let descriptors = entries.len();
    if descriptors > most {
        return Ok(Held::TooMany);
    }
    for entry in entries {
        let target = match root.link(&format!("{folder}/{}", entry.name)) {
            Ok(target) => target,
            Err(error) if error.absent => continue,
            Err(error) => return Err(error),
        };
        held.extend(socket_inode(&target).and_then(|inode| by_inode.get(&inode)).copied());
    }
    Ok(Held::Sockets { held, descriptors })
}

/// The inode in `socket:[20437]`.
pub(super) fn socket_inode(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Processes whose descriptors are not accessible.
#[derive(Default)]
struct Refused {
    count: usize,
    first: Option<ReadError>,
}

impl Refused {
    fn count(&mut self, error: ReadError) {
        // A process that has exited has no sockets.
        if !error.absent {
            self.count += 1;
            self.first.get_or_insert(error);
        }
    }

    fn reason(self) -> Option<String> {
        let first = self.first?;
        Some(format!("not of {} processes; of the first, {first}", self.count))
    }

    fn note(self, notes: &mut Notes) {
        if let Some(reason) = self.reason() {
            notes.add("host", "sockets' processes", &reason);
        }
    }
}

/// How often threads migrated to another CPU, in total; a thread that exits in the meantime counts as none.
/// `None` if the kernel does not report it for the first thread.
fn migrations<'a>(root: &Root, pid: u32, tids: impl Iterator<Item = &'a u32>) -> Option<u64> {
    let mut sum = None;
    for tid in tids.take(MAX_MIGRATIONS) {
        let count = root
            .read(&format!("/proc/{pid}/task/{tid}/sched"))
            .ok()
            .and_then(|bytes| parse_migrations(&bytes));
        match (count, sum) {
            (None, None) => return None,
            (count, _) => sum = Some(sum.unwrap_or(0u64).saturating_add(count.unwrap_or(0))),
        }
    }
    sum
}

/// The line `se.nr_migrations : 7` of kernel/sched/debug.c.
fn parse_migrations(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let line = text.lines().find(|line| line.starts_with("se.nr_migrations"))?;
    line.rsplit_once(':')?.1.trim().parse().ok()
}

/// Fields 14 and 15 of `/proc/PID/stat` (proc_pid_stat(5)): the user and kernel time of all its threads. The
/// second field is the name in parentheses, which may contain anything.
fn cpu_ticks(stat: &[u8]) -> Option<u64> {
    let end_of_name = stat.iter().rposition(|&byte| byte == b')')?;
    let rest = String::from_utf8_lossy(stat.get(end_of_name + 1..)?).into_owned();
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    user.checked_add(system)
}

/// The facts of a process; `None` if it has exited.
fn owner(
    root: &Root,
    notes: &mut Notes,
    pid: u32,
    threads_left: &mut usize,
) -> Option<SocketOwner> {
    let subject = format!("process {pid}");
    let comm = processes::comm(root, pid).ok()?;
    let path = format!("/proc/{pid}/status");
    let status = root
        .read(&path)
        .and_then(|bytes| parse_status(&bytes).map_err(|e| ReadError::new(&path, &e.to_string())));
    let status = notes.take(&subject, "affinity", status).unwrap_or_default();
    let threads = threads(root, notes, pid, threads_left);
    let migrations = migrations(root, pid, threads.keys());
    let cgroup = notes.take(&subject, "cgroup", root.read(&format!("/proc/{pid}/cgroup")));
    Some(SocketOwner {
        pid,
        comm,
        affinity: status.cpus,
        threads,
        migrations,
        cpu_ticks: root.read(&format!("/proc/{pid}/stat")).ok().and_then(|stat| cpu_ticks(&stat)),
        cpuset: None,
        mems_allowed: status.mems,
        cgroup: cgroup.and_then(|bytes| parse_cgroup(&bytes)),
    })
}

/// The affinity of each thread of a process, within the bounds.
fn threads(root: &Root, notes: &mut Notes, pid: u32, left: &mut usize) -> BTreeMap<u32, CpuSet> {
    let folder = format!("/proc/{pid}/task");
    let subject = format!("process {pid}");
    let tasks = match root.list(&folder) {
        Ok(tasks) => tasks,
        Err(error) if error.absent && root.is_live() => return BTreeMap::new(),
        Err(error) => {
            notes.add(&subject, "threads", &error.to_string());
            return BTreeMap::new();
        }
    };
    let most = MAX_THREADS.min(*left);
    if tasks.len() > most {
        let reason = format!("{folder}: only {most} of {} threads were read", tasks.len());
        notes.add(&subject, "threads", &reason);
    }
    *left -= most.min(tasks.len());
    let tids = tasks.iter().take(most).filter_map(|task| task.name.parse::<u32>().ok());
    tids.filter_map(|tid| {
        // A thread that has exited runs nowhere.
        let status = root.read(&format!("{folder}/{tid}/status")).ok()?;
        Some((tid, parse_status(&status).ok()?.cpus?))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let stat = b"4711 (a) R (b) S 1 2 3 0 -1 4194304 5 0 0 0 120 30 0 0 20 0 1 0 99\n";
        assert_eq!(cpu_ticks(stat), Some(150));
        for broken in [b"".as_slice(), b"1 (x)", b"1 (x) S 1 2 3", b"no name"] {
            assert_eq!(cpu_ticks(broken), None);
        }
    }
}
