//! Metadata of a snapshot: when and from what it was made, errors, what was looked for and not found, and what
//! exists but was not read.
//!
//! It distinguishes "the machine does not have it" from "it was not read".

use super::fault::Fault;
use super::files::Look;
use super::{Entry, EntryKind, order};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Its path in the tree.
pub(super) const PATH: &str = "/nearpath/manifest.json";
/// Version of the format; incremented when a field changes its meaning.
pub(super) const SCHEMA: u32 = 1;

/// Metadata of a snapshot.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// [`SCHEMA`] of the nearpath that wrote it.
    pub schema: u32,
    /// Version of the nearpath that wrote it.
    pub nearpath: String,
    /// When, in seconds since 1970.
    pub time_unix_s: u64,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// Paths that could not be read, with the reasons.
    pub refused: BTreeMap<String, String>,
    /// Paths that do not exist.
    pub absent: BTreeSet<String>,
    /// Entries of directories that are known but not part of the snapshot.
    pub folders: BTreeMap<String, Folder>,
}

/// Known entries of a directory.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Folder {
    /// Whether all of its names are known.
    pub listed: bool,
    /// Files in it that were not read.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub files: BTreeSet<String>,
    /// Directories in it in which nothing was read.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub dirs: BTreeSet<String>,
    /// Links in it that were not read.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub links: BTreeSet<String>,
    /// Names in the snapshot that the machine does not list (threads in /proc).
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub hidden: BTreeSet<String>,
}

impl Manifest {
    /// Parses a manifest.
    pub fn parse(json: &[u8]) -> Result<Self, Fault> {
        let manifest: Self = serde_json::from_slice(json)
            .map_err(|error| Fault::new(format!("damaged manifest.json: {error}")))?;
        match manifest.schema {
            SCHEMA => Ok(manifest),
            other => Err(Fault::new(format!(
                "snapshot format {other} is not supported; this nearpath reads format {SCHEMA}"
            ))),
        }
    }

    /// The error for a path that could not be read, or was not there when it was read.
    pub fn known_fault(&self, path: &str) -> Option<Fault> {
        match self.refused.get(path) {
            Some(reason) => Some(Fault::new(reason.clone())),
            None => self.absent.contains(path).then(|| Errno::NOENT.into()),
        }
    }

    /// The error for a path that is not in the snapshot.
    pub fn fault(&self, path: &str) -> Fault {
        self.known_fault(path)
            .unwrap_or_else(|| Fault::new("was not read when the snapshot was made"))
    }

    /// The kind of entry at a path that is not in the snapshot, as far as known.
    pub fn look(&self, path: &str) -> Result<Look, Fault> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = if parent.is_empty() { "/" } else { parent };
        let folder = self.folders.get(parent);
        match folder {
            Some(folder) if folder.files.contains(name) => Ok(Look::File),
            Some(folder) if folder.dirs.contains(name) => Ok(Look::Dir),
            Some(folder) if folder.listed && !folder.links.contains(name) => {
                Err(Errno::NOENT.into())
            }
            _ => Err(self.fault(path)),
        }
    }

    /// The names in a directory, given those that the snapshot has.
    pub fn list(&self, path: &str, held: Vec<Entry>) -> Result<Vec<Entry>, Fault> {
        let Some(folder) = self.folders.get(path).filter(|folder| folder.listed) else {
            return Err(Fault::new("was not listed when the snapshot was made"));
        };
        let mut names = held;
        names.retain(|entry| !folder.hidden.contains(&entry.name));
        for (unread, kind) in [
            (&folder.files, EntryKind::File),
            (&folder.dirs, EntryKind::Dir),
            (&folder.links, EntryKind::Link),
        ] {
            names.extend(unread.iter().map(|name| Entry { name: name.clone(), kind }));
        }
        names.sort_by(|a, b| order::natural(&a.name, &b.name));
        names.dedup_by(|a, b| a.name == b.name);
        Ok(names)
    }
}
