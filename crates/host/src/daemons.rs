//! Processes found by name, in one pass: the programs that change the same settings as nearpath (irqbalance
//! and tuned), and the threads of the network path.
//!
//! Input: a root. Output: whether the daemons are running, and the threads. A running daemon is recognized by its
//! name. That one is not running is known only if all processes of the machine are visible: `kthreadd`, process 2,
//! is hidden in a container and by `hidepid`.

use crate::cpu_table::printable;
use crate::{Notes, Root, net_threads, processes};
use nearpath_model::{Daemons, NetThread};

const TUNED_PROFILE: &str = "/etc/tuned/active_profile";

/// Searches all processes for the daemons and the threads.
pub(crate) fn read(root: &Root, notes: &mut Notes) -> (Daemons, Vec<NetThread>) {
    let mut daemons = Daemons { tuned_profile: tuned_profile(root, notes), ..Daemons::default() };
    let pids = match processes::pids(root) {
        Ok(pids) => pids,
        Err(error) => {
            unknown(&mut daemons, notes, &error.to_string());
            return (daemons, Vec::new());
        }
    };
    // A process that has exited, or is hidden, is not known to run.
    let named = |pid| Some((pid, processes::comm(root, pid).ok()?));
    let processes: Vec<(u32, String)> = pids.into_iter().filter_map(named).collect();
    let mut all_seen = false;
    for (pid, comm) in &processes {
        match comm.as_str() {
            "irqbalance" => daemons.irqbalance = Some(true),
            "tuned" => daemons.tuned = Some(true),
            "kthreadd" if *pid == 2 => all_seen = true,
            _ => {}
        }
    }
    if all_seen {
        daemons.irqbalance.get_or_insert(false);
        daemons.tuned.get_or_insert(false);
    } else {
        let reason = "/proc: not among the visible processes, and not all processes are visible \
                      (process 2 is not kthreadd: a container, or /proc mounted with hidepid)";
        unknown(&mut daemons, notes, reason);
    }
    let threads = net_threads::read(root, notes, &processes);
    (daemons, threads)
}

/// Notes, for each daemon not seen, that its state is unknown.
fn unknown(daemons: &mut Daemons, notes: &mut Notes, reason: &str) {
    for (name, runs) in [("irqbalance", daemons.irqbalance), ("tuned", daemons.tuned)] {
        if runs.is_none() {
            notes.add("host", name, reason);
        }
    }
}

/// The active profile. If there is no file, tuned is not installed, and nothing is noted.
fn tuned_profile(root: &Root, notes: &mut Notes) -> Option<String> {
    match root.read(TUNED_PROFILE) {
        Ok(text) => Some(printable(text.trim_ascii())).filter(|profile| !profile.is_empty()),
        Err(error) if error.absent => None,
        Err(error) => notes.take("host", "tuned_profile", Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn daemons(files: &[(&str, &str)]) -> (Daemons, Vec<(String, String)>) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("proc")).unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut notes = Notes::default();
        let (daemons, _) = read(&Root::tree(dir.path()).unwrap(), &mut notes);
        let unknown = notes.unknown().iter();
        (daemons, unknown.map(|note| (note.fact.clone(), note.reason.clone())).collect())
    }

    #[test]
    fn running_daemons_are_seen() {
        let (found, notes) = daemons(&[
            ("proc/2/comm", "kthreadd\n"),
            ("proc/700/comm", "irqbalance\n"),
            ("proc/701/comm", "tuned\n"),
            ("etc/tuned/active_profile", "network-latency\n"),
        ]);
        assert_eq!((found.irqbalance, found.tuned), (Some(true), Some(true)));
        assert_eq!(found.tuned_profile.as_deref(), Some("network-latency"));
        assert!(notes.is_empty());
    }

    #[test]
    fn not_seen_means_not_running_only_if_all_processes_are_visible() {
        let (found, notes) = daemons(&[("proc/1/comm", "init\n"), ("proc/2/comm", "kthreadd\n")]);
        assert_eq!((found.irqbalance, found.tuned), (Some(false), Some(false)));
        assert!(notes.is_empty());

        let (found, notes) = daemons(&[("proc/1/comm", "sh\n"), ("proc/2/comm", "irqbalance\n")]);
        assert_eq!((found.irqbalance, found.tuned), (Some(true), None));
        assert!(notes[0].0 == "tuned" && notes[0].1.contains("container"), "{notes:?}");

        let (found, notes) = daemons(&[("proc/stat", "")]);
        assert_eq!((found.irqbalance, found.tuned), (None, None));
        assert_eq!(notes.len(), 2);
        assert_eq!(notes[0].1, "/proc: no processes");
    }
}
