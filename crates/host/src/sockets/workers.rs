//! Which thread reads from a socket. A server that forks workers shares all its sockets with all of them, so
//! having one open means little; what a worker waits for means more.
//!
//! Input: sockets with the processes that have them open. Output: the workers of each socket, by the first of
//! these criteria that finds any: the processes that have it in an epoll set (`/proc/PID/fdinfo`); those with a
//! thread that waits in accept(2) or recv(2) on it (`/proc/PID/task/TID/syscall`); the only process that has it
//! open. Within a process whose threads may run on different CPUs, a thread is identified by the epoll set or
//! the socket that it waits for.

use crate::Root;
use crate::processes::{self, parse_status};
use nearpath_model::{CpuSet, Socket, SocketWorker};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

/// A socket with its workers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkedSocket {
    /// The socket's inode.
    pub inode: u64,
    /// A process that has it open, and its descriptor there.
    pub held: Option<(u32, i32)>,
    /// Its workers, ascending; empty if unknown.
    pub workers: Vec<SocketWorker>,
}

/// A busy thread shows what it waits for only occasionally: number of samples.
const LOOKS: u32 = 100;
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
/// Maximum threads sampled per process.
const MAX_THREADS: usize = 1024;

/// Finds the workers of sockets on the running machine.
pub fn socket_workers(root: &Root, sockets: &[&Socket]) -> Vec<WorkedSocket> {
    let inodes: BTreeSet<u64> = sockets.iter().map(|s| s.inode).filter(|&i| i != 0).collect();
    let pids: BTreeSet<u32> = sockets.iter().flat_map(|s| s.pids.iter().copied()).collect();
    let mut holders: Vec<Holder> =
        pids.iter().filter_map(|&pid| Holder::read(root, pid, &inodes)).collect();
    for _ in 0..LOOKS {
        if inodes.iter().all(|&inode| is_known(inode, &holders)) {
            break;
        }
        holders.iter_mut().for_each(|holder| holder.look(root));
        std::thread::sleep(BETWEEN_LOOKS);
    }
    inodes.iter().map(|&inode| worked(inode, &holders)).collect()
}

/// Whether another sample would not add information.
fn is_known(inode: u64, holders: &[Holder]) -> bool {
    let holding = holders.iter().filter(|holder| holder.holds(inode)).count();
    readers(inode, holders).is_some_and(|(how, readers)| match how {
        How::Epoll => readers.iter().all(|h| h.same_cpus() || h.waits_for(inode)),
        How::Waits => true,
        How::Holds => holding == 1 && readers.iter().all(|h| h.same_cpus()),
    })
}

/// How a process is found to read from a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Epoll,
    Waits,
    Holds,
}

fn readers(inode: u64, holders: &[Holder]) -> Option<(How, Vec<&Holder>)> {
    let holding = || holders.iter().filter(|holder| holder.holds(inode));
    let in_epoll: Vec<&Holder> = holding().filter(|holder| holder.watches(inode)).collect();
    let waiting: Vec<&Holder> = holding().filter(|holder| holder.waits_for(inode)).collect();
    match (in_epoll.is_empty(), waiting.is_empty(), holding().count()) {
        (false, _, _) => Some((How::Epoll, in_epoll)),
        (true, false, _) => Some((How::Waits, waiting)),
        (true, true, 1) => Some((How::Holds, holding().collect())),
        _ => None,
    }
}

fn worked(inode: u64, holders: &[Holder]) -> WorkedSocket {
    let held = holders.iter().find_map(|holder| Some((holder.pid, *holder.by_inode.get(&inode)?)));
    let readers = readers(inode, holders).map(|(_, readers)| readers).unwrap_or_default();
    let mut workers: Vec<SocketWorker> =
        readers.into_iter().flat_map(|holder| holder.workers(inode)).collect();
    workers.sort();
    WorkedSocket { inode, held, workers }
}

/// A process that has some of the sockets open.
#[derive(Default)]
struct Holder {
    pid: u32,
    comm: String,
    /// Inodes of those sockets, by descriptor.
    fds: BTreeMap<i32, u64>,
    /// The lowest descriptor of each: a host may have ten thousand descriptors.
    by_inode: HashMap<u64, i32>,
    /// Sockets in an epoll set, by the set's descriptor.
    epolls: BTreeMap<i32, BTreeSet<u64>>,
    /// Sockets in any epoll set.
    watched: HashSet<u64>,
    /// Name and CPUs of each thread.
    threads: BTreeMap<u32, (String, Option<CpuSet>)>,
    /// Sockets that a thread was seen to wait for.
    waits: BTreeMap<u32, BTreeSet<u64>>,
}

impl Holder {
    /// Reads a process; `None` if it has exited or has none of the sockets open.
    fn read(root: &Root, pid: u32, inodes: &BTreeSet<u64>) -> Option<Self> {
        let (mut fds, mut epolls) = (BTreeMap::new(), BTreeMap::new());
        for entry in root.list(&format!("/proc/{pid}/fd")).ok()? {
            let Ok(target) = root.link(&format!("/proc/{pid}/fd/{}", entry.name)) else { continue };
            let Ok(fd) = entry.name.parse::<i32>() else { continue };
            if let Some(inode) = super::owners::socket_inode(&target).filter(|i| inodes.contains(i))
            {
                fds.insert(fd, inode);
            } else if target == "anon_inode:[eventpoll]" {
                let Ok(info) = root.read(&format!("/proc/{pid}/fdinfo/{fd}")) else { continue };
                let set: BTreeSet<u64> =
                    epoll_inodes(&info).filter(|i| inodes.contains(i)).collect();
                epolls.insert(fd, set);
            }
        }
        if fds.is_empty() {
            return None;
        }
        epolls.retain(|_, set: &mut BTreeSet<u64>| !set.is_empty());
        let comm = processes::comm(root, pid).ok()?;
        let tasks = root.list(&format!("/proc/{pid}/task")).ok()?;
        let tids = tasks.iter().take(MAX_THREADS).filter_map(|task| task.name.parse::<u32>().ok());
        let threads = tids.filter_map(|tid| {
            let folder = format!("/proc/{pid}/task/{tid}");
            let status = root.read(&format!("{folder}/status")).ok()?;
            let name = root.text(&format!("{folder}/comm")).ok()?;
            Some((tid, (name, parse_status(&status).ok()?.cpus)))
        });
        let threads = threads.collect();
        let holder = Self { pid, comm, fds, epolls, threads, ..Self::default() };
        Some(holder.indexed())
    }

    fn indexed(mut self) -> Self {
        self.by_inode = self.fds.iter().rev().map(|(&fd, &inode)| (inode, fd)).collect();
        self.watched = self.epolls.values().flatten().copied().collect();
        self
    }

    fn holds(&self, inode: u64) -> bool {
        self.by_inode.contains_key(&inode)
    }

    fn watches(&self, inode: u64) -> bool {
        self.watched.contains(&inode)
    }

    fn waits_for(&self, inode: u64) -> bool {
        self.waits.values().any(|set| set.contains(&inode))
    }

    /// Whether all its threads may run on the same CPUs.
    fn same_cpus(&self) -> bool {
        let mut cpus = self.threads.values().map(|(_, cpus)| cpus);
        let first = cpus.next();
        cpus.all(|other| Some(other) == first)
    }

    /// Samples what each thread waits for.
    fn look(&mut self, root: &Root) {
        for &tid in self.threads.keys() {
            let path = format!("/proc/{}/task/{tid}/syscall", self.pid);
            let Some((call, fd)) = root.text(&path).ok().and_then(|text| system_call(&text)) else {
                continue;
            };
            let seen: BTreeSet<u64> = if waits_in_epoll(call) {
                self.epolls.get(&fd).cloned().unwrap_or_default()
            } else if waits_for_socket(call) {
                self.fds.get(&fd).into_iter().copied().collect()
            } else {
                continue;
            };
            self.waits.entry(tid).or_default().extend(seen);
        }
    }

    /// The threads that read from one of its sockets.
    fn workers(&self, inode: u64) -> Vec<SocketWorker> {
        let seen = self
            .threads
            .iter()
            .filter(|(tid, _)| self.waits.get(tid).is_some_and(|set| set.contains(&inode)));
        let by_thread: Vec<SocketWorker> = seen
            .map(|(&tid, (comm, cpus))| SocketWorker {
                pid: self.pid,
                tid: Some(tid),
                comm: comm.clone(),
                cpus: cpus.clone(),
            })
            .collect();
        if !by_thread.is_empty() {
            return by_thread;
        }
        let cpus = self.threads.values().next().filter(|_| self.same_cpus());
        let tid = self.threads.keys().next().copied().filter(|_| self.threads.len() == 1);
        let cpus = cpus.and_then(|(_, cpus)| cpus.clone());
        vec![SocketWorker { pid: self.pid, tid, comm: self.comm.clone(), cpus }]
    }
}

/// The inodes in an epoll set (fs/eventpoll.c, `ep_show_fdinfo`):
/// `tfd:        6 events:       19 data:  55d6 pos:0 ino:216f98 sdev:8`
fn epoll_inodes(info: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let entries = info.split(|&b| b == b'\n').filter(|line| line.starts_with(b"tfd:"));
    entries.filter_map(|line| {
        let at = line.windows(4).position(|w| w == b"ino:")?;
        let hex = line.get(at + 4..)?.split(|b| !b.is_ascii_hexdigit()).next()?;
        u64::from_str_radix(str::from_utf8(hex).ok()?, 16).ok()
    })
}

/// The number of the system call in which a thread waits, and its first argument (fs/proc/base.c,
/// `proc_pid_syscall`); `None` while it runs.
fn system_call(text: &str) -> Option<(i64, i32)> {
    let mut words = text.split_ascii_whitespace();
    let call = words.next()?.parse().ok()?;
    let first = u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    Some((call, i32::try_from(first & 0xffff_ffff).ok()?))
}

fn waits_in_epoll(call: i64) -> bool {
    #[cfg(target_arch = "x86_64")]
    if call == libc::SYS_epoll_wait {
        return true;
    }
    [libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2].contains(&call)
}

fn waits_for_socket(call: i64) -> bool {
    [
        libc::SYS_accept,
        libc::SYS_accept4,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
        libc::SYS_read,
    ]
    .contains(&call)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoll_sets_list_inodes() {
        let info = b"pos:\t0\nflags:\t02\nmnt_id:\t15\n\
            tfd:        6 events:       19 data:     55d6c0ffee  pos:0 ino:1f4 sdev:8\n\
            tfd:       11 events: 80000019 data:             b  pos:0 ino:20437 sdev:8\ntfd: x\n";
        assert_eq!(epoll_inodes(info).collect::<Vec<_>>(), [0x1f4, 0x20437]);
    }

    #[test]
    fn system_calls_have_descriptors() {
        let text = "281 0x9 0x7ffe 0x200 0xffffffff 0x0 0x8 0x7ffe2 0x7f27\n";
        assert_eq!(system_call(text), Some((281, 9)));
        assert_eq!(system_call("running"), None);
        assert_eq!(system_call("-1 0x7ffe 0x7f27"), Some((-1, 0x7ffe)));
    }

    fn holder(pid: u32, epolls: &[&[u64]], threads: &[(u32, &str, &[u64])]) -> Holder {
        let set = |inodes: &[u64]| inodes.iter().copied().collect::<BTreeSet<_>>();
        let cpus = |list: &str| Some(CpuSet::from_list(list).unwrap());
        Holder {
            pid,
            comm: "server".into(),
            fds: BTreeMap::from([(5, 501), (6, 502)]),
            epolls: (20..).zip(epolls.iter().map(|inodes| set(inodes))).collect(),
            threads: threads.iter().map(|(t, l, _)| (*t, (format!("t{t}"), cpus(l)))).collect(),
            waits: threads.iter().map(|(t, _, inodes)| (*t, set(inodes))).collect(),
            ..Holder::default()
        }
        .indexed()
    }

    /// The workers of sockets 501 and 502 as `pid/tid cpus`.
    fn shown(holders: &[Holder]) -> [Vec<String>; 2] {
        [501, 502].map(|inode| {
            let found = worked(inode, holders);
            assert_eq!(found.held, Some((holders[0].pid, if inode == 501 { 5 } else { 6 })));
            let text = |w: SocketWorker| {
                let cpus = w.cpus.map_or("?".into(), |c| c.to_string());
                format!("{}/{} {cpus}", w.pid, w.tid.unwrap_or(0))
            };
            found.workers.into_iter().map(text).collect()
        })
    }

    #[test]
    fn workers_of_a_forking_server_are_found_by_epoll_sets() {
        // The first is the master, which has both open and watches none.
        let holders = [
            holder(10, &[], &[(10, "0-3", &[])]),
            holder(11, &[&[501]], &[(11, "0", &[])]),
            holder(12, &[&[502]], &[(12, "1", &[])]),
        ];
        assert_eq!(shown(&holders), [vec!["11/11 0"], vec!["12/12 1"]]);
        assert!([501, 502].iter().all(|&inode| is_known(inode, &holders)));
    }

    #[test]
    fn threads_are_found_by_what_they_wait_for() {
        let threads: &[(u32, &str, &[u64])] =
            &[(10, "0-3", &[]), (11, "0", &[501]), (12, "1", &[502])];
        let server = holder(10, &[&[501], &[502]], threads);
        let server = [server];
        assert!(is_known(501, &server) && is_known(502, &server));
        assert_eq!(shown(&server), [["10/11 0"], ["10/12 1"]]);
        // A thread that was never seen waiting: unknown which one it is.
        let busy = holder(10, &[&[501], &[502]], &[(11, "0", &[501]), (12, "1", &[])]);
        let busy = [busy];
        assert!(is_known(501, &busy) && !is_known(502, &busy));
        assert_eq!(shown(&busy), [["10/11 0"], ["10/0 ?"]]);
    }

    #[test]
    fn a_worker_in_accept_and_a_sole_owner() {
        let blocking =
            [holder(10, &[], &[(10, "0", &[501])]), holder(11, &[], &[(11, "1", &[502])])];
        assert_eq!(shown(&blocking), [vec!["10/10 0"], vec!["11/11 1"]]);
        assert_eq!(shown(&[holder(10, &[], &[(10, "2", &[])])]), [["10/10 2"], ["10/10 2"]]);
        // Two have it open and neither is seen to read it.
        let nobody = [holder(10, &[], &[(10, "0", &[])]), holder(11, &[], &[(11, "1", &[])])];
        assert!(!is_known(501, &nobody));
        assert_eq!(shown(&nobody), [Vec::<String>::new(), vec![]]);
    }
}
