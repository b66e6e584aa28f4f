//! Records what is read from a root, so that it can be saved as a snapshot.
//!
//! Everything is stored under its path without links, and the links to it as links, so that the archive is a
//! part of the machine's tree. Repeated reads are answered from memory: facts from the recording and from the
//! snapshot made of it are the same.

use super::answers::Answer;
use super::fault::Fault;
use super::files::Look;
use super::manifest::{self, Folder, Manifest};
use super::memory::Memory;
use super::walk::walk;
use super::{Entry, EntryKind, ReadError, Source};
use rustix::io::Errno;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What was read so far.
#[derive(Debug)]
pub(super) struct Recorder {
    files: Memory,
    refused: BTreeMap<String, Fault>,
    absent: BTreeSet<String>,
    listed: BTreeMap<String, Vec<Entry>>,
    /// Files known to exist.
    seen: BTreeSet<String>,
    answers: usize,
    /// Why not everything that was read was recorded.
    incomplete: Option<Fault>,
}

impl Recorder {
    /// An empty recording.
    pub fn new() -> Self {
        Self {
            files: Memory::over(Vec::new()),
            refused: BTreeMap::new(),
            absent: BTreeSet::new(),
            listed: BTreeMap::new(),
            seen: BTreeSet::new(),
            answers: 0,
            incomplete: None,
        }
    }

    /// A file's bytes.
    pub fn read(
        &mut self,
        source: &Source,
        path: &str,
        until: Option<Instant>,
    ) -> Result<Vec<u8>, Fault> {
        let path = self.resolve(source, path, true)?;
        self.known_fault(&path)?;
        if let Ok(bytes) = self.files.read(&path) {
            return Ok(bytes.to_vec());
        }
        match source.read(&path, until) {
            Ok(bytes) => {
                let added = self.files.add_file(&path, &bytes);
                self.note(added);
                Ok(bytes)
            }
            Err(fault) => Err(self.refusal(&path, fault)),
        }
    }

    /// The names in a directory.
    pub fn list(&mut self, source: &Source, path: &str) -> Result<Vec<Entry>, Fault> {
        let path = self.resolve(source, path, true)?;
        if let Some(names) = self.listed.get(&path) {
            return Ok(names.clone());
        }
        self.known_fault(&path)?;
        match source.list(&path) {
            Ok(names) => {
                let added = self.files.add_dir(&path);
                self.note(added);
                self.listed.insert(path, names.clone());
                Ok(names)
            }
            Err(fault) => Err(self.refusal(&path, fault)),
        }
    }

    /// The path with its links resolved, including the last one if `follow_last`.
    pub fn resolve(
        &mut self,
        source: &Source,
        path: &str,
        follow_last: bool,
    ) -> Result<String, Fault> {
        walk(path, follow_last, |at| self.look(source, at))
    }

    /// The kind of entry at a path, of which only the last component may be a link.
    pub fn look(&mut self, source: &Source, path: &str) -> Result<Look, Fault> {
        if let Ok(look) = self.files.look(path) {
            return Ok(look);
        }
        if self.seen.contains(path) {
            return Ok(Look::File);
        }
        self.known_fault(path)?;
        let look = source.look(path).map_err(|fault| self.refusal(path, fault))?;
        let added = match &look {
            Look::Dir => self.files.add_dir(path),
            Look::Link(target) => self.files.add_link(path, target),
            Look::File => {
                self.seen.insert(path.to_owned());
                Ok(())
            }
        };
        self.note(added);
        Ok(look)
    }

    /// The saved form of an answer that was recorded before.
    pub fn answer(&self, path: &str) -> Result<Vec<u8>, Fault> {
        self.files.read(path).map(<[u8]>::to_vec)
    }

    /// Records the result of a request.
    pub fn remember<T: Serialize>(&mut self, path: &str, result: &Result<T, ReadError>) {
        if self.files.read(path).is_ok() {
            return;
        }
        let added = serde_json::to_vec(&Answer::new(result))
            .map_err(|error| Fault::new(format!("{path} cannot be saved: {error}")))
            .and_then(|json| self.files.add_file(path, &json));
        self.note(added);
        self.answers += 1;
    }

    /// The recorded tree, with its manifest.
    pub fn finished(&self) -> Result<(&Memory, Manifest), Fault> {
        if let Some(fault) = &self.incomplete {
            return Err(fault.clone());
        }
        let kernel = self.files.read("/proc/sys/kernel/osrelease").ok();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let manifest = Manifest {
            schema: manifest::SCHEMA,
            nearpath: env!("CARGO_PKG_VERSION").to_owned(),
            time_unix_s: now.map_or(0, |now| now.as_secs()),
            kernel: kernel.map(|release| String::from_utf8_lossy(release).trim().to_owned()),
            refused: self
                .refused
                .iter()
                .map(|(path, fault)| (path.clone(), fault.reason.clone().into_owned()))
                .collect(),
            absent: self.absent.clone(),
            folders: self.folders(),
        };
        Ok((&self.files, manifest))
    }

    /// Number of recorded answers and errors.
    pub fn counts(&self) -> (usize, usize) {
        (self.answers, self.refused.len())
    }

    /// Known entries of directories beyond what was read in them.
    fn folders(&self) -> BTreeMap<String, Folder> {
        let mut folders: BTreeMap<String, Folder> = BTreeMap::new();
        for (path, listed) in &self.listed {
            let folder = folders.entry(path.clone()).or_default();
            folder.listed = true;
            let held: BTreeSet<String> =
                self.files.list(path).into_iter().flatten().map(|entry| entry.name).collect();
            for Entry { name, kind } in listed.iter().filter(|entry| !held.contains(&entry.name)) {
                let names = match kind {
                    EntryKind::File => &mut folder.files,
                    EntryKind::Dir => &mut folder.dirs,
                    EntryKind::Link => &mut folder.links,
                };
                names.insert(name.clone());
            }
            let shown: BTreeSet<&str> = listed.iter().map(|entry| entry.name.as_str()).collect();
            folder.hidden =
                held.into_iter().filter(|name| !shown.contains(name.as_str())).collect();
        }
        for path in self.seen.iter().filter(|path| self.files.look(path).is_err()) {
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
            let parent = if parent.is_empty() { "/" } else { parent };
            folders.entry(parent.to_owned()).or_default().files.insert(name.to_owned());
        }
        folders
    }

    /// Returns the error of an earlier attempt, if it failed.
    fn known_fault(&self, path: &str) -> Result<(), Fault> {
        match self.refused.get(path) {
            Some(fault) => Err(fault.clone()),
            None if self.absent.contains(path) => Err(Errno::NOENT.into()),
            None => Ok(()),
        }
    }

    /// Records why a path could not be read.
    fn refusal(&mut self, path: &str, fault: Fault) -> Fault {
        match fault.errno {
            // Both follow from the kind of entry.
            Some(Errno::NOTDIR | Errno::ISDIR) => {}
            _ if fault.absent => {
                self.absent.insert(path.to_owned());
                let added = self.files.add_dir(path.rsplit_once('/').map_or("", |(dir, _)| dir));
                self.note(added);
            }
            _ => {
                self.refused.insert(path.to_owned(), fault.clone());
            }
        }
        fault
    }

    /// Notes that a limit was exceeded. A conflicting entry is ignored: the machine changed while it was read,
    /// and what was read first is kept.
    fn note(&mut self, added: Result<(), Fault>) {
        if let Err(fault @ Fault { errno: None, .. }) = added {
            self.incomplete.get_or_insert(fault);
        }
    }
}
