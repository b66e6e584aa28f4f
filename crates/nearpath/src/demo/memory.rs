//! A folder for files that must not outlive this process: a tmpfs that is mounted nowhere, so that the
//! kernel takes it away also after `kill -9`.

use anyhow::{Context, Result};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

/// The folder.
#[derive(Debug)]
pub struct MemoryFolder(OwnedFd);

impl MemoryFolder {
    /// An empty one.
    ///
    /// # Errors
    /// The kernel refused: no tmpfs, or no privilege.
    pub fn new() -> Result<Self> {
        let mounted = || {
            let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&context)?;
            fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
        };
        mounted().context("a folder in memory for the demo's journal").map(Self)
    }

    /// Its path in this process.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_kept_as_long_as_it_is() {
        if !nearpath_testing::require_netns() {
            return;
        }
        let folder = MemoryFolder::new().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "text").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"text");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains("/proc/self/fd"), "{mounts}");
        drop(folder);
        assert!(!path.exists());
    }
}
