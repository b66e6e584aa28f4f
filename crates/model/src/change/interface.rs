//! Which interface a setting belongs to, whatever its name and network namespace are now.

use serde::{Deserialize, Serialize};

/// What identifies an interface; set once a setting of it was changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InterfaceId {
    /// The inode of its `ifindex` in sysfs, which it keeps when it gets another name or network namespace. An interface
    /// that is re-created gets a new one (`kernfs_rename_ns` and `kernfs_ino` of fs/kernfs). An index is unique only in
    /// a namespace, and may be assigned again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<u64>,
    /// The device behind it, which is the same when its driver creates the interface again: its path in sysfs, which
    /// ends with its bus address (`/sys/devices/pci0000:5d/0000:5d:00.0/0000:5e:10.0`). `None` for software interfaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

impl InterfaceId {
    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The interface in a target, to be followed.
#[derive(Debug)]
pub struct InterfaceOf<'a> {
    /// Its name.
    pub name: &'a mut String,
    /// Its network namespace; `None` if the target belongs to none, as an interrupt does.
    pub netns: Option<&'a mut Option<u64>>,
    /// Which one it is.
    pub id: &'a mut InterfaceId,
}
