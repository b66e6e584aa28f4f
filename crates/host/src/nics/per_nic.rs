//! One kind of fact by interface: the result of netlink and ioctl requests, as stored in snapshots.

use nearpath_model::IfIndex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;

/// One kind of fact by interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PerNic<T> {
    /// The answers.
    pub answers: BTreeMap<IfIndex, T>,
    /// The errors of interfaces without an answer. An interface in neither does not support it.
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<IfIndex, String>,
}

impl<T> Default for PerNic<T> {
    fn default() -> Self {
        Self { answers: BTreeMap::new(), refused: BTreeMap::new() }
    }
}

impl<T> PerNic<T> {
    /// Stores an error, unless the driver does not support the request.
    pub(crate) fn refuse<A>(&mut self, index: IfIndex, asked: io::Result<A>) {
        if let Err(error) = asked
            && error.raw_os_error() != Some(libc::EOPNOTSUPP)
        {
            self.refused.insert(index, words(&error));
        }
    }

    pub(super) fn answered(&mut self, index: IfIndex, asked: io::Result<T>) {
        match asked {
            Ok(answer) => drop(self.answers.insert(index, answer)),
            refusal => self.refuse(index, refusal),
        }
    }
}

/// Describes why the kernel refused a request.
pub(super) fn words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "not permitted: CAP_NET_ADMIN is missing".to_owned(),
        Some(libc::ENODEV) => "the interface is gone, or its device is not present".to_owned(),
        Some(libc::ENOENT) => "this kernel has no such netlink family".to_owned(),
        Some(libc::EOPNOTSUPP) => "not supported by this kernel".to_owned(),
        Some(libc::EAGAIN) => "no answer from the kernel in time".to_owned(),
        Some(libc::E2BIG) => "the driver reports an implausible size".to_owned(),
        _ => error.to_string(),
    }
}
