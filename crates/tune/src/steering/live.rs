//! The part of the writer that steers this host's groups: duplicates the sockets of other processes, loads the
//! program, attaches and detaches it.
//!
//! It works in the calling thread's network namespace, which must be that of the group.

use super::ebpf::{self, Loaded, Sockets};
use super::group::is_program;
use super::group::{Found, groups};
use super::sockets;
use crate::{ObservedValue, TuneError, Writer};
use nearpath_host::{Root, connection_owners, current_netns, pid_namespace};
use nearpath_model::{Change, Program, ReuseportGroup, State, Target, Value};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The writer of groups.
#[derive(Default)]
pub(crate) struct Groups {
    prepared: Option<Prepared>,
    btf: Option<PathBuf>,
}

/// The objects prepared for the last change.
struct Prepared {
    /// A socket of the group.
    socket: OwnedFd,
    program: Option<Loaded>,
}

impl Groups {
    /// Makes it read the kernel's BTF from this file.
    pub fn with_btf(self, btf: Option<&Path>) -> Self {
        Self { btf: btf.map(Path::to_owned), ..self }
    }

    /// The current state of the group; `None` if none of its sockets exists any more.
    ///
    /// # Errors
    /// The groups cannot be queried, or it is one of another network namespace.
    fn find(&self, group: &ReuseportGroup) -> Result<Option<Found>, TuneError> {
        let root = Root::live();
        let here = current_netns(&root).inode;
        if let Some(its) = group.netns.filter(|&its| Some(its) != here) {
            if is_closed(&root, group) {
                return Ok(None);
            }
            let here = here.map_or_else(|| "unknown".to_owned(), |inode| inode.to_string());
            return Err(TuneError::Refused(format!(
                "{} belongs to network namespace {its}, this is {here}: use --netns",
                group.local
            )));
        }
        let ours = |inode| group.sockets.iter().any(|socket| socket.inode == inode);
        let found = groups(&root, self.btf.as_deref(), |socket| ours(socket.inode))?;
        Ok(found.into_iter().next())
    }

    /// Whether a group has the program of a change.
    pub fn look(&self, change: &Change) -> Result<ObservedValue, TuneError> {
        let group = group_of(&change.target)?;
        Ok(match self.find(group)? {
            None => ObservedValue::Gone {
                reason: "its sockets were closed: the server exited or restarted".to_owned(),
            },
            Some(found) if has(&found, &change.after) => ObservedValue::After,
            Some(found) if has(&found, &change.before) => ObservedValue::Before,
            Some(_) => ObservedValue::Other { now: "another program".to_owned() },
        })
    }
}

impl Groups {
    /// Checks whether a change can be made, as far as possible without loading a program; returns the sockets that
    /// it needs.
    ///
    /// # Errors
    /// The program was changed externally, or a socket cannot be duplicated.
    pub fn check(&self, change: &Change) -> Result<Vec<OwnedFd>, TuneError> {
        let group = group_of(&change.target)?;
        if let Some(found) = self.find(group)?
            && !has(&found, &change.before)
        {
            return Err(TuneError::Drift {
                target: change.target.to_string(),
                now: "another program".to_owned(),
                expected: change.before.to_string(),
            });
        }
        let wanted = match change.after {
            Value::Program(Program::Nearest { .. }) => group.sockets.len(),
            // Any socket represents its group.
            _ => 1,
        };
        group.sockets.iter().take(wanted).map(sockets::take).collect()
    }
}

impl Writer for Groups {
    fn prepare(&mut self, mut change: Change) -> Result<Change, TuneError> {
        let mut taken = self.check(&change)?;
        let program = match &mut change.after {
            Value::Program(Program::Nearest { id, tag, choices }) => {
                let loaded = ebpf::load(&taken, choices)?;
                *id = loaded.id;
                tag.clone_from(&loaded.tag);
                Some(loaded)
            }
            _ => None,
        };
        let socket = match taken.pop() {
            Some(socket) => socket,
            None => return Err(gone(group_of(&change.target)?)),
        };
        self.prepared = Some(Prepared { socket, program });
        Ok(change)
    }

    fn write(&mut self, change: &Change) -> Result<(), TuneError> {
        let group = group_of(&change.target)?;
        let prepared = self.prepared.take().ok_or_else(|| gone(group))?;
        match (&change.after, &prepared.program) {
            (Value::Program(Program::Nearest { .. }), Some(loaded)) => {
                sockets::attach_ebpf(&prepared.socket, loaded.program.as_fd())?;
            }
            (after, _) => put(&prepared.socket, after)?,
        }
        match self.find(group)? {
            Some(found) if has(&found, &change.after) => Ok(()),
            _ => Err(TuneError::kernel(
                format!("steering {}", group.local),
                "the kernel accepted the program, but the group does not have it",
            )),
        }
    }

    fn undo(&mut self, change: &Change, _: State) -> Result<(), TuneError> {
        let group = group_of(&change.target)?;
        let Some(found) = self.find(group)? else { return Ok(()) };
        // Before it is detached: after that it may be freed with its map.
        let table = match &change.after {
            Value::Program(Program::Nearest { id, tag, .. }) => Sockets::of(*id, tag)?,
            _ => None,
        };
        if has(&found, &change.after) {
            let socket = found.group.sockets.iter().find(|socket| socket.held.is_some());
            let socket = sockets::take(socket.ok_or_else(|| gone(group))?)?;
            put(&socket, &change.before)?;
        } else if !has(&found, &change.before) {
            return Err(TuneError::Refused(format!(
                "{}: program changed externally; skipped",
                group.local
            )));
        }
        if let Some(table) = table {
            table.clear();
        }
        Ok(())
    }
}

/// Whether it is proved that no process has any socket of a group open: all processes are visible, and all of their
/// descriptors were read.
fn is_closed(root: &Root, group: &ReuseportGroup) -> bool {
    let inodes = group.sockets.iter().map(|socket| socket.inode).collect();
    pid_namespace().is_none() && {
        let (owners, missing) = connection_owners(root, &inodes);
        owners.is_empty() && missing.is_none()
    }
}

fn group_of(target: &Target) -> Result<&ReuseportGroup, TuneError> {
    let refuse = || TuneError::Refused(format!("{target} is not a REUSEPORT group"));
    target.group().ok_or_else(refuse)
}

/// Sets a value that needs no loading.
fn put(socket: &OwnedFd, value: &Value) -> Result<(), TuneError> {
    match value {
        Value::Default => sockets::detach(socket),
        Value::Program(Program::Classic { instructions }) => {
            sockets::attach_classic(socket, instructions)
        }
        Value::Program(Program::Nearest { .. }) | Value::Text(_) => Err(TuneError::kernel(
            "attaching the program to the REUSEPORT group",
            "the program was not prepared",
        )),
    }
}

/// Whether a group has this now.
fn has(found: &Found, value: &Value) -> bool {
    match (value, &found.program) {
        (Value::Default, None) => true,
        (Value::Program(program), Some(there)) => is_program(program, there),
        _ => false,
    }
}

fn gone(group: &ReuseportGroup) -> TuneError {
    TuneError::kernel(format!("steering {}", group.local), "its sockets were closed")
}
