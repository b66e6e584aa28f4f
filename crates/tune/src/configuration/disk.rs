//! Configuration files on disk. They are replaced atomically, so that after a crash there is the old file or the
//! new one. No path leads out of `/etc`, and no symbolic link is followed.
//!
//! A new file is written next to the old one, synced and renamed; then its directory is synced. A drop-in
//! directory is created for its first file and removed with its last.
//!
//! A file that was edited by hand is replaced with `force` only. The journal must not be able to write arbitrary
//! text, so the edited text could not be restored from it; instead the file itself is kept under another name and
//! renamed back.

use super::grammar::{check, irqbalance_arguments, is_safe_argument};
use super::lines;
use crate::setting::Setting;
use crate::{TuneError, units};

use nearpath_model::{ConfigFile, ConfigPlace};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, ResolveFlags, Stat, Uid, fchmod, fchown, fstat, linkat,
    mkdirat, openat, openat2, renameat, unlinkat,
};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Maximum size of a file in bytes.
const MAX_FILE: u64 = 64 << 10;
/// Suffix of a new file until it is renamed. Readers of these directories ignore it: they read `.conf` and
/// `.cfg`.
const NEW: &str = ".nearpath-new";
/// Suffix of a file that was edited by hand, while nearpath's file is in its place.
const KEPT: &str = ".nearpath-kept";
/// A regular file (stat(2)).
const REGULAR: u32 = libc::S_IFREG;

/// `/etc`, opened.
#[derive(Debug)]
pub(crate) struct Etc {
    folder: Result<OwnedFd, Errno>,
    /// Whether the readers of its files are notified of changes.
    live: bool,
}

impl Etc {
    /// That of this host.
    pub fn live() -> Self {
        Self { folder: open_path(Path::new("/etc")), live: true }
    }

    /// Another directory instead.
    #[cfg(test)]
    fn of(folder: &Path) -> Self {
        Self { folder: open_path(folder), live: false }
    }

    /// A file in it.
    ///
    /// # Errors
    /// The file may not be written.
    pub fn setting<'a>(&'a self, file: &'a ConfigFile) -> Result<ConfigSetting<'a>, TuneError> {
        let path = file.path();
        let parsed = ConfigFile::parse(&file.to_string());
        match path.strip_prefix("/etc/").and_then(|rest| rest.rsplit_once('/')) {
            Some((folder, name)) if parsed.as_ref() == Some(file) => {
                let (folder, name) = (folder.to_owned(), name.to_owned());
                Ok(ConfigSetting { etc: self, file, place: file.place(), folder, name })
            }
            _ => Err(TuneError::Refused(format!("nearpath does not write the file {path:?}"))),
        }
    }

    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let base = self.folder.as_ref().map_err(|errno| *errno)?;
        within(base, path, flags)
    }
}

fn open_path(folder: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, folder, flags, Mode::empty())
}

/// Opens a path below a directory, without following links.
fn within(base: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let mode =
        if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o600) } else { Mode::empty() };
    loop {
        match openat2(&base, path, flags, mode, resolve) {
            // A rename elsewhere in the tree made the kernel unsure (openat2(2)).
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

/// A configuration file, or a variable in it.
#[derive(Debug)]
pub(crate) struct ConfigSetting<'a> {
    etc: &'a Etc,
    file: &'a ConfigFile,
    place: ConfigPlace,
    /// Below `/etc`.
    folder: String,
    name: String,
}

/// The contents of a file.
struct Contents {
    bytes: Vec<u8>,
    stat: Stat,
}

impl ConfigSetting<'_> {
    /// Whether its directory is created for its first file.
    fn folder_is_made(&self) -> bool {
        matches!(self.place, ConfigPlace::DropIn | ConfigPlace::CommandLine)
    }

    /// The directory; `None` if it does not exist.
    fn open_folder(&self) -> Result<Option<OwnedFd>, Errno> {
        match self.etc.open(&self.folder, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(folder) => Ok(Some(folder)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The parent of its directory.
    fn open_parent(&self) -> Result<(OwnedFd, &str), Errno> {
        let (parent, name) = self.folder.rsplit_once('/').ok_or(Errno::NOENT)?;
        Ok((self.etc.open(parent, OFlags::RDONLY | OFlags::DIRECTORY)?, name))
    }

    /// The contents of the file; `None` if it does not exist.
    fn contents(&self, folder: &OwnedFd) -> io::Result<Option<Contents>> {
        self.contents_of(folder, &self.name)
    }

    /// The same for another file of the directory.
    fn contents_of(&self, folder: &OwnedFd, name: &str) -> io::Result<Option<Contents>> {
        // O_NONBLOCK: opening a FIFO must not wait for a writer.
        let opened = match within(folder, name, OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let stat = fstat(&opened)?;
        if stat.st_mode & libc::S_IFMT != REGULAR {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut bytes = Vec::new();
        File::from(opened).take(MAX_FILE + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(io::Error::other(format!("it is longer than {} KiB", MAX_FILE >> 10)));
        }
        Ok(Some(Contents { bytes, stat }))
    }

    /// The text of the setting in the contents of the file.
    fn text(&self, contents: Option<&Contents>) -> Result<String, String> {
        let Some(Contents { bytes, .. }) = contents else { return Ok(String::new()) };
        let part = match self.file.variable() {
            None if bytes.is_empty() => {
                return Err("the file is empty, so nearpath did not write it; remove it".to_owned());
            }
            None => bytes.as_slice(),
            Some(variable) => match lines::find(bytes, variable)? {
                Some(at) => bytes.get(at).unwrap_or_default(),
                None => &[],
            },
        };
        let text = std::str::from_utf8(part).map_err(|_| "it is not valid UTF-8".to_owned())?;
        Ok(text.to_owned())
    }

    /// Whether a text may be written, given the current one.
    fn check_beside(&self, text: &str, now: &str) -> Result<(), String> {
        check(self.place, text)?;
        if self.place != ConfigPlace::Irqbalance || text.is_empty() {
            return Ok(());
        }
        let there = irqbalance_arguments(now).unwrap_or_default();
        let wanted = irqbalance_arguments(text).unwrap_or_default();
        match wanted.iter().find(|word| !there.contains(word) && !is_safe_argument(word)) {
            Some(word) => Err(format!("must not add {word:?}")),
            None => Ok(()),
        }
    }

    fn kept_name(&self) -> String {
        format!("{}{KEPT}", self.name)
    }

    /// Renames a file whose text could not be restored from the journal.
    fn keep_edited(&self, folder: &OwnedFd) -> io::Result<()> {
        let Some(now) = self.contents(folder)? else { return Ok(()) };
        if self.file.variable().is_some() || check_bytes(self.place, &now.bytes).is_ok() {
            return Ok(());
        }
        match linkat(folder, &self.name, folder, self.kept_name(), AtFlags::empty()) {
            Ok(()) => File::from(folder.try_clone()?).sync_all(),
            Err(Errno::EXIST) if self.is_kept_twin(folder)? => Ok(()),
            Err(Errno::EXIST) => Err(io::Error::other(format!(
                "{} still holds a file replaced by an earlier change; undo that first",
                self.kept_name()
            ))),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Renames the kept file back if it has this text; returns whether it has.
    fn put_kept_back(&self, text: &str) -> io::Result<bool> {
        let Some(folder) = self.open_folder()? else { return Ok(false) };
        match self.contents_of(&folder, &self.kept_name())? {
            Some(kept) if self.file.variable().is_none() && kept.bytes == text.as_bytes() => {}
            _ => return Ok(false),
        }
        self.remove_new(&folder)?;
        renameat(&folder, self.kept_name(), &folder, &self.name)?;
        File::from(folder).sync_all()?;
        Ok(true)
    }

    /// Whether the kept file is also still in its place, as after a crash between link and rename.
    fn is_kept_twin(&self, folder: &OwnedFd) -> io::Result<bool> {
        let (now, kept) = (self.contents(folder)?, self.contents_of(folder, &self.kept_name())?);
        let file = |contents: &Contents| (contents.stat.st_dev, contents.stat.st_ino);
        Ok(now.zip(kept).is_some_and(|(now, kept)| file(&now) == file(&kept)))
    }

    /// Replaces the file by one with this text, or removes it.
    fn replace(&self, text: &str) -> io::Result<()> {
        let Some(folder) = self.open_folder()? else {
            return if text.is_empty() {
                Ok(())
            } else {
                self.replace_in(&self.make_folder()?, text)
            };
        };
        self.replace_in(&folder, text)
    }

    fn replace_in(&self, folder: &OwnedFd, text: &str) -> io::Result<()> {
        let now = self.contents(folder)?;
        let new = match self.file.variable() {
            None => text.as_bytes().to_vec(),
            Some(variable) => {
                let bytes = now.as_ref().map(|now| now.bytes.as_slice()).unwrap_or_default();
                lines::with_line(bytes, variable, text).map_err(io::Error::other)?
            }
        };
        if !text.is_empty() {
            self.keep_edited(folder)?;
        }
        // A file that was created for the variable is removed with it.
        if new.is_empty() { self.remove(folder) } else { self.put(folder, &new, now.as_ref()) }
    }

    fn put(&self, folder: &OwnedFd, bytes: &[u8], now: Option<&Contents>) -> io::Result<()> {
        self.remove_new(folder)?;
        let name = format!("{}{NEW}", self.name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut new = File::from(within(folder, &name, flags)?);
        let written = (|| {
            new.write_all(bytes)?;
            // World-readable like other configuration files, or with the mode of the old one.
            let mode = now.map_or(0o644, |now| now.stat.st_mode & 0o7777);
            if let Some(now) = now {
                fchown(
                    &new,
                    Some(Uid::from_raw(now.stat.st_uid)),
                    Some(Gid::from_raw(now.stat.st_gid)),
                )?;
            }
            fchmod(&new, Mode::from_raw_mode(mode))?;
            new.sync_all()?;
            renameat(folder, name.as_str(), folder, &self.name)?;
            File::from(folder.try_clone()?).sync_all()
        })();
        if written.is_err() {
            let _ = self.remove_new(folder);
        }
        written
    }

    fn remove(&self, folder: &OwnedFd) -> io::Result<()> {
        remove_file(folder, &self.name)?;
        File::from(folder.try_clone()?).sync_all()?;
        self.tidy_up()
    }

    fn remove_new(&self, folder: &OwnedFd) -> io::Result<()> {
        remove_file(folder, &format!("{}{NEW}", self.name))
    }

    /// Creates the directory if that is allowed.
    fn make_folder(&self) -> io::Result<OwnedFd> {
        if !self.folder_is_made() {
            return Err(Errno::NOENT.into());
        }
        let (parent, name) = self.open_parent()?;
        match mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => File::from(parent.try_clone()?).sync_all()?,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(within(&parent, name, OFlags::RDONLY | OFlags::DIRECTORY)?)
    }

    /// Removes the leftovers of an interrupted write, and the directory if it is empty.
    fn tidy_up(&self) -> io::Result<()> {
        let Some(folder) = self.open_folder()? else { return Ok(()) };
        self.remove_new(&folder)?;
        if self.is_kept_twin(&folder)? {
            remove_file(&folder, &self.kept_name())?;
        }
        if !self.folder_is_made() {
            return Ok(());
        }
        let (parent, name) = self.open_parent()?;
        match unlinkat(&parent, name, AtFlags::REMOVEDIR) {
            Ok(()) => File::from(parent).sync_all(),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn refusal(&self, doing: &str, error: &io::Error) -> TuneError {
        let more = match Errno::from_io_error(error) {
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
                "; requires root and a writable directory"
            }
            Some(Errno::LOOP | Errno::XDEV | Errno::NOTDIR) => {
                "; it or its directory is a symbolic link"
            }
            Some(Errno::NOSYS) => "; requires Linux 5.6 (openat2)",
            _ => "",
        };
        TuneError::kernel(format!("{doing} {}", self.file), format!("{error}{more}"))
    }
}

impl Setting for ConfigSetting<'_> {
    fn name(&self) -> String {
        self.file.to_string()
    }

    fn check(&self, value: &str) -> Result<(), TuneError> {
        let now = self.read()?.unwrap_or_default();
        self.check_beside(value, &now)
            .map_err(|must| TuneError::Refused(format!("{}: the text {must}", self.file)))
    }

    fn read(&self) -> Result<Option<String>, TuneError> {
        let refused = |error: io::Error| self.refusal("reading", &error);
        let contents = match self.open_folder().map_err(|errno| refused(errno.into()))? {
            Some(folder) => self.contents(&folder).map_err(refused)?,
            None if !self.folder_is_made() => return Ok(None),
            None => match self.open_parent() {
                Ok(_) => None,
                Err(Errno::NOENT) => return Ok(None),
                Err(errno) => return Err(refused(errno.into())),
            },
        };
        let text = self.text(contents.as_ref());
        Ok(Some(text.map_err(|reason| refused(io::Error::other(reason)))?))
    }

    fn may_be_replaced(&self, now: &str, force: bool) -> Result<(), TuneError> {
        match check(self.place, now) {
            // A line in a foreign file cannot be kept under another name.
            Err(must) if !force || self.file.variable().is_some() => Err(TuneError::Drift {
                target: self.file.to_string(),
                now: format!("text edited by hand (nearpath's own {must})"),
                expected: "nearpath's own text".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        // Also when restoring: the journal may have been edited.
        if let Err(refused) = self.check(value) {
            let put_back = self.put_kept_back(value);
            if !put_back.map_err(|error| self.refusal("restoring", &error))? {
                return Err(refused);
            }
        } else {
            self.replace(value).map_err(|error| self.refusal("writing", &error))?;
        }
        if self.place == ConfigPlace::DropIn && self.etc.live {
            units::reload()?;
        }
        Ok(())
    }

    fn same(&self, a: &str, b: &str) -> bool {
        a == b
    }

    fn tidy(&self) -> Result<(), TuneError> {
        self.tidy_up().map_err(|error| self.refusal("cleaning up next to", &error))
    }
}

/// Like [`check`], for any bytes.
fn check_bytes(place: ConfigPlace, bytes: &[u8]) -> Result<(), String> {
    check(place, std::str::from_utf8(bytes).map_err(|_| "must be text".to_owned())?)
}

/// Removes a file of a directory; succeeds if it does not exist.
fn remove_file(folder: &OwnedFd, name: &str) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests;
