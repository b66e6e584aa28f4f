//! Attributes of tasks that may have exited (`bpf/tasks.h`). Input: the kernel's id of a task. Output: its cgroup and
//! its id in the PID namespace of /proc.

use super::load::{Maps, types::seen_task};
use crate::InstrumentError;
use crate::grouping::{cgroup, word};
use crate::kernel::refused;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use nearpath_host::Root;
use nearpath_model::Culprit;
use std::collections::BTreeMap;
use std::mem::offset_of;

/// Slots of tasks (`1 << SEEN_SLOT_BITS`).
pub const SEEN_TASKS: u32 = 1 << crate::constants::SEEN_SLOT_BITS;
/// Number of cgroups whose paths the programs keep.
pub const CGROUPS_MAX: u32 = 1024;
/// Number of cgroups whose paths are kept here.
const PATHS_MAX: usize = 4096;

/// The tasks recorded by the programs.
#[derive(Debug)]
pub struct Tasks {
    seen: MapHandle,
    paths: MapHandle,
    /// Whether the kernel's ids are those of /proc.
    in_first_namespace: bool,
    root: Root,
    /// Since [`Tasks::forget`], by the id in /proc.
    bound: BTreeMap<u32, Option<bool>>,
    /// Since [`Tasks::forget`].
    known: BTreeMap<u32, Option<Seen>>,
    /// By the key of the cgroup, which is never reused.
    cgroups: BTreeMap<u64, String>,
}

#[derive(Debug, Clone)]
struct Seen {
    /// Its id in the namespace of /proc; `None` if it is not in that namespace.
    pid: Option<u32>,
    cgroup: Option<String>,
}

impl Tasks {
    /// Opens the programs' maps.
    ///
    /// # Errors
    /// The kernel refused more handles of the maps.
    pub fn new(maps: &Maps<'_>) -> Result<Self, InstrumentError> {
        let handle = |map| {
            MapHandle::try_from(map).map_err(|e: libbpf_rs::Error| refused("reading the tasks", &e))
        };
        Ok(Self {
            seen: handle(&maps.seen_tasks)?,
            paths: handle(&maps.cgroup_paths)?,
            in_first_namespace: nearpath_host::pid_namespace().is_none(),
            root: Root::live(),
            bound: BTreeMap::new(),
            known: BTreeMap::new(),
            cgroups: BTreeMap::new(),
        })
    }

    /// Forgets all tasks, so that each is looked up again: ids are reused, and tasks move to other cgroups.
    pub fn forget(&mut self) {
        self.known.clear();
        self.bound.clear();
    }

    /// Sets the task's cgroup, and its id in /proc; the same for the task that woke it.
    pub fn describe(&mut self, who: &mut Culprit) {
        if let Some(waker) = &mut who.woken_by {
            self.describe(waker);
        }
        // The idle task has none.
        let Some(pid) = who.pid.filter(|&pid| pid != 0) else { return };
        let seen = match self.known.get(&pid) {
            Some(known) => known.clone(),
            None => {
                let seen = self.look_up(pid);
                self.known.insert(pid, seen.clone());
                seen
            }
        };
        let Seen { pid, cgroup } = seen.unwrap_or_else(|| Seen {
            pid: self.in_first_namespace.then_some(pid),
            cgroup: match self.in_first_namespace {
                true => nearpath_host::cgroup_of(&self.root, pid),
                false => None,
            },
        });
        (who.pid, who.cgroup) = (pid, cgroup);
        who.bound = pid.and_then(|pid| self.is_bound(pid));
        who.nearpath = pid.is_some_and(|pid| nearpath_host::is_own(&self.root, pid));
    }

    /// A task is bound when it is created.
    fn is_bound(&mut self, pid: u32) -> Option<bool> {
        if let Some(known) = self.bound.get(&pid) {
            return *known;
        }
        let bound = nearpath_host::is_bound(&self.root, pid);
        self.bound.insert(pid, bound);
        bound
    }

    /// `None` if the slot belongs to another task.
    fn look_up(&mut self, pid: u32) -> Option<Seen> {
        let slot = (pid % SEEN_TASKS).to_ne_bytes();
        let value = self.seen.lookup(&slot, MapFlags::ANY).ok()??;
        let half = |at: usize| value.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        if half(offset_of!(seen_task, pid))? != pid {
            return None;
        }
        let number = half(offset_of!(seen_task, number))?;
        let cgroup = self.path(word(&value, offset_of!(seen_task, cgroup)));
        Some(Seen { pid: (number != 0).then_some(number), cgroup })
    }

    fn path(&mut self, key: u64) -> Option<String> {
        if let Some(path) = self.cgroups.get(&key) {
            return Some(path.clone());
        }
        let names = self.paths.lookup(&key.to_ne_bytes(), MapFlags::ANY).ok()??;
        let path = cgroup(&names);
        if self.cgroups.len() >= PATHS_MAX {
            self.cgroups.clear();
        }
        self.cgroups.insert(key, path.clone());
        Some(path)
    }
}
