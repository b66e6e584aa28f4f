//! The state of steering: the existing groups, compared with the journal.
//!
//! A program is ours if the journal has it for sockets of that group, with the id and tag that the kernel reports
//! (for a classic program, with its instructions). A change whose sockets are closed is gone, for whatever reason
//! the server closed them.

use super::Found;
use super::group::is_program;
use nearpath_host::Root;
use nearpath_instruments::ReuseportProgram;
use nearpath_model::steering::{Gone, GroupStatus, ProgramOwner, SocketStatus, Status};
use nearpath_model::{Entry, Program, ReuseportGroup, Value};

/// Compares groups and journal, as seen from a network namespace.
pub fn status(found: &[Found], entries: &[Entry], boot: &str, netns: Option<u64>) -> Status {
    let shown = found.iter().filter(|found| found.sockets > 1 || found.program.is_some());
    Status {
        schema: 1,
        groups: shown.map(|found| group(found, entry_of(found, entries, boot))).collect(),
        gone: entries.iter().filter_map(|entry| gone(entry, found, boot, netns)).collect(),
    }
}

/// Our change that attached the program of a group; `None` if the program is not ours.
pub fn entry_of<'a>(found: &Found, entries: &'a [Entry], boot: &str) -> Option<&'a Entry> {
    let there = found.program.as_ref()?;
    entries.iter().rev().find(|entry| {
        let is_it =
            matches!(&entry.change.after, Value::Program(program) if is_program(program, there));
        let group = entry.change.target.group();
        entry.boot == boot && is_it && group.is_some_and(|g| share_a_socket(g, &found.group))
    })
}

fn share_a_socket(a: &ReuseportGroup, b: &ReuseportGroup) -> bool {
    a.netns == b.netns && a.sockets.iter().any(|s| b.sockets.iter().any(|t| s.inode == t.inode))
}

fn group(found: &Found, entry: Option<&Entry>) -> GroupStatus {
    let sockets = found.group.sockets.iter().map(|socket| {
        let worker = socket.workers.first();
        SocketStatus {
            inode: socket.inode,
            pid: worker.map(|worker| worker.pid),
            tid: worker.and_then(|worker| worker.tid),
            comm: worker.map(|worker| worker.comm.clone()),
            cpus: worker.and_then(|worker| worker.cpus.clone()),
        }
    });
    let owner = match entry {
        Some(_) => ProgramOwner::Nearpath,
        None => ProgramOwner::Other,
    };
    GroupStatus {
        local: found.group.local.to_string(),
        protocol: found.group.protocol,
        sockets: sockets.collect(),
        program: found.program.as_ref().map(|_| owner),
        detail: found.program.as_ref().map(in_words),
        since_s: entry.map(|entry| entry.time_s),
    }
}

fn in_words(program: &ReuseportProgram) -> String {
    match program {
        ReuseportProgram::Ebpf { id, name, .. } => format!("eBPF program {name}, id {id}"),
        there @ ReuseportProgram::Classic { length, instructions } => match instructions.get(1) {
            Some(&[_, _, _, size]) if is_program(&Program::cpu_modulo(size), there) => {
                format!("classic program, CPU modulo {size}")
            }
            _ => format!("classic program of {length} instructions"),
        },
    }
}

/// Why a change in the journal is gone; `None` if it is in effect, or of another kind.
fn gone(entry: &Entry, found: &[Found], boot: &str, netns: Option<u64>) -> Option<Gone> {
    let group = entry.change.target.group()?;
    let now = found.iter().find(|found| share_a_socket(group, &found.group));
    let reason = if entry.boot != boot {
        "the host was rebooted since".to_owned()
    } else if group.netns != netns {
        let number = group.netns.map_or_else(|| "unknown".to_owned(), |inode| inode.to_string());
        format!("it is in another network namespace ({number}); use --netns")
    } else {
        match now {
            None => "its sockets were closed: the server exited or restarted".to_owned(),
            Some(now) if entry_of(now, std::slice::from_ref(entry), boot).is_some() => {
                return None;
            }
            Some(now) if now.program.is_none() => "program detached externally".to_owned(),
            Some(_) => "replaced by another program".to_owned(),
        }
    };
    let (local, protocol) = (group.local.to_string(), group.protocol);
    Some(Gone { local, protocol, since_s: entry.time_s, reason })
}

/// The current boot (`/proc/sys/kernel/random/boot_id`). Changes do not survive a reboot.
///
/// # Errors
/// It cannot be read.
pub fn boot(root: &Root) -> Result<String, crate::TuneError> {
    Ok(root.text("/proc/sys/kernel/random/boot_id")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::change;
    use nearpath_model::{GroupSocket, State, Target};

    /// A change of group 1 to 2 in namespace 1, by an eBPF program.
    fn entry() -> Entry {
        let mut change = change(80);
        let Target::ReuseportGroup(group) = &mut change.target else { panic!() };
        group.sockets = sockets(&[1, 2]);
        let (id, tag, choices) = (7, "0101010101010101".to_owned(), vec![]);
        change.after = Value::Program(Program::Nearest { id, tag, choices });
        Entry {
            id: 1,
            time_s: 5,
            boot: "now".into(),
            state: State::Done,
            change,
            replaces: None,
            pending: None,
        }
    }

    fn sockets(inodes: &[u64]) -> Vec<GroupSocket> {
        let socket = |&inode| GroupSocket { inode, held: None, workers: vec![] };
        inodes.iter().map(socket).collect()
    }

    fn found(inodes: &[u64], program: Option<u32>) -> Found {
        let Target::ReuseportGroup(group) = entry().change.target else { panic!() };
        let group = ReuseportGroup { sockets: sockets(inodes), ..group };
        let program = program.map(|id| ReuseportProgram::Ebpf {
            id,
            tag: [1; 8],
            name: "nearpath_steer".into(),
        });
        Found { group, sockets: 2, program }
    }

    /// The owner of the group's program, and why the change is gone.
    fn owner_and_reason(
        found: &[Found],
        entry: &Entry,
        netns: u64,
    ) -> (Option<ProgramOwner>, Option<String>) {
        let status = status(found, std::slice::from_ref(entry), "now", Some(netns));
        let group = status.groups.first().and_then(|group| group.program);
        (group, status.gone.into_iter().next().map(|gone| gone.reason))
    }

    #[test]
    fn only_the_journal_makes_a_program_ours() {
        let (ours, other) = (Some(ProgramOwner::Nearpath), Some(ProgramOwner::Other));
        let gone = |reason: &str| Some(reason.to_owned());
        let is = |found: &[Found], expected: (Option<ProgramOwner>, Option<String>)| {
            assert_eq!(owner_and_reason(found, &entry(), 1), expected, "{found:?}");
        };
        is(&[found(&[1, 2], Some(7))], (ours, None));
        // One of its sockets was closed, another opened.
        is(&[found(&[2, 3], Some(7))], (ours, None));
        let closed = "its sockets were closed: the server exited or restarted";
        is(&[], (None, gone(closed)));
        is(&[found(&[3, 4], None)], (None, gone(closed)));
        is(&[found(&[1, 2], None)], (None, gone("program detached externally")));
        is(&[found(&[1, 2], Some(8))], (other, gone("replaced by another program")));
        // The same id after a reboot is a coincidence.
        let before = Entry { boot: "before".into(), ..entry() };
        let told_of = owner_and_reason(&[found(&[1, 2], Some(7))], &before, 1);
        assert_eq!(told_of, (other, gone("the host was rebooted since")));
        let elsewhere = owner_and_reason(&[], &entry(), 2).1.unwrap();
        assert!(elsewhere.contains("another network namespace (1)"), "{elsewhere}");
    }
}
