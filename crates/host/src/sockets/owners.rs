//! Which processes hold a socket: the links `socket:[inode]` in `/proc/PID/fd`, in one pass over
//! all processes; then what is known of those that hold one.

use crate::processes::{self, parse_cgroup, parse_status};
use crate::{Notes, ReadError, Root};
use nearpath_model::{CpuSet, Socket, SocketOwner};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Threads whose affinity is read, of one process and of all: a status costs the kernel some
/// ten microseconds, and a Java server may have ten thousand threads.
const MAX_THREADS: usize = 1024;
const MAX_THREADS_IN_ALL: usize = 16_384;
/// Threads of a process whose migrations are read: a file of some kilobytes each.
const MAX_MIGRATIONS: usize = 64;

/// Finds the processes of the sockets, and returns what is known of them.
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
        let held = match held_sockets(root, pid, &by_inode) {
            Ok(held) => held,
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

/// The sockets, by their place, that a process holds. Links that vanish are passed over.
fn held_sockets(
    root: &Root,
    pid: u32,
    by_inode: &HashMap<u64, usize>,
) -> Result<BTreeSet<usize>, ReadError> {
    let folder = format!("/proc/{pid}/fd");
    let mut held = BTreeSet::new();
    for entry in root.list(&folder)? {
        let target = match root.link(&format!("{folder}/{}", entry.name)) {
            Ok(target) => target,
            Err(error) if error.absent => continue,
            Err(error) => return Err(error),
        };
        held.extend(socket_inode(&target).and_then(|inode| by_inode.get(&inode)));
    }
    Ok(held)
}

/// The inode in `socket:[20437]`.
pub(super) fn socket_inode(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Processes whose descriptors may not be read.
#[derive(Default)]
struct Refused {
    count: usize,
    first: Option<ReadError>,
}

impl Refused {
    fn count(&mut self, error: ReadError) {
        // A process that has ended holds nothing.
        if !error.absent {
            self.count += 1;
            self.first.get_or_insert(error);
        }
    }

    fn note(self, notes: &mut Notes) {
        if let Some(first) = self.first {
            let reason = format!("not of {} processes; of the first, {first}", self.count);
            notes.add("host", "sockets' processes", &reason);
        }
    }
}

/// How often threads were moved to another CPU, all together; a thread that ends meanwhile counts as
/// none. `None` where the kernel does not tell of the first.
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

/// What is known of a process; `None` if it has ended.
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
        mems_allowed: status.mems,
        cgroup: cgroup.and_then(|bytes| parse_cgroup(&bytes)),
    })
}

/// Where each thread of a process may run, as far as the bounds allow.
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
        // One that ended meanwhile runs nowhere.
        let status = root.read(&format!("{folder}/{tid}/status")).ok()?;
        Some((tid, parse_status(&status).ok()?.cpus?))
    })
    .collect()
}
