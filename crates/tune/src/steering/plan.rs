//! The planner of steering. Pure. Input: a group and the topology. Output: the change, or why it would have no
//! effect.

use super::group::protocol_name;
use super::group::restorable;
use super::{Found, nearest};
use crate::TuneError;
use nearpath_instruments::ReuseportProgram;
use nearpath_model::{
    Change, Choice, CpuSet, Nearness, Persistence, Program, SocketWorker, Target, Topology, Value,
};

/// How a socket is selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// By an eBPF program, that of the nearest worker; the order of the group is irrelevant.
    Nearest,
    /// By a classic program: the CPU number modulo the size of the group.
    CpuModulo,
}

/// Maximum number of workers named in a message.
const NAMED: usize = 4;

/// The change that steers a group.
///
/// # Errors
/// It would have no effect, or could not be undone.
pub fn plan(topology: &Topology, found: &Found, method: Method) -> Result<Change, TuneError> {
    let group = &found.group;
    let name = format!("{} {}", protocol_name(group.protocol), group.local);
    let refuse = |reason: String| Err(TuneError::Refused(format!("{name}: {reason}")));
    if found.sockets < 2 {
        return refuse("the REUSEPORT group has only one socket".to_owned());
    }
    let hidden = found.sockets as usize - group.sockets.len().min(found.sockets as usize);
    if hidden > 0 {
        return refuse(format!("{hidden} of its {} sockets are not visible", found.sockets));
    }
    if let Some(socket) = group.sockets.iter().find(|s| s.workers.is_empty() || s.held.is_none()) {
        return refuse(format!(
            "the worker that reads from the socket with inode {} is unknown: several processes \
             have it, and none has it in an epoll set or was seen waiting for it",
            socket.inode
        ));
    }
    let before = match &found.program {
        None => Value::Default,
        Some(program) => match restorable(program) {
            Some(program) => Value::Program(program),
            None => return refuse(cannot_be_restored(program)),
        },
    };
    let mut workers = Vec::new();
    for socket in &group.sockets {
        match pinned(topology, &socket.workers) {
            Ok(cpus) => workers.push(cpus),
            Err(reason) => return refuse(reason),
        }
    }
    let choices = nearest(topology, &workers);
    let (after, reached) = match method {
        Method::Nearest => {
            let reached = own(topology, &choices, |_, _| true);
            (Program::Nearest { id: 0, tag: String::new(), choices }, reached)
        }
        Method::CpuModulo => {
            let by_number = |cpu: u32, choice: &Choice| {
                choice.workers.contains(&(cpu as usize % workers.len()))
            };
            (Program::cpu_modulo(found.sockets), own(topology, &choices, by_number))
        }
    };
    let chosen_by = match before {
        Value::Program(_) => "another program selects among them",
        _ => "the kernel selects among them by a hash of addresses and ports",
    };
    let why = format!(
        "{} sockets share the port and {chosen_by}; with this change, packets received on CPUs {reached} \
         go to the worker that runs there",
        found.sockets
    );
    let (target, after) = (Target::ReuseportGroup(group.clone()), Value::Program(after));
    Ok(Change {
        target,
        before,
        after,
        why,
        persistence: Persistence::WhileOpen,
        snapshot: Vec::new(),
    })
}

/// The online CPUs whose connections reach a worker on the same CPU; `(none)` if there are none.
fn own(topology: &Topology, choices: &[Choice], reach: impl Fn(u32, &Choice) -> bool) -> String {
    let own = choices.iter().filter(|choice| choice.nearness == Some(Nearness::SameCpu));
    let cpus = own.flat_map(|choice| choice.cpus.iter().filter(|cpu| reach(cpu.0, choice)));
    let cpus = cpus.collect::<CpuSet>().intersection(&topology.online);
    if cpus.is_empty() { "(none)".to_owned() } else { cpus.to_string() }
}

fn cannot_be_restored(program: &ReuseportProgram) -> String {
    match program {
        ReuseportProgram::Classic { length, .. } => format!(
            "a classic BPF program of {length} instructions is attached already, too long to \
             save and restore"
        ),
        ReuseportProgram::Ebpf { id, name, .. } => format!(
            "the eBPF program {name:?} (id {id}) is attached already and could not be restored; \
             its owner must detach it first"
        ),
    }
}

/// The CPUs of a socket's workers, which must not be all CPUs.
fn pinned(topology: &Topology, workers: &[SocketWorker]) -> Result<CpuSet, String> {
    let mut cpus = CpuSet::new();
    for worker in workers {
        let Some(its) = &worker.cpus else {
            return Err(format!(
                "cannot determine which thread of {} reads: all were busy; try again",
                worker_name(worker)
            ));
        };
        cpus = cpus.union(its);
    }
    if topology.online.is_subset(&cpus) {
        let names: Vec<String> = workers.iter().take(NAMED).map(worker_name).collect();
        return Err(format!(
            "{} may run on every CPU, so no worker is nearest; --pin pins each worker to its own CPU \
             while it is steered (permanently: 'worker_cpu_affinity auto' in nginx, otherwise \
             'taskset -cp CPU TID')",
            names.join(", ")
        ));
    }
    Ok(cpus)
}

fn worker_name(worker: &SocketWorker) -> String {
    format!("{}/{}", worker.comm, worker.tid.unwrap_or(worker.pid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::{CpuId, GroupSocket, ReuseportGroup, SocketProtocol};

    fn topology(cpus: u32) -> Topology {
        let all: CpuSet = (0..cpus).map(CpuId).collect();
        Topology { possible: all.clone(), present: all.clone(), online: all, ..Topology::default() }
    }

    fn worker(pid: u32, cpus: Option<&str>) -> SocketWorker {
        let cpus = cpus.map(|list| CpuSet::from_list(list).unwrap());
        SocketWorker { pid, tid: Some(pid), comm: "nginx".into(), cpus }
    }

    /// A group of sockets of these workers.
    fn found(workers: &[Vec<SocketWorker>]) -> Found {
        let socket = |(i, workers): (usize, &Vec<SocketWorker>)| GroupSocket {
            inode: 100 + i as u64,
            held: Some((1, 3)),
            workers: workers.clone(),
        };
        let sockets: Vec<GroupSocket> = workers.iter().enumerate().map(socket).collect();
        let (protocol, local) = (SocketProtocol::Tcp, "0.0.0.0:8181".parse().unwrap());
        let count = u32::try_from(sockets.len()).unwrap();
        Found {
            group: ReuseportGroup { protocol, local, netns: None, sockets },
            sockets: count,
            program: None,
        }
    }

    fn two() -> Found {
        found(&[vec![worker(11, Some("1"))], vec![worker(12, Some("0"))]])
    }

    fn refusal(found: &Found) -> String {
        plan(&topology(2), found, Method::Nearest).unwrap_err().to_string()
    }

    #[test]
    fn each_cpu_reaches_its_worker() {
        let change = plan(&topology(2), &two(), Method::Nearest).unwrap();
        let Value::Program(Program::Nearest { choices, .. }) = &change.after else { panic!() };
        let shown: Vec<_> = choices.iter().map(|c| (c.cpus.to_string(), &c.workers[..])).collect();
        assert_eq!(shown, [("0".to_owned(), &[1][..]), ("1".to_owned(), &[0][..])]);
        assert_eq!(change.before, Value::Default);
        assert!(change.why.contains("received on CPUs 0-1 go to"), "{}", change.why);
    }

    #[test]
    fn the_classic_program_reports_the_cpus_it_serves() {
        let change = plan(&topology(2), &two(), Method::CpuModulo).unwrap();
        assert_eq!(change.after, Value::Program(Program::cpu_modulo(2)));
        // CPU 0 goes to the first socket, whose worker is on CPU 1.
        assert!(change.why.contains("received on CPUs (none) go to"), "{}", change.why);
        let fits = found(&[vec![worker(11, Some("0"))], vec![worker(12, Some("1"))]]);
        let change = plan(&topology(2), &fits, Method::CpuModulo).unwrap();
        assert!(change.why.contains("received on CPUs 0-1 go to"), "{}", change.why);
    }

    #[test]
    fn ineffective_plans_are_refused() {
        let one = found(&[vec![worker(11, Some("0"))]]);
        assert!(refusal(&one).contains("only one socket"));
        let hidden = Found { sockets: 3, ..two() };
        assert!(refusal(&hidden).contains("1 of its 3 sockets are not visible"));
        let unpinned = found(&[vec![worker(11, Some("0"))], vec![worker(12, Some("0-1"))]]);
        assert!(refusal(&unpinned).contains("nginx/12 may run on every CPU"));
        let nobody = found(&[vec![worker(11, Some("0"))], vec![]]);
        assert!(refusal(&nobody).contains("inode 101 is unknown"));
        let busy = found(&[vec![worker(11, Some("0"))], vec![worker(12, None)]]);
        assert!(refusal(&busy).contains("busy"));
    }

    #[test]
    fn another_program_is_saved_or_the_plan_refused() {
        let with = |program| Found { program: Some(program), ..two() };
        let ebpf = ReuseportProgram::Ebpf { id: 7, tag: [0; 8], name: "theirs".into() };
        assert!(refusal(&with(ebpf)).contains("\"theirs\" (id 7) is attached already"));
        let long = ReuseportProgram::Classic { length: 30, instructions: vec![] };
        assert!(refusal(&with(long)).contains("30 instructions"));
        let short = ReuseportProgram::Classic { length: 1, instructions: vec![[6, 0, 0, 1]] };
        let change = plan(&topology(2), &with(short), Method::Nearest).unwrap();
        let before = Program::Classic { instructions: vec![[6, 0, 0, 1]] };
        assert_eq!(change.before, Value::Program(before));
    }
}
