//! Programs that change the same settings as nearpath: irqbalance and tuned.
//!
//! In goes a root, out comes whether they run. That one runs is known by its name; that it does
//! not, only when all processes of the machine can be seen: `kthreadd`, process 2, is hidden from
//! a container and by `hidepid`.

use crate::cpu_table::printable;
use crate::{Notes, Root, processes};
use nearpath_model::Daemons;

const TUNED_PROFILE: &str = "/etc/tuned/active_profile";

/// Looks for the daemons among all processes.
pub(crate) fn read(root: &Root, notes: &mut Notes) -> Daemons {
    let mut daemons = Daemons { tuned_profile: tuned_profile(root, notes), ..Daemons::default() };
    let pids = match processes::pids(root) {
        Ok(pids) => pids,
        Err(error) => {
            unknown(&mut daemons, notes, &error.to_string());
            return daemons;
        }
    };
    let mut all_seen = false;
    for pid in pids {
        // One that ended meanwhile, or is hidden, is none that is known to run.
        let Ok(comm) = processes::comm(root, pid) else { continue };
        match comm.as_str() {
            "irqbalance" => daemons.irqbalance = Some(true),
            "tuned" => daemons.tuned = Some(true),
            "kthreadd" if pid == 2 => all_seen = true,
            _ => {}
        }
    }
    if all_seen {
        daemons.irqbalance.get_or_insert(false);
        daemons.tuned.get_or_insert(false);
    } else {
        let reason = "/proc: not among the processes seen, which are not all of the machine's \
                      (process 2 is not kthreadd: a container, or /proc mounted with hidepid)";
        unknown(&mut daemons, notes, reason);
    }
    daemons
}

/// Notes of each daemon that was not seen that it is not known.
fn unknown(daemons: &mut Daemons, notes: &mut Notes, reason: &str) {
    for (name, runs) in [("irqbalance", daemons.irqbalance), ("tuned", daemons.tuned)] {
        if runs.is_none() {
            notes.add("host", name, reason);
        }
    }
}

/// The active profile. No file means no tuned, which is no gap in the facts.
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
        let daemons = read(&Root::tree(dir.path()).unwrap(), &mut notes);
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
    fn not_seen_is_not_running_only_on_the_whole_machine() {
        let (found, notes) = daemons(&[("proc/1/comm", "init\n"), ("proc/2/comm", "kthreadd\n")]);
        assert_eq!((found.irqbalance, found.tuned), (Some(false), Some(false)));
        assert!(notes.is_empty());

        let (found, notes) = daemons(&[("proc/1/comm", "sh\n"), ("proc/2/comm", "irqbalance\n")]);
        assert_eq!((found.irqbalance, found.tuned), (Some(true), None));
        assert!(notes[0].0 == "tuned" && notes[0].1.contains("container"), "{notes:?}");

        let (found, notes) = daemons(&[("proc/stat", "")]);
        assert_eq!((found.irqbalance, found.tuned), (None, None));
        assert_eq!(notes.len(), 2);
        assert_eq!(notes[0].1, "/proc: holds no process");
    }
}
