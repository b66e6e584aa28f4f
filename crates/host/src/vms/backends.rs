//! Processes that serve devices of virtual machines (vhost-user), as Open vSwitch with DPDK does: they have event
//! descriptors of the virtual machine open, too, which it has sent them.
//!
//! Only of virtual machines with such a device on their command line: it costs a file for each event descriptor of the
//! host.

use crate::Root;
use crate::processes::comm;
use nearpath_model::VmBackend;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of event descriptors that are looked at.
const MAX_EVENTS: usize = 20_000;

/// Whether a virtual machine may have such a device: QEMU has `-netdev vhost-user`, or devices `vhost-user-…`, others
/// have options such as `--net vhost_user=true`.
pub(super) fn may_have(cmdline: &[u8]) -> bool {
    let has = |name: &[u8]| cmdline.windows(name.len()).any(|part| part == name);
    has(b"vhost-user") || has(b"vhost_user")
}

/// Event descriptors of processes by the events' numbers, which are those of the kernel (fs/eventfd.c,
/// `eventfd_show_fdinfo`).
#[derive(Debug, Default)]
pub(super) struct Events {
    processes: BTreeMap<u32, BTreeSet<u32>>,
    /// Whether not all were read.
    pub incomplete: bool,
}

impl Events {
    /// Reads those of processes that are no virtual machines.
    pub fn read(root: &Root, open: &[(u32, Vec<u32>)]) -> Self {
        let mut found = Self::default();
        let mut left = MAX_EVENTS;
        for (pid, descriptors) in open {
            found.incomplete |= descriptors.len() > left;
            for number in ids(root, *pid, descriptors.get(..left).unwrap_or(descriptors)) {
                found.processes.entry(number).or_default().insert(*pid);
            }
            left = left.saturating_sub(descriptors.len());
        }
        found
    }

    /// The processes that have events of this virtual machine.
    pub fn backends(&self, root: &Root, vm: u32, descriptors: &[u32]) -> Vec<VmBackend> {
        let mut by_process: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for number in ids(root, vm, descriptors) {
            for pid in self.processes.get(&number).into_iter().flatten() {
                by_process.entry(*pid).or_default().insert(number);
            }
        }
        let backend = |(pid, events): (u32, BTreeSet<u32>)| VmBackend {
            pid,
            comm: comm(root, pid).unwrap_or_default(),
            eventfds: events.into_iter().collect(),
        };
        by_process.into_iter().map(backend).collect()
    }
}

/// The numbers of the events of a process.
fn ids(root: &Root, pid: u32, descriptors: &[u32]) -> BTreeSet<u32> {
    let text = |number: &u32| root.text(&format!("/proc/{pid}/fdinfo/{number}")).ok();
    descriptors.iter().filter_map(text).filter_map(|text| event_of_fdinfo(&text)).collect()
}

/// The number of an event (`eventfd-id: 7`); Linux 5.2 and newer.
fn event_of_fdinfo(text: &str) -> Option<u32> {
    text.lines().find_map(|line| line.strip_prefix("eventfd-id:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_their_numbers_in_fdinfo() {
        let info = "pos:\t0\nflags:\t02004002\neventfd-count:                0\neventfd-id: 57\n";
        assert_eq!(event_of_fdinfo(info), Some(57));
        assert_eq!(event_of_fdinfo("eventfd-count: 0\n"), None);
        assert_eq!(event_of_fdinfo("eventfd-id: -1\n"), None);
    }

    #[test]
    fn devices_of_other_processes_are_on_the_command_line() {
        assert!(may_have(b"qemu\0-netdev\0{\"type\":\"vhost-user\",\"id\":\"n\"}\0"));
        assert!(may_have(b"cloud-hypervisor\0--net\0mac=52:54:00:0:0:1,vhost_user=true\0"));
        assert!(!may_have(b"qemu\0-netdev\0tap,vhost=on\0"));
        assert!(!may_have(b""));
    }
}
