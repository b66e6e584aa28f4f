//! A saved machine: an unpacked tree or a snapshot in memory, with its manifest if it has one. Without a
//! manifest, what is missing is taken to be absent on the machine.

use super::fault::Fault;
use super::files::Look;
use super::manifest::{self, Manifest};
use super::memory::Memory;
use super::tree::Tree;
use super::walk::walk;
use super::{Entry, archive};
use rustix::io::Errno;
use std::path::Path;

/// A saved machine.
#[derive(Debug)]
pub(super) struct Saved {
    store: Store,
    manifest: Option<Manifest>,
}

/// Storage of its files.
#[derive(Debug)]
enum Store {
    Tree(Tree),
    Memory(Memory),
}

impl Saved {
    /// An unpacked tree.
    pub fn tree(dir: &Path) -> Result<Self, Fault> {
        Self::new(Store::Tree(Tree::new(dir)?), &dir.display().to_string())
    }

    /// A snapshot, from the bytes of its file; `name` is used in errors.
    pub fn snapshot(bytes: &[u8], name: &str) -> Result<Self, Fault> {
        Self::new(Store::Memory(archive::unpack(bytes)?), name)
    }

    fn new(store: Store, name: &str) -> Result<Self, Fault> {
        if store.list("/sys").is_err() && store.list("/proc").is_err() {
            let reason = format!("no /sys and no /proc in {name}: not a host's tree");
            return Err(Fault::new(reason));
        }
        let manifest = match store.read(manifest::PATH) {
            Ok(json) => Some(Manifest::parse(&json)?),
            Err(fault) if fault.absent => None,
            Err(fault) => return Err(fault),
        };
        Ok(Self { store, manifest })
    }

    /// A file's bytes.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, Fault> {
        self.store.read(path).map_err(|fault| match (&self.manifest, fault.absent) {
            (Some(manifest), true) => match walk(path, true, |at| self.look(at)) {
                Ok(path) => manifest.fault(&path),
                Err(fault) => fault,
            },
            _ => fault,
        })
    }

    /// The names in a directory.
    pub fn list(&self, path: &str) -> Result<Vec<Entry>, Fault> {
        let Some(manifest) = &self.manifest else { return self.store.list(path) };
        let path = walk(path, true, |at| self.look(at))?;
        // It may have vanished before it was listed: the folder of a process that has ended.
        if let Some(fault) = manifest.known_fault(&path) {
            return Err(fault);
        }
        match self.store.list(&path) {
            Ok(held) => manifest.list(&path, held),
            Err(fault) if fault.errno == Some(Errno::NOENT) => Err(manifest.fault(&path)),
            Err(fault) => Err(fault),
        }
    }

    /// The kind of entry at a path, of which only the last component may be a link.
    pub fn look(&self, path: &str) -> Result<Look, Fault> {
        self.store.look(path).or_else(|fault| match &self.manifest {
            Some(manifest) if fault.errno == Some(Errno::NOENT) => manifest.look(path),
            _ => Err(fault),
        })
    }
}

impl Store {
    fn read(&self, path: &str) -> Result<Vec<u8>, Fault> {
        match self {
            Self::Tree(tree) => tree.read(path),
            Self::Memory(memory) => memory.read(path).map(<[u8]>::to_vec),
        }
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>, Fault> {
        match self {
            Self::Tree(tree) => tree.list(path),
            Self::Memory(memory) => memory.list(path),
        }
    }

    fn look(&self, path: &str) -> Result<Look, Fault> {
        match self {
            Self::Tree(tree) => tree.look(path),
            Self::Memory(memory) => memory.look(path),
        }
    }
}
