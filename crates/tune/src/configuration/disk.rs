//! Files of configuration on disk: read, and replaced in one step, so that whatever crashes when,
//! there is the old file or the new one. No path leads out of `/etc`, and no link is followed.
//!
//! A new file is written beside the old one, synced, and given its name; then its folder is synced. A
//! folder of drop-ins is made for its first file, and goes with its last.
//!
//! A file that somebody has edited by hand is replaced by force only. Its text could not be written again, as
//! nobody may have any text written by a journal; so the file itself is kept under another name, and gets
//! its own back.

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

/// Bytes of a file, at most.
const MAX_FILE: u64 = 64 << 10;
/// What a new file has behind its name until it has that name. No reader of the folders takes it for
/// one of its own: they take `.conf` and `.cfg`.
const NEW: &str = ".nearpath-new";
/// What a file that was edited by hand has behind its name while nearpath's is in its place.
const KEPT: &str = ".nearpath-kept";
/// The kernel's regular file (stat(2)).
const REGULAR: u32 = libc::S_IFREG;

/// `/etc`, opened.
#[derive(Debug)]
pub(crate) struct Etc {
    folder: Result<OwnedFd, Errno>,
    /// Whether who reads its files is told of changes.
    live: bool,
}

impl Etc {
    /// That of this machine.
    pub fn live() -> Self {
        Self { folder: open_path(Path::new("/etc")), live: true }
    }

    /// Another folder in its place.
    #[cfg(test)]
    fn of(folder: &Path) -> Self {
        Self { folder: open_path(folder), live: false }
    }

    /// A file in it.
    ///
    /// # Errors
    /// It is none that may be written.
    pub fn setting<'a>(&'a self, file: &'a ConfigFile) -> Result<ConfigSetting<'a>, TuneError> {
        let refuse =
            || TuneError::Refused(format!("{:?} is no file that nearpath writes", file.path));
        let place = file.place().ok_or_else(refuse)?;
        let rest = file.path.strip_prefix("/etc/").ok_or_else(refuse)?;
        let (folder, name) = rest.rsplit_once('/').ok_or_else(refuse)?;
        Ok(ConfigSetting { etc: self, file, place, folder, name })
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

/// Opens what is below a folder, by no link.
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

/// A file of configuration, or a variable in it.
#[derive(Debug)]
pub(crate) struct ConfigSetting<'a> {
    etc: &'a Etc,
    file: &'a ConfigFile,
    place: ConfigPlace,
    /// Below `/etc`.
    folder: &'a str,
    name: &'a str,
}

/// What a file has.
struct Contents {
    bytes: Vec<u8>,
    stat: Stat,
}

impl ConfigSetting<'_> {
    /// Whether its folder is one that is made for its first file.
    fn folder_is_made(&self) -> bool {
        matches!(self.place, ConfigPlace::DropIn | ConfigPlace::CommandLine)
    }

    /// The folder; `None` where it is not there.
    fn open_folder(&self) -> Result<Option<OwnedFd>, Errno> {
        match self.etc.open(self.folder, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(folder) => Ok(Some(folder)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The folder that its folder is in.
    fn open_parent(&self) -> Result<(OwnedFd, &str), Errno> {
        let (parent, name) = self.folder.rsplit_once('/').ok_or(Errno::NOENT)?;
        Ok((self.etc.open(parent, OFlags::RDONLY | OFlags::DIRECTORY)?, name))
    }

    /// What the file has; `None` where there is none.
    fn contents(&self, folder: &OwnedFd) -> io::Result<Option<Contents>> {
        self.contents_of(folder, self.name)
    }

    /// The same of another file of the folder.
    fn contents_of(&self, folder: &OwnedFd, name: &str) -> io::Result<Option<Contents>> {
        // O_NONBLOCK: to open a FIFO must not wait for who writes into it.
        let opened = match within(folder, name, OFlags::RDONLY | OFlags::NONBLOCK) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let stat = fstat(&opened)?;
        if stat.st_mode & libc::S_IFMT != REGULAR {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut bytes = Vec::new();
        File::from(opened).take(MAX_FILE + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(io::Error::other(format!("it is longer than {} KiB", MAX_FILE >> 10)));
        }
        Ok(Some(Contents { bytes, stat }))
    }

    /// The setting's text, of what the file has.
    fn text(&self, contents: Option<&Contents>) -> Result<String, String> {
        let Some(Contents { bytes, .. }) = contents else { return Ok(String::new()) };
        let part = match &self.file.variable {
            None if bytes.is_empty() => {
                return Err("it is there, but empty, which is not nearpath's; remove it".to_owned());
            }
            None => bytes.as_slice(),
            Some(variable) => match lines::find(bytes, variable)? {
                Some(at) => bytes.get(at).unwrap_or_default(),
                None => &[],
            },
        };
        let text = std::str::from_utf8(part).map_err(|_| "it is no text".to_owned())?;
        Ok(text.to_owned())
    }

    /// Whether a text may be written, beside what is there.
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

    /// Keeps a file with a text that could not be written again, under another name.
    fn keep_edited(&self, folder: &OwnedFd) -> io::Result<()> {
        let Some(now) = self.contents(folder)? else { return Ok(()) };
        if self.file.variable.is_some() || check_bytes(self.place, &now.bytes).is_ok() {
            return Ok(());
        }
        match linkat(folder, self.name, folder, self.kept_name(), AtFlags::empty()) {
            Ok(()) => File::from(folder.try_clone()?).sync_all(),
            Err(Errno::EXIST) if self.is_kept_twin(folder)? => Ok(()),
            Err(Errno::EXIST) => Err(io::Error::other(format!(
                "{} has what an earlier change replaced; undo that first",
                self.kept_name()
            ))),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives the file that was kept its name again, if it has this text; whether it has.
    fn put_kept_back(&self, text: &str) -> io::Result<bool> {
        let Some(folder) = self.open_folder()? else { return Ok(false) };
        match self.contents_of(&folder, &self.kept_name())? {
            Some(kept) if self.file.variable.is_none() && kept.bytes == text.as_bytes() => {}
            _ => return Ok(false),
        }
        self.remove_new(&folder)?;
        renameat(&folder, self.kept_name(), &folder, self.name)?;
        File::from(folder).sync_all()?;
        Ok(true)
    }

    /// Whether what was kept is in its place still, as after a crash between the two.
    fn is_kept_twin(&self, folder: &OwnedFd) -> io::Result<bool> {
        let (now, kept) = (self.contents(folder)?, self.contents_of(folder, &self.kept_name())?);
        let file = |contents: &Contents| (contents.stat.st_dev, contents.stat.st_ino);
        Ok(now.zip(kept).is_some_and(|(now, kept)| file(&now) == file(&kept)))
    }

    /// Replaces the file by one with this text, or takes it away.
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
        let new = match &self.file.variable {
            None => text.as_bytes().to_vec(),
            Some(variable) => {
                let bytes = now.as_ref().map(|now| now.bytes.as_slice()).unwrap_or_default();
                lines::with_line(bytes, variable, text).map_err(io::Error::other)?
            }
        };
        if !text.is_empty() {
            self.keep_edited(folder)?;
        }
        // One that was made for the variable goes with it.
        if new.is_empty() { self.remove(folder) } else { self.put(folder, &new, now.as_ref()) }
    }

    fn put(&self, folder: &OwnedFd, bytes: &[u8], now: Option<&Contents>) -> io::Result<()> {
        self.remove_new(folder)?;
        let name = format!("{}{NEW}", self.name);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let mut new = File::from(within(folder, &name, flags)?);
        let written = (|| {
            new.write_all(bytes)?;
            // Readable by all, as files of configuration are, or as the old one.
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
            renameat(folder, name.as_str(), folder, self.name)?;
            File::from(folder.try_clone()?).sync_all()
        })();
        if written.is_err() {
            let _ = self.remove_new(folder);
        }
        written
    }

    fn remove(&self, folder: &OwnedFd) -> io::Result<()> {
        remove_file(folder, self.name)?;
        File::from(folder.try_clone()?).sync_all()?;
        self.tidy_up()
    }

    fn remove_new(&self, folder: &OwnedFd) -> io::Result<()> {
        remove_file(folder, &format!("{}{NEW}", self.name))
    }

    /// Makes the folder, if it is one that may be made.
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

    /// Takes away what a write that was cut short has left, and the folder if nothing is in it.
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
                "; it takes root, and a folder that may be written"
            }
            Some(Errno::LOOP | Errno::XDEV | Errno::NOTDIR) => {
                "; a link is in the place of it or of its folder"
            }
            Some(Errno::NOSYS) => "; it takes Linux 5.6 (openat2)",
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
            // A line of somebody else's file cannot be kept aside.
            Err(must) if !force || self.file.variable.is_some() => Err(TuneError::Drift {
                target: self.file.to_string(),
                now: format!("a text that was edited by hand (nearpath's own {must})"),
                expected: "nearpath's own".to_owned(),
            }),
            _ => Ok(()),
        }
    }

    fn write(&self, value: &str) -> Result<(), TuneError> {
        // Also of what is put back: the journal may be anybody's.
        if let Err(refused) = self.check(value) {
            let put_back = self.put_kept_back(value);
            if !put_back.map_err(|error| self.refusal("putting back", &error))? {
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
        self.tidy_up().map_err(|error| self.refusal("tidying up beside", &error))
    }
}

/// As [`check`], of any bytes.
fn check_bytes(place: ConfigPlace, bytes: &[u8]) -> Result<(), String> {
    check(place, std::str::from_utf8(bytes).map_err(|_| "must be text".to_owned())?)
}

/// Removes a file of a folder; fine when it is not there.
fn remove_file(folder: &OwnedFd, name: &str) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests;
