//! Results on standard output, and files named by the user.

use crate::failure::Failure;
use anyhow::{Context, anyhow};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Prints text, with colours only if standard output is a terminal and NO_COLOR is not set.
///
/// # Errors
/// The reader closed the pipe, or the disk behind standard output is full.
pub fn text(text: &str) -> Result<(), Failure> {
    let mut out = anstream::AutoStream::auto(io::stdout().lock());
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(failure)
}

/// Width of the terminal on standard output; `None` if it is not a terminal or has no width.
pub fn width() -> Option<usize> {
    let out = io::stdout();
    let size =
        if out.is_terminal() { rustix::termios::tcgetwinsize(&out).ok()? } else { return None };
    Some(usize::from(size.ws_col)).filter(|&columns| columns > 0)
}

/// Prints one JSON document.
///
/// # Errors
/// As [`text`].
pub fn json(document: &impl Serialize) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    serde_json::to_writer_pretty(&mut out, document).map_err(|error| failure(error.into()))?;
    out.write_all(b"\n").and_then(|()| out.flush()).map_err(failure)
}

/// Prints a JSON document on one line, for line-based readers.
///
/// # Errors
/// As [`text`].
pub fn json_line(document: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(document).map_err(|error| failure(error.into()))?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line).and_then(|()| out.flush()).map_err(failure)
}

fn failure(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::BrokenPipe;
    }
    Failure::Error(anyhow::Error::new(error).context("cannot write to standard output"))
}

/// Writes a file named by the user: a new one, or an existing regular file. Symbolic links are not followed, and
/// devices and FIFOs not written to, as another user may have put them there.
///
/// # Errors
/// The file is of another type, or cannot be written.
pub fn file(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let name = path.display();
    let mut file = regular_file(path).with_context(|| format!("cannot write {name}"))?;
    file.set_len(0)
        .and_then(|()| file.write_all(content))
        .and_then(|()| file.sync_all())
        .with_context(|| format!("cannot write {name}"))?;
    Ok(())
}

/// Writes a file as [`file`] does, and makes it executable if it is a program.
///
/// # Errors
/// As [`file`].
pub fn program(path: &Path, content: &[u8], is_program: bool) -> Result<(), Failure> {
    file(path, content)?;
    if is_program {
        let name = path.display();
        let made = regular_file(path).and_then(|file| {
            let mut permissions = file.metadata()?.permissions();
            permissions.set_mode(permissions.mode() | (permissions.mode() & 0o444) >> 2);
            Ok(file.set_permissions(permissions)?)
        });
        made.with_context(|| format!("cannot make {name} executable"))?;
    }
    Ok(())
}

fn regular_file(path: &Path) -> anyhow::Result<File> {
    // O_NONBLOCK: opening a FIFO must not block until it has a reader.
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o666));
    let file = match opened {
        Ok(fd) => File::from(fd),
        Err(Errno::LOOP) => return Err(anyhow!("it is a symbolic link")),
        // A FIFO without a reader, or a socket.
        Err(Errno::NXIO) => return Err(anyhow!("it is not a regular file")),
        Err(errno) => return Err(io::Error::from(errno).into()),
    };
    if !file.metadata()?.is_file() {
        return Err(anyhow!("it is not a regular file"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_devices_are_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        file(&target, b"a longer content").unwrap();
        file(&target, b"short").unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"short");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(matches!(file(&link, b"x"), Err(Failure::Error(_))));
        assert!(matches!(file(Path::new("/dev/null"), b"x"), Err(Failure::Error(_))));
        assert!(matches!(file(dir.path(), b"x"), Err(Failure::Error(_))));
        assert_eq!(std::fs::read(&target).unwrap(), b"short");
    }
}
