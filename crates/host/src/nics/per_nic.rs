//! One kind of fact by interface, as the kernel answered it: what netlink and ioctls return and
//! what a snapshot keeps.

use nearpath_model::IfIndex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;

/// One kind of fact by interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PerNic<T> {
    /// What was answered.
    pub answers: BTreeMap<IfIndex, T>,
    /// Why an interface has no answer. One that is in neither does not support it.
    #[serde(default = "BTreeMap::new", skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<IfIndex, String>,
}

impl<T> Default for PerNic<T> {
    fn default() -> Self {
        Self { answers: BTreeMap::new(), refused: BTreeMap::new() }
    }
}

impl<T> PerNic<T> {
    /// Keeps the reason of a refusal, unless it is that the driver does not support the request.
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

/// Why the kernel refused a request, in words.
pub(super) fn words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => "not permitted: CAP_NET_ADMIN is missing".to_owned(),
        Some(libc::ENODEV) => "the interface is gone, or its device is not present".to_owned(),
        Some(libc::ENOENT) => "this kernel has no such netlink family".to_owned(),
        Some(libc::EOPNOTSUPP) => "this kernel does not answer it".to_owned(),
        Some(libc::EAGAIN) => "no answer from the kernel in time".to_owned(),
        Some(libc::E2BIG) => "the driver says that there is more of it than any NIC has".to_owned(),
        _ => error.to_string(),
    }
}
