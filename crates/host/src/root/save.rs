//! Snapshot files on disk: bounded reads, atomic writes.

use super::archive::{self, MAX_PACKED};
use super::fault::Fault;
use super::files::{self, READ};
use super::memory::{Memory, Visit};
use super::record::Recorder;
use nearpath_model::SnapshotSummary;
use rustix::fd::AsRawFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};
use rustix::io::Errno;
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Flags to create an unnamed file in a directory.
const UNNAMED: OFlags = OFlags::TMPFILE.union(OFlags::RDWR).union(OFlags::CLOEXEC);

/// A snapshot that could not be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct SaveError {
    /// The file to be written.
    pub path: String,
    /// The reason.
    pub reason: String,
}

impl SaveError {
    fn new(path: &Path, reason: String) -> Self {
        Self { path: path.display().to_string(), reason }
    }

    pub(super) fn not_recording(path: &Path) -> Self {
        Self::new(path, "nothing was recorded for it".to_owned())
    }
}

/// Writes a recording. The file gets its name when it is complete: an existing link of that name is replaced
/// and not followed, and no partial file is ever visible. It contains facts of the host, so only its owner may
/// read it.
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

/// Number of files in a tree.
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
    match openat(CWD, folder, UNNAMED, Mode::RUSR | Mode::WUSR) {
        Ok(fd) => write_unnamed(File::from(fd), packed, folder, file),
        // File systems and kernels without unnamed files (openat(2), O_TMPFILE).
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::INVAL) => {
            write_named(packed, folder, file)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Writes a file that has no name until it is complete, so that nothing remains if we are killed.
fn write_unnamed(mut new: File, packed: &[u8], folder: &Path, file: &Path) -> io::Result<()> {
    new.write_all(packed)?;
    new.sync_all()?;
    let own = format!("/proc/self/fd/{}", new.as_raw_fd());
    let give = |name: &Path| linkat(CWD, own.as_str(), CWD, name, AtFlags::SYMLINK_FOLLOW);
    match give(file) {
        Ok(()) => Ok(()),
        // A link does not replace an existing file, so it is renamed over it, and removed if that fails.
        Err(Errno::EXIST) => {
            let named = prefixed().make_in(folder, |name| Ok(give(name)?))?;
            named.into_temp_path().persist(file)?;
            Ok(())
        }
        // No /proc is mounted here.
        Err(Errno::NOENT) => write_named(packed, folder, file),
        Err(errno) => Err(errno.into()),
    }
}

/// Writes a temporary file, renamed when it is complete.
fn write_named(packed: &[u8], folder: &Path, file: &Path) -> io::Result<()> {
    // Created with O_EXCL and mode 0600, and removed unless it is persisted.
    let mut new = prefixed().tempfile_in(folder)?;
    // Through the file itself, so that errors do not contain the temporary name.
    new.as_file_mut().write_all(packed)?;
    new.as_file().sync_all()?;
    new.persist(file)?;
    Ok(())
}

fn prefixed() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".nearpath-snapshot-");
    builder
}

/// The bytes of a snapshot file.
pub(super) fn packed(file: &Path) -> Result<Vec<u8>, Fault> {
    let fd = openat(CWD, file, READ, Mode::empty())?;
    let size = files::regular(&fd)?;
    files::content(fd, size, MAX_PACKED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    type CreateArchive = fn(&[u8], &Path, &Path) -> io::Result<()>;

    /// Both methods; the second one is used if the first is not available.
    const WAYS: [CreateArchive; 2] = [
        |packed, folder, file| {
            let fd = openat(CWD, folder, UNNAMED, Mode::RUSR | Mode::WUSR)?;
            write_unnamed(File::from(fd), packed, folder, file)
        },
        write_named,
    ];

    #[test]
    fn written_atomically_and_only_for_its_owner() {
        for way in WAYS {
            let dir = tempfile::tempdir().unwrap();
            let (file, other) = (dir.path().join("host.tar.zst"), dir.path().join("other"));
            way(b"one", dir.path(), &file).unwrap();
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
            way(b"two", dir.path(), &file).unwrap();
            assert_eq!(fs::read(&file).unwrap(), b"two");
            // A link is replaced, not followed.
            fs::remove_file(&file).unwrap();
            symlink(&other, &file).unwrap();
            way(b"three", dir.path(), &file).unwrap();
            assert_eq!(fs::read(&file).unwrap(), b"three");
            assert!(!other.exists() && !file.is_symlink());
            // A directory of that name exists: nothing remains.
            fs::create_dir(&other).unwrap();
            assert!(way(b"four", dir.path(), &other).is_err());
            let names = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name());
            assert_eq!(names.collect::<std::collections::BTreeSet<_>>().len(), 2);
        }
    }
}
