//! Snapshot files on disk: read within bounds, written whole or not at all.

use super::archive::{self, MAX_PACKED};
use super::fault::Fault;
use super::files::{self, READ};
use super::memory::{Memory, Visit};
use super::record::Recorder;
use rustix::fs::{CWD, Mode, openat};
use std::convert::Infallible;
use std::io::{self, Write};
use std::path::Path;

/// A snapshot that could not be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct SaveError {
    /// The file that was to be written.
    pub path: String,
    /// Why it was not.
    pub reason: String,
}

/// What a snapshot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotSummary {
    /// Files of the machine, as they were read.
    pub files: usize,
    /// Answers of the kernel to requests that are no files.
    pub answers: usize,
    /// Paths that the machine refused to read, with the reasons.
    pub refused: usize,
    /// Size of the file in bytes.
    pub bytes: usize,
}

impl SaveError {
    fn new(path: &Path, reason: String) -> Self {
        Self { path: path.display().to_string(), reason }
    }

    pub(super) fn not_recording(path: &Path) -> Self {
        Self::new(path, "nothing was recorded for it".to_owned())
    }
}

/// Writes what was remembered. The file comes to be by renaming: a link of its name is replaced
/// and not followed, and nobody sees a part of it. It holds facts of the host, so only its owner
/// may read it.
pub(super) fn save(recorder: &Recorder, file: &Path) -> Result<SnapshotSummary, SaveError> {
    let because = |reason: String| SaveError::new(file, reason);
    let (files, manifest) = recorder
        .finished()
        .map_err(|fault| because(format!("a snapshot cannot hold this host: {}", fault.reason)))?;
    let packed = archive::pack(files, &manifest).map_err(|error| because(error.to_string()))?;
    write(&packed, file).map_err(|error| because(format!("cannot be written: {error}")))?;
    let (answers, refused) = recorder.counts();
    let files = count(files).saturating_sub(answers);
    Ok(SnapshotSummary { files, answers, refused, bytes: packed.len() })
}

/// How many files a tree holds.
fn count(tree: &Memory) -> usize {
    let mut files = 0;
    let Ok(()) = tree.visit(|_, visit| -> Result<(), Infallible> {
        files += usize::from(matches!(visit, Visit::File(_)));
        Ok(())
    });
    files
}

fn write(packed: &[u8], file: &Path) -> io::Result<()> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // Made with O_EXCL and mode 0600, and removed again unless it is persisted.
    let mut new = tempfile::Builder::new().prefix(".nearpath-snapshot-").tempfile_in(folder)?;
    // Through the file itself: errors then do not name the temporary one.
    new.as_file_mut().write_all(packed)?;
    new.as_file().sync_all()?;
    new.persist(file)?;
    Ok(())
}

/// The bytes of a snapshot's file.
pub(super) fn packed(file: &Path) -> Result<Vec<u8>, Fault> {
    let fd = openat(CWD, file, READ, Mode::empty())?;
    let size = files::regular(&fd)?;
    files::content(fd, size, MAX_PACKED)
}
