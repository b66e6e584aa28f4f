//! A directory for files that must not outlive this process: a tmpfs that is not attached to the mount tree, so
//! that the kernel removes it even after `kill -9`.

use anyhow::{Context, Result};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

/// The directory.
#[derive(Debug)]
pub struct MemoryFolder(OwnedFd);

impl MemoryFolder {
    /// Creates an empty one.
    ///
    /// # Errors
    /// The kernel refused: no tmpfs, or no privilege.
    pub fn new() -> Result<Self> {
        let mounted = || {
            let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&context)?;
            fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
        };
        mounted().context("cannot create a tmpfs for the demo's journal").map(Self)
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
    fn files_live_as_long_as_the_directory() {
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
