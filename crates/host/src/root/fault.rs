//! Descriptions of read errors: from the kernel's error number to a [`Fault`], which the public functions turn
//! into a [`ReadError`] with the requested path.

use super::ReadError;
use rustix::io::Errno;
use std::borrow::Cow;

/// Maximum number of links followed for one path (`MAXSYMLINKS` in include/linux/namei.h).
pub(super) const MAX_LINKS: usize = 40;

/// An error without a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// Description of the error.
    pub reason: Cow<'static, str>,
    /// Whether the file does not exist.
    pub absent: bool,
    /// The kernel's error number, if the error came from the kernel.
    pub errno: Option<Errno>,
}

impl Fault {
    /// An error detected by nearpath, for a file that may exist.
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), absent: false, errno: None }
    }

    /// An error detected by nearpath, with the kernel's number for it.
    pub fn of(errno: Errno, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { errno: Some(errno), ..Self::new(reason) }
    }

    /// The error about a path or a request.
    pub fn about(self, what: &str) -> ReadError {
        ReadError { what: what.to_owned(), reason: self.reason.into_owned(), absent: self.absent }
    }
}

/// Descriptions of the errors returned by /proc, /sys and nsfs; others as in the C library.
impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        let reason = match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::SRCH => "not found",
            // Files of a process with more capabilities, or of a container's runtime, refuse root as well.
            Errno::ACCESS if rustix::process::geteuid().is_root() => {
                "permission denied, though this is root: a capability is missing, or a security module refuses it"
            }
            Errno::ACCESS => "permission denied: root is required",
            Errno::PERM => "not permitted: a capability is missing, or the kernel is locked down",
            Errno::ISDIR => "is a directory, not a file",
            Errno::LOOP => "symbolic link loop",
            Errno::NODEV | Errno::NXIO => "the device is gone, or does not support it",
            Errno::INVAL => {
                "not readable in this state (EINVAL), for example while the link is down"
            }
            Errno::OPNOTSUPP => "the driver does not support it",
            Errno::IO => "input/output error: the device or the driver did not answer",
            Errno::NAMETOOLONG => "the path is too long",
            Errno::MFILE | Errno::NFILE => "too many open files",
            other => return Self::of(other, std::io::Error::from(other).to_string()),
        };
        let absent = matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::SRCH);
        Self { reason: Cow::Borrowed(reason), absent, errno: Some(errno) }
    }
}
