//! Where facts are read from: the live machine, an unpacked tree, or a snapshot file.
//!
//! In go the machine's own paths (`/sys/class/net/eth0/mtu`) and keys of requests to its kernel;
//! out come bytes, names, links and answers, or a [`ReadError`] that says why not.

mod answers;
mod fault;
mod files;
mod live;
mod order;
mod tree;
mod walk;

use fault::Fault;
use live::Live;
use serde::{Serialize, de::DeserializeOwned};
use std::borrow::Cow;
use std::path::Path;
use tree::Tree;

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

impl ReadError {
    /// A reason in our own words.
    pub(crate) fn new(what: &str, reason: &str) -> Self {
        Fault::new(reason.to_owned()).about(what)
    }

    /// The kernel's refusal, in words.
    pub(crate) fn from_errno(what: &str, errno: rustix::io::Errno) -> Self {
        Fault::from(errno).about(what)
    }
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
    source: Source,
}

/// What stands behind a root.
#[derive(Debug)]
enum Source {
    Live(Live),
    Tree(Tree),
}

impl Root {
    /// This machine, as the calling thread's network namespace sees it.
    pub fn live() -> Self {
        Self { source: Source::Live(Live::new()) }
    }

    /// An unpacked tree with `sys` and `proc` in it.
    ///
    /// # Errors
    /// No such folder, or nothing of a host in it.
    pub fn tree(dir: &Path) -> Result<Self, ReadError> {
        let what = dir.display().to_string();
        let tree = Tree::new(dir).map_err(|errno| Fault::from(errno).about(&what))?;
        if tree.list("/sys").is_err() && tree.list("/proc").is_err() {
            return Err(no_host(&what));
        }
        Ok(Self { source: Source::Tree(tree) })
    }

    /// Whether this is the running machine, so that requests to the kernel can be made.
    pub fn is_live(&self) -> bool {
        matches!(self.source, Source::Live(_))
    }

    /// A file's bytes.
    ///
    /// # Errors
    /// The file is not there or cannot be read, is no regular file, or larger than 64 MiB.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, ReadError> {
        self.source.read(&rooted(path)).map_err(|fault| fault.about(path))
    }

    /// A file's text without the white space around it; bytes that are no UTF-8 are replaced.
    ///
    /// # Errors
    /// As [`Root::read`].
    pub fn text(&self, path: &str) -> Result<String, ReadError> {
        Ok(String::from_utf8_lossy(self.read(path)?.trim_ascii()).into_owned())
    }

    /// The names in a folder, in natural order (`cpu2` before `cpu10`).
    ///
    /// # Errors
    /// The folder is not there or cannot be read.
    pub fn list(&self, path: &str) -> Result<Vec<Entry>, ReadError> {
        self.source.list(&rooted(path)).map_err(|fault| fault.about(path))
    }

    /// Where a symbolic link points, as written in it.
    ///
    /// # Errors
    /// No such link.
    pub fn link(&self, path: &str) -> Result<String, ReadError> {
        match self.source.link(&rooted(path)) {
            Ok(Some(target)) => Ok(target),
            Ok(None) => Err(Fault::new("is not a link").about(path)),
            Err(fault) => Err(fault.about(path)),
        }
    }

    /// The path with all links resolved, still the machine's own (`/sys/devices/pci…/net/eth0`).
    ///
    /// # Errors
    /// Nothing is there, or links go in a circle.
    pub fn resolve(&self, path: &str) -> Result<String, ReadError> {
        walk::walk(path, true, |at| self.source.link(at)).map_err(|(_, fault)| fault.about(path))
    }

    /// The kernel's answer to a request that is no file (netlink, ioctl): on a live machine what
    /// `ask` returns, in a tree or a snapshot what was saved under the same key.
    ///
    /// A key names the request and what it is about, as `ethtool/eth0/rings`.
    ///
    /// # Errors
    /// The request was refused, or the tree holds no answer to it.
    pub fn answer<T: Serialize + DeserializeOwned>(
        &self,
        key: &str,
        ask: impl FnOnce() -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        match &self.source {
            Source::Live(_) => ask(),
            Source::Tree(tree) => answers::saved(key, |path| tree.read(path)),
        }
    }
}

impl Source {
    fn read(&self, path: &str) -> Result<Vec<u8>, Fault> {
        match self {
            Self::Live(live) => live.read(path),
            Self::Tree(tree) => tree.read(path),
        }
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>, Fault> {
        match self {
            Self::Live(live) => live.list(path),
            Self::Tree(tree) => tree.list(path),
        }
    }

    fn link(&self, path: &str) -> Result<Option<String>, Fault> {
        match self {
            Self::Live(live) => live.link(path),
            Self::Tree(tree) => tree.link(path),
        }
    }
}

/// The path from the machine's `/`.
fn rooted(path: &str) -> Cow<'_, str> {
    if path.starts_with('/') { Cow::Borrowed(path) } else { Cow::Owned(format!("/{path}")) }
}

fn no_host(what: &str) -> ReadError {
    Fault::new(format!("no /sys and no /proc in {what}: not a host's tree")).about(what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_without_a_host_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let error = Root::tree(dir.path()).unwrap_err();
        assert!(error.to_string().contains("no /sys and no /proc in"), "{error}");
        fs::create_dir(dir.path().join("proc")).unwrap();
        assert!(Root::tree(dir.path()).is_ok());
        assert!(Root::tree(&dir.path().join("none")).unwrap_err().absent);
    }

    #[test]
    fn live_reads_this_machine() {
        let root = Root::live();
        assert!(root.text("/proc/sys/kernel/osrelease").unwrap().contains('.'));
        assert!(root.list("/sys/class/net").unwrap().iter().any(|e| e.name == "lo"));
        assert!(root.resolve("/sys/class/net/lo").unwrap().ends_with("/net/lo"));
        assert!(root.read("/proc/net/dev").unwrap().windows(3).any(|w| w == b"lo:"));
        let error = root.read("/sys/class/net/none/mtu").unwrap_err();
        assert_eq!(
            (error.to_string().as_str(), error.absent),
            ("/sys/class/net/none/mtu: is not there", true)
        );
        assert_eq!(root.read("/sys").unwrap_err().reason, "is a folder, not a file");
    }
}
