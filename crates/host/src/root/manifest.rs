//! What a snapshot tells about itself beside the files: when and of what it was made, what the
//! machine refused, what was looked for and is not there, and what is there but was not read.
//!
//! It makes the difference between "this machine does not have it" and "nobody looked".

use super::fault::Fault;
use super::files::Look;
use super::{Entry, EntryKind, order};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Where it stands in the tree.
pub(super) const PATH: &str = "/nearpath/manifest.json";
/// Version of the form; it grows when what is there changes its meaning.
pub(super) const SCHEMA: u32 = 1;

/// What a snapshot tells about itself.
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
    /// What could not be read, by path, and why.
    pub refused: BTreeMap<String, String>,
    /// What was looked for and is not there.
    pub absent: BTreeSet<String>,
    /// What is known of folders beyond what the snapshot holds.
    pub folders: BTreeMap<String, Folder>,
}

/// What is known of a folder.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Folder {
    /// Whether all its names are known.
    pub listed: bool,
    /// Files in it that were not read.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub files: BTreeSet<String>,
    /// Folders in it in which nothing was read.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub dirs: BTreeSet<String>,
    /// Links in it that were not read.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub links: BTreeSet<String>,
    /// Names that the snapshot holds and the machine does not list (threads in /proc).
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub hidden: BTreeSet<String>,
}

impl Manifest {
    /// Reads a manifest.
    pub fn parse(json: &[u8]) -> Result<Self, Fault> {
        let manifest: Self = serde_json::from_slice(json)
            .map_err(|error| Fault::new(format!("its manifest.json is damaged: {error}")))?;
        match manifest.schema {
            SCHEMA => Ok(manifest),
            other => Err(Fault::new(format!(
                "its form {other} is not known to this nearpath, which reads form {SCHEMA}"
            ))),
        }
    }

    /// Why a path is refused that the snapshot holds.
    pub fn refusal(&self, path: &str) -> Option<Fault> {
        self.refused.get(path).map(|reason| Fault::new(reason.clone()))
    }

    /// Why the snapshot holds nothing at a path that it might have held.
    pub fn fault(&self, path: &str) -> Fault {
        match self.refusal(path) {
            Some(fault) => fault,
            None if self.absent.contains(path) => Errno::NOENT.into(),
            None => Fault::new("was not read when the snapshot was made"),
        }
    }

    /// What stands at a path that the snapshot does not hold, as far as is known.
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

    /// The names in a folder, from those that the snapshot holds in it.
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
