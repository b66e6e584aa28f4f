//! Files of the demo's own devices, through a sysfs that is not attached to the mount tree and shows only the
//! namespace of the calling thread, so that no device of the host can be changed by mistake.

use anyhow::{Context, Result, bail};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{read, write};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::os::fd::OwnedFd;

/// The sysfs of a thread's network namespace, detached from the mount tree.
#[derive(Debug)]
pub(super) struct Sysfs(OwnedFd);

impl Sysfs {
    /// Opens that of the calling thread.
    ///
    /// # Errors
    /// The kernel refused (it requires Linux 5.2).
    pub(super) fn own() -> Result<Self> {
        let mounted = || {
            let context = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&context)?;
            fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
        };
        mounted().context("cannot mount a sysfs for the demo's namespace").map(Self)
    }

    /// Writes a file and reads it back; `same` compares the value read with the one written.
    ///
    /// # Errors
    /// There is no such file, or the kernel refused or altered the value.
    pub(super) fn set(
        &self,
        path: &str,
        value: &str,
        same: impl FnOnce(&str) -> bool,
    ) -> Result<()> {
        let open = |flags| openat(&self.0, path, flags | OFlags::CLOEXEC, Mode::empty());
        let written = || -> rustix::io::Result<String> {
            write(open(OFlags::WRONLY)?, value.as_bytes())?;
            let mut text = [0; 16 << 10];
            let length = read(open(OFlags::RDONLY)?, &mut text)?;
            Ok(String::from_utf8_lossy(text.get(..length).unwrap_or_default()).into_owned())
        };
        let now = written().with_context(|| path.to_owned())?;
        if !same(now.trim()) {
            bail!("{path}: wrote {value}, but the kernel has {}", now.trim());
        }
        Ok(())
    }
}
