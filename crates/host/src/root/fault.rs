//! Why something could not be read, in words: from the kernel's error number to a [`Fault`],
//! which the public functions turn into a [`ReadError`] about the path that was asked for.

use super::ReadError;
use rustix::io::Errno;
use std::borrow::Cow;

/// Most links that are followed for one path (`MAXSYMLINKS` in include/linux/namei.h).
pub(super) const MAX_LINKS: usize = 40;

/// A reason without a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// What the kernel said, in words.
    pub reason: Cow<'static, str>,
    /// Whether it is simply not there.
    pub absent: bool,
    /// The kernel's error number, where it was the kernel that refused.
    pub errno: Option<Errno>,
}

impl Fault {
    /// A reason of our own for something that may well be there.
    pub fn new(reason: impl Into<Cow<'static, str>>) -> Self {
        Self { reason: reason.into(), absent: false, errno: None }
    }

    /// A reason of our own for what is known to the kernel by a number.
    pub fn of(errno: Errno, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { errno: Some(errno), ..Self::new(reason) }
    }

    /// The reason as an error about a path or a request.
    pub fn about(self, what: &str) -> ReadError {
        ReadError { what: what.to_owned(), reason: self.reason.into_owned(), absent: self.absent }
    }
}

/// Words for the errors that reading /proc, /sys and nsfs gives; others in the C library's words.
impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        let reason = match errno {
            Errno::NOENT | Errno::NOTDIR | Errno::SRCH => "is not there",
            Errno::ACCESS => "permission denied: only root may read it",
            Errno::PERM => "not permitted: a capability is missing, or the kernel is locked down",
            Errno::ISDIR => "is a folder, not a file",
            Errno::LOOP => "links go in a circle",
            Errno::NODEV | Errno::NXIO => "the device is gone, or does not have this",
            Errno::INVAL => {
                "the kernel refuses to read it in this state (EINVAL), as of a link that is down"
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
