//! Follows the interface of a change: names are given to others, and interfaces move to other network namespaces.
//!
//! Input: a target as it was changed. Output: the same target with the interface's name and namespace now. An interface is
//! recognized by its inode in sysfs, one that its driver has created again by its device. What cannot be seen from here
//! is an error; that an interface no longer exists has to be proved.

use super::Files;
use crate::TuneError;
use nearpath_host::{Root, find_in_netns, has_interface, interface_device, netns_names};
use nearpath_model::{InterfaceId, InterfaceOf, Target, is_interface_name};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The software interfaces of the reader's network namespace.
const SOFTWARE: &str = "/sys/devices/virtual/net";
/// The links of a directory of sysfs that has no others; each other is a link, of whichever namespace it is
/// (`kernfs_refresh_inode` of fs/kernfs/inode.c). So it is known whether all interfaces of the machine were seen.
const OWN_LINKS: u64 = 2;
/// How long they are searched again and again, for all changes together: namespaces come and go meanwhile, and the interfaces
/// of one that goes are there for some time after it can be entered (`cleanup_net` of net/core/net_namespace.c).
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

impl Files {
    /// A target with the interface's current name and network namespace; `None` if the interface no longer exists in any.
    ///
    /// # Errors
    /// The interface is in another network namespace, or it is unknown where.
    pub fn follow(&self, target: &Target) -> Result<Option<Target>, TuneError> {
        let mut followed = target.clone();
        let Some(InterfaceOf { name, netns, id }) = followed.interface_of() else {
            return Ok(Some(followed));
        };
        let Some(instance) = id.instance else { return Ok(Some(followed)) };
        // The interrupt of an interface that is not here is identified by its own inode and handler.
        let is_interrupt = netns.is_none();
        let found = match self.named(name, instance) {
            Some(now) => Some(now),
            None if is_interrupt => {
                id.device.as_ref().and_then(|device| self.of_device(name, device))
            }
            None => {
                if let Some(netns) = &netns {
                    self.is_of_here(target, **netns)?;
                }
                match &id.device {
                    Some(device) => match self.of_device(name, device) {
                        Some(now) => Some(now),
                        None => return absent(target, name, device),
                    },
                    // A software interface that was re-created has only its name.
                    None => return self.elsewhere(target, name, instance).map(|()| Some(followed)),
                }
            }
        };
        if let Some(now) = found {
            *name = now;
            netns.into_iter().for_each(|netns| *netns = self.netns);
        }
        Ok(Some(followed))
    }

    /// What identifies the interface that currently has the name.
    pub fn identity(&self, name: &str) -> InterfaceId {
        let instance = self.interface(name);
        InterfaceId { instance, device: interface_device(&Root::live(), name) }
    }

    /// Whether another interface has the name now.
    pub fn is_another_interface(&self, name: &str, id: &InterfaceId) -> bool {
        id.instance.is_some() && self.interface(name) != id.instance
    }

    /// The current name of the interface with this inode, which most often is the same.
    fn named(&self, name: &str, instance: u64) -> Option<String> {
        let is_it = |name: &String| self.interface(name) == Some(instance);
        Some(name.to_owned()).filter(is_it).or_else(|| names().into_iter().find(is_it))
    }

    /// The interface of a device: with the same name, or the only one.
    fn of_device(&self, name: &str, device: &str) -> Option<String> {
        let root = Root::live();
        let its = |name: &String| interface_device(&root, name).as_deref() == Some(device);
        let mut all = names().into_iter().filter(its).collect::<Vec<_>>();
        match all.iter().position(|its| its == name) {
            Some(place) => Some(all.swap_remove(place)),
            None => all.pop().filter(|_| all.is_empty()),
        }
    }

    /// Searches the other network namespaces for a software interface.
    ///
    /// # Errors
    /// It is in one of them, or may be in one that cannot be seen.
    fn elsewhere(&self, target: &Target, name: &str, instance: u64) -> Result<(), TuneError> {
        // Several changes of an interface are one search.
        if self.gone.borrow().contains(&instance) {
            return Ok(());
        }
        loop {
            let seen = AtomicU64::new(software_interfaces(&Root::live()));
            let found = find_in_netns(|inode, root| {
                seen.fetch_add(software_interfaces(&root), Ordering::Relaxed);
                Files::live().named(name, instance).map(|now| (inode, now))
            });
            if let Some((inode, now)) = found {
                let netns = netns_names().remove(&inode).unwrap_or_else(|| inode.to_string());
                return Err(TuneError::Refused(format!(
                    "{target}: the interface is in network namespace {netns}, as {now}: use --netns"
                )));
            }
            if self.links(SOFTWARE) == Some(seen.into_inner() + OWN_LINKS) {
                self.gone.borrow_mut().insert(instance);
                return Ok(());
            }
            if self.waited.get() >= PATIENCE {
                break;
            }
            std::thread::sleep(PAUSE);
            self.waited.set(self.waited.get() + PAUSE);
        }
        Err(TuneError::Refused(format!(
            "{target}: the interface is not here, and may be in a network namespace that cannot be searched"
        )))
    }
}

/// A device of which no interface is in this network namespace.
fn absent(target: &Target, name: &str, device: &str) -> Result<Option<Target>, TuneError> {
    if !is_device(device) {
        return Err(TuneError::Refused(format!("{device:?} is not a device of {name}")));
    }
    if has_interface(&Root::live(), device)? {
        let address = device.rsplit('/').next().unwrap_or(device);
        return Err(TuneError::Refused(format!(
            "{target}: the interface of {address} is in another network namespace: use --netns"
        )));
    }
    Ok(None)
}

/// Whether it is the path of a device: the journal is untrusted input.
pub(crate) fn is_device(path: &str) -> bool {
    path.starts_with("/sys/devices/") && path.split('/').all(|part| part != "..")
}

fn software_interfaces(root: &Root) -> u64 {
    root.list(SOFTWARE).map_or(0, |all| all.len() as u64)
}

/// The interfaces of the calling thread's namespace.
fn names() -> Vec<String> {
    let names = Root::live().list("/sys/class/net").unwrap_or_default().into_iter();
    names.map(|entry| entry.name).filter(|name| is_interface_name(name)).collect()
}
