//! Pins workers that may run on every CPU, so that their group can be steered: the workers of each socket get their
//! own CPU.
//!
//! Input: a group. Output: affinity changes of its workers, and the resulting group. They are applied before the
//! group is steered, and undone when steering is removed.

use super::group::{Found, protocol_name};
use crate::TuneError;
use nearpath_host::Root;
use nearpath_model::{Change, CpuId, CpuSet, Entry, Persistence, Target, Thread, Topology, Value};
use std::collections::BTreeMap;

/// The changes that pin unpinned workers. Pinned workers keep their CPUs.
///
/// # Errors
/// The thread that reads from a socket is unknown, or there is only one CPU.
pub fn pins(root: &Root, topology: &Topology, found: &mut Found) -> Result<Vec<Change>, TuneError> {
    let name = format!("{} {}", protocol_name(found.group.protocol), found.group.local);
    let refuse = |reason: String| TuneError::Refused(format!("{name}: {reason}"));
    if topology.online.len() < 2 {
        return Err(refuse("there is only one CPU".to_owned()));
    }
    let cpus = spread(topology, found.group.sockets.len());
    let mut pinned: BTreeMap<u32, CpuId> = BTreeMap::new();
    let mut changes = Vec::new();
    for (socket, &cpu) in found.group.sockets.iter_mut().zip(&cpus) {
        for worker in &mut socket.workers {
            // The plan refuses unknown threads.
            let (Some(tid), Some(before)) = (worker.tid, worker.cpus.clone()) else { continue };
            if !topology.online.is_subset(&before) {
                continue;
            }
            // A thread may read from several sockets.
            let of_another = pinned.get(&tid).copied();
            let cpu = of_another.unwrap_or(cpu);
            let after = CpuSet::from_iter([cpu]);
            worker.cpus = Some(after.clone());
            if of_another.is_some() {
                continue;
            }
            pinned.insert(tid, cpu);
            let thread = crate::threads::find_thread(root, worker.pid, tid)
                .ok_or_else(|| refuse(format!("{}/{tid} has exited", worker.comm)))?;
            changes.push(Change {
                target: Target::Thread(thread),
                before: Value::Text(before.to_string()),
                after: Value::Text(after.to_string()),
                why: format!(
                    "{}/{tid} reads from a socket of {name}, and may run on every CPU: \
                     pinned to one CPU, it can get the connections received there",
                    worker.comm
                ),
                persistence: Persistence::WhileRunning,
                snapshot: Vec::new(),
            });
        }
    }
    Ok(changes)
}

/// The pins in a journal that belong to a steering entry: the affinity changes of its workers' threads directly
/// before it.
pub fn pins_of<'a>(steering: &Entry, entries: &'a [Entry]) -> Vec<&'a Entry> {
    let Some(group) = steering.change.target.group() else { return Vec::new() };
    let is_worker = |thread: &Thread| {
        let mut workers = group.sockets.iter().flat_map(|socket| &socket.workers);
        workers.any(|worker| worker.pid == thread.pid && worker.tid == Some(thread.tid))
    };
    let before = entries.iter().rev().filter(|entry| entry.id < steering.id);
    // Numbers are consecutive; changes undone meanwhile leave gaps.
    before
        .zip(1..)
        .take_while(|(entry, back)| {
            entry.boot == steering.boot
                && entry.id + back == steering.id
                && matches!(&entry.change.target, Target::Thread(thread) if is_worker(thread))
        })
        .map(|(entry, _)| entry)
        .collect()
}

/// CPUs for this number of sockets, spread evenly over the host: one per core before SMT siblings; reused if there
/// are too few.
fn spread(topology: &Topology, sockets: usize) -> Vec<CpuId> {
    let online = &topology.online;
    let is_first = |cpu: &CpuId| {
        let siblings = topology.cpus.iter().find(|c| c.cpu == *cpu).map(|c| &c.siblings);
        siblings.is_none_or(|all| all.intersection(online).first().is_none_or(|f| f == *cpu))
    };
    let (first, others): (Vec<CpuId>, Vec<CpuId>) = online.iter().partition(is_first);
    let place = |socket: usize| match (sockets <= first.len(), first.len() + others.len()) {
        (true, _) => first.get(socket * first.len() / sockets),
        (false, all) => {
            let at = socket % all.max(1);
            first.get(at).or_else(|| others.get(at - first.len()))
        }
    };
    (0..sockets).filter_map(place).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{GroupSocket, ReuseportGroup, SocketProtocol, SocketWorker, State};

    fn host(cpus: u32, threads: u32) -> Topology {
        let cpu = |number: u32| {
            let first = number % (cpus / threads);
            let siblings: Vec<String> =
                (0..threads).map(|i| (first + i * cpus / threads).to_string()).collect();
            let cpu =
                serde_json::json!({"cpu": number, "online": true, "siblings": siblings.join(",")});
            serde_json::from_value(cpu).unwrap()
        };
        let all = (0..cpus).map(cpu).collect();
        Topology { cpus: all, online: (0..cpus).map(CpuId).collect(), ..Topology::default() }
    }

    fn numbers(cpus: &[CpuId]) -> Vec<u32> {
        cpus.iter().map(|cpu| cpu.0).collect()
    }

    #[test]
    fn workers_are_spread_over_cores_before_siblings() {
        assert_eq!(numbers(&spread(&host(8, 1), 2)), [0, 4]);
        assert_eq!(numbers(&spread(&host(8, 2), 4)), [0, 1, 2, 3]);
        assert_eq!(numbers(&spread(&host(8, 2), 6)), [0, 1, 2, 3, 4, 5]);
        assert_eq!(numbers(&spread(&host(2, 1), 5)), [0, 1, 0, 1, 0]);
        assert_eq!(spread(&host(1024, 2), 512).len(), 512);
    }

    fn worker(tid: u32, cpus: &str) -> SocketWorker {
        let cpus = Some(CpuSet::from_list(cpus).unwrap());
        SocketWorker { pid: tid, tid: Some(tid), comm: "server".into(), cpus }
    }

    fn group(workers: Vec<Vec<SocketWorker>>) -> ReuseportGroup {
        let socket = |workers| GroupSocket { inode: 1, held: None, workers };
        ReuseportGroup {
            protocol: SocketProtocol::Udp,
            local: "0.0.0.0:53".parse().unwrap(),
            netns: None,
            sockets: workers.into_iter().map(socket).collect(),
        }
    }

    #[test]
    fn only_unpinned_workers_get_a_cpu() {
        let me = std::process::id();
        let workers = vec![vec![worker(me, "0-7")], vec![worker(7, "3")], vec![worker(me, "0-7")]];
        let mut found = Found { group: group(workers), sockets: 3, program: None };
        let changes = pins(&Root::live(), &host(8, 1), &mut found).unwrap();
        let [change] = changes.as_slice() else { panic!("{changes:?}") };
        let text = |cpus: &str| Value::Text(cpus.to_owned());
        assert_eq!((&change.before, &change.after), (&text("0-7"), &text("0")));
        let cpus: Vec<_> = found
            .group
            .sockets
            .iter()
            .map(|s| s.workers[0].cpus.clone().unwrap().to_string())
            .collect();
        assert_eq!(cpus, ["0", "3", "0"]);
        let one = pins(&Root::live(), &host(1, 1), &mut found).unwrap_err();
        assert!(one.to_string().contains("only one CPU"), "{one}");
    }

    #[test]
    fn pins_are_the_changes_directly_before_the_steering() {
        let thread = |tid| Target::Thread(Thread::new(tid, tid, 1));
        let entry = |id, target| Entry {
            id,
            time_s: 0,
            boot: "b".into(),
            state: State::Done,
            replaces: None,
            pending: None,
            change: Change {
                target,
                before: Value::Default,
                after: Value::Default,
                why: String::new(),
                persistence: Persistence::WhileRunning,
                snapshot: Vec::new(),
            },
        };
        let steered =
            Target::ReuseportGroup(group(vec![vec![worker(5, "0")], vec![worker(6, "1")]]));
        let entries = [
            entry(1, thread(5)),
            entry(3, thread(4)),
            entry(4, thread(5)),
            entry(5, thread(6)),
            entry(6, steered),
        ];
        let of = |entries: &[Entry]| -> Vec<u64> {
            pins_of(entries.last().unwrap(), entries).iter().map(|entry| entry.id).collect()
        };
        assert_eq!(of(&entries), [5, 4]);
        assert_eq!(of(&entries[..4]), [] as [u64; 0]);
        let without_the_last = [entries[2].clone(), entries[4].clone()];
        assert_eq!(of(&without_the_last), [] as [u64; 0]);
    }
}
