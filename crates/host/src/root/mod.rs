//! The source of facts: the live machine, an unpacked tree, or a snapshot file.
//!
//! Input: the machine's paths (`/sys/class/net/eth0/mtu`) and keys of requests to its kernel. Output: bytes,
//! names, links and answers, or a [`ReadError`] with the reason.

mod answers;
mod archive;
mod fault;
mod files;
mod live;
mod manifest;
mod memory;
mod order;
mod record;
mod save;
mod saved;
mod tree;
mod walk;

pub(crate) use live::open_here;
pub use save::SaveError;

use fault::Fault;
use files::Look;
use live::Live;
use nearpath_model::SnapshotSummary;
use record::Recorder;
use saved::Saved;
use serde::{Serialize, de::DeserializeOwned};
use std::borrow::Cow;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A file that could not be read, or a request that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {reason}")]
pub struct ReadError {
    /// The path or the request, as on the machine: `/sys/class/net/eth0/mtu`.
    pub what: String,
    /// Description of the error.
    pub reason: String,
    /// Whether it does not exist (ENOENT), as with many optional facts.
    pub absent: bool,
}

impl ReadError {
    /// An error detected by nearpath.
    pub(crate) fn new(what: &str, reason: &str) -> Self {
        Fault::new(reason.to_owned()).about(what)
    }

    /// An error of the kernel.
    pub(crate) fn from_errno(what: &str, errno: rustix::io::Errno) -> Self {
        Fault::from(errno).about(what)
    }
}

/// The kind of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
}

/// A directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name, without its directory.
    pub name: String,
    /// The kind.
    pub kind: EntryKind,
}

/// The machine that facts are read from.
///
/// Paths are always those of the machine (`/sys/…`, `/proc/…`), whatever the source.
#[derive(Debug)]
pub struct Root {
    source: Source,
    recorder: Option<Mutex<Recorder>>,
}

/// The source behind a root.
#[derive(Debug)]
enum Source {
    Live(Live),
    Saved(Saved),
}

impl Root {
    /// This machine, as seen by the calling thread's network namespace.
    pub fn live() -> Self {
        Self { source: Source::Live(Live::new()), recorder: None }
    }

    /// An unpacked tree that contains `sys` and `proc`.
    ///
    /// # Errors
    /// No such directory, or no host data in it.
    pub fn tree(dir: &Path) -> Result<Self, ReadError> {
        let saved = Saved::tree(dir).map_err(|fault| fault.about(&dir.display().to_string()))?;
        Ok(Self { source: Source::Saved(saved), recorder: None })
    }

    /// A snapshot, opened in memory; nothing is unpacked to disk.
    ///
    /// # Errors
    /// The file cannot be read, is not a snapshot, is damaged or truncated, contains a path outside of it, or
    /// would need more than 512 MiB.
    pub fn snapshot(file: &Path) -> Result<Self, ReadError> {
        let what = file.display().to_string();
        let bytes = save::packed(file).map_err(|fault| fault.about(&what))?;
        Self::snapshot_from_bytes(&bytes, &what)
    }

    /// A snapshot from the bytes of its file; `name` is used in errors.
    ///
    /// # Errors
    /// As [`Root::snapshot`].
    pub fn snapshot_from_bytes(bytes: &[u8], name: &str) -> Result<Self, ReadError> {
        let saved = Saved::snapshot(bytes, name).map_err(|fault| fault.about(name))?;
        Ok(Self { source: Source::Saved(saved), recorder: None })
    }

    /// The same root, which from now on records everything that is read from it, for [`Root::save`]. What was
    /// read once does not change afterwards.
    #[must_use]
    pub fn recording(self) -> Self {
        Self { recorder: Some(Mutex::new(Recorder::new())), ..self }
    }

    /// Saves what was read since [`Root::recording`] as a snapshot, a file readable by its owner only. An
    /// existing file with that name is replaced once everything is written. Unpacked with `tar x` it is a tree
    /// for [`Root::tree`].
    ///
    /// # Errors
    /// The root does not record, more was read than a snapshot may contain, or the file cannot be written; no
    /// partial file remains.
    pub fn save(&self, file: &Path) -> Result<SnapshotSummary, SaveError> {
        let recorder = self.recorder().ok_or_else(|| SaveError::not_recording(file))?;
        save::save(&recorder, file)
    }

    /// Whether this is the running machine, so that requests to the kernel can be made.
    pub fn is_live(&self) -> bool {
        matches!(self.source, Source::Live(_))
    }

    /// A file's bytes.
    ///
    /// # Errors
    /// The file does not exist or cannot be read, is not a regular file, or is larger than 64 MiB.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, ReadError> {
        self.read_until(path, None)
    }

    /// A file's bytes, with a time limit, for files that take the kernel long to generate. Saved files
    /// are read without delay.
    ///
    /// # Errors
    /// As [`Root::read`], or the time limit is exceeded.
    pub fn read_within(&self, path: &str, time: Duration) -> Result<Vec<u8>, ReadError> {
        self.read_until(path, Some(Instant::now() + time))
    }

    fn read_until(&self, path: &str, until: Option<Instant>) -> Result<Vec<u8>, ReadError> {
        let rooted = rooted(path);
        let bytes = match self.recorder() {
            Some(mut recorder) => recorder.read(&self.source, &rooted, until),
            None => self.source.read(&rooted, until),
        };
        bytes.map_err(|fault| fault.about(path))
    }

    /// A file's text without surrounding white space; invalid UTF-8 is replaced.
    ///
    /// # Errors
    /// As [`Root::read`].
    pub fn text(&self, path: &str) -> Result<String, ReadError> {
        Ok(String::from_utf8_lossy(self.read(path)?.trim_ascii()).into_owned())
    }

    /// The names in a directory, in natural order (`cpu2` before `cpu10`).
    ///
    /// # Errors
    /// The directory does not exist or cannot be read.
    pub fn list(&self, path: &str) -> Result<Vec<Entry>, ReadError> {
        let rooted = rooted(path);
        let names = match self.recorder() {
            Some(mut recorder) => recorder.list(&self.source, &rooted),
            None => self.source.list(&rooted),
        };
        names.map_err(|fault| fault.about(path))
    }

    /// The target of a symbolic link, as stored in it.
    ///
    /// # Errors
    /// No such link.
    pub fn link(&self, path: &str) -> Result<String, ReadError> {
        // The sockets of a busy server are a hundred thousand links.
        if let (Source::Live(live), None) = (&self.source, &self.recorder) {
            return live.link(&rooted(path)).map_err(|fault| fault.about(path));
        }
        let look = self.walk(path, false).and_then(|path| self.look(&path));
        match look.map_err(|fault| fault.about(path))? {
            Look::Link(target) => Ok(target),
            Look::File | Look::Dir => Err(Fault::new("is not a link").about(path)),
        }
    }

    /// The path with all links resolved, still on the machine (`/sys/devices/pci…/net/eth0`).
    ///
    /// # Errors
    /// The path does not exist, or there is a symbolic link loop.
    pub fn resolve(&self, path: &str) -> Result<String, ReadError> {
        self.walk(path, true).map_err(|fault| fault.about(path))
    }

    /// The kernel's answer to a request other than a file (netlink, ioctl): on a live machine the result of
    /// `ask`, in a tree or a snapshot the answer saved under the same key.
    ///
    /// A key names the request and its object, as `ethtool/eth0/rings`; it has at most some 80 characters.
    ///
    /// # Errors
    /// The request failed, or the tree has no answer to it.
    pub fn answer<T: Serialize + DeserializeOwned>(
        &self,
        key: &str,
        ask: impl FnOnce() -> Result<T, ReadError>,
    ) -> Result<T, ReadError> {
        let path = answers::path(key).map_err(|fault| fault.about(key))?;
        if let Some(recorder) = self.recorder()
            && let Ok(json) = recorder.answer(&path)
        {
            return answers::decoded(key, Ok(json));
        }
        // The recorder is not locked meanwhile: `ask` may read from this root.
        let result = match &self.source {
            Source::Live(_) => ask(),
            Source::Saved(saved) => answers::decoded(key, saved.read(&path)),
        };
        if let Some(mut recorder) = self.recorder() {
            recorder.remember(&path, &result);
        }
        result
    }

    fn recorder(&self) -> Option<MutexGuard<'_, Recorder>> {
        // Valid even after a panic elsewhere: nothing is recorded in part.
        Some(self.recorder.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn walk(&self, path: &str, follow_last: bool) -> Result<String, Fault> {
        walk::walk(path, follow_last, |at| self.look(at))
    }

    fn look(&self, path: &str) -> Result<Look, Fault> {
        match self.recorder() {
            Some(mut recorder) => recorder.look(&self.source, path),
            None => self.source.look(path),
        }
    }
}

impl Source {
    fn read(&self, path: &str, until: Option<Instant>) -> Result<Vec<u8>, Fault> {
        match self {
            Self::Live(live) => live.read(path, until),
            Self::Saved(saved) => saved.read(path),
        }
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>, Fault> {
        match self {
            Self::Live(live) => live.list(path),
            Self::Saved(saved) => saved.list(path),
        }
    }

    fn look(&self, path: &str) -> Result<Look, Fault> {
        match self {
            Self::Live(live) => live.look(path),
            Self::Saved(saved) => saved.look(path),
        }
    }
}

/// The path relative to the machine's `/`.
fn rooted(path: &str) -> Cow<'_, str> {
    if path.starts_with('/') { Cow::Borrowed(path) } else { Cow::Owned(format!("/{path}")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_directory_without_a_host_is_rejected() {
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
        for path in ["/sys/class/net/lo", "/proc/self/cwd", "/proc/net"] {
            assert_eq!(root.link(path), Root::live().recording().link(path), "{path}");
        }
        assert_eq!(root.link("/proc/self/none").unwrap_err().reason, "not found");
        assert_eq!(root.link("/proc/self/fd").unwrap_err().reason, "is not a link");
        assert!(root.read("/proc/net/dev").unwrap().windows(3).any(|w| w == b"lo:"));
        let error = root.read("/sys/class/net/none/mtu").unwrap_err();
        assert_eq!(
            (error.to_string().as_str(), error.absent),
            ("/sys/class/net/none/mtu: not found", true)
        );
        assert_eq!(root.read("/sys").unwrap_err().reason, "is a directory, not a file");
    }
}
