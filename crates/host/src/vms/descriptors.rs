//! What the descriptors of a process say of its virtual machine: KVM (virt/kvm/kvm_main.c), vhost, taps
//! (drivers/net/tun.c, tap.c), events and VFIO.

use crate::cpu_table::printable;
use crate::memory::is_device;
use crate::{ReadError, Root};
use nearpath_model::TapKind;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of descriptors read per process: each costs the kernel some microseconds.
const MAX_DESCRIPTORS: usize = 20_000;
/// Maximum number of vCPUs: `KVM_MAX_VCPUS` is at most this (arch/x86/include/asm/kvm_host.h).
const MAX_VCPUS: u32 = 4096;

/// The descriptors of a process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Descriptors {
    /// Descriptors of virtual machines.
    pub machines: u32,
    /// The number of the vCPU by descriptor.
    pub vcpus: BTreeMap<u32, u32>,
    /// Descriptors of vhost-net.
    pub vhost_net: u32,
    /// Those of other kinds of vhost.
    pub vhost_others: BTreeMap<String, u32>,
    /// Event descriptors.
    pub eventfds: Vec<u32>,
    /// Queues by tap.
    pub taps: BTreeMap<(TapKind, String), u32>,
    /// Files of VFIO.
    pub devices: BTreeSet<String>,
    /// Why not all were read.
    pub incomplete: Option<String>,
}

/// What a process has open.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Open {
    /// A virtual machine.
    Machine(Descriptors),
    /// No virtual machine, but these event descriptors, which another process may have, too.
    Events(Vec<u32>),
    /// Neither.
    Other,
}

/// Reads the descriptors of a process.
///
/// # Errors
/// They are not accessible.
pub(super) fn read(root: &Root, pid: u32) -> Result<Open, ReadError> {
    let folder = format!("/proc/{pid}/fd");
    let entries = root.list(&folder)?;
    let mut targets = Vec::new();
    for entry in entries.iter().take(MAX_DESCRIPTORS) {
        match root.link(&format!("{folder}/{}", entry.name)) {
            Ok(target) => targets.push((entry.name.as_str(), target)),
            // It was closed in the meantime.
            Err(error) if error.absent => {}
            Err(error) => return Err(error),
        }
    }
    let is_vm = |target: &str| anonymous(target) == Some("kvm-vm");
    if !targets.iter().any(|(_, target)| is_vm(target)) {
        let events = targets.iter().filter(|(_, target)| anonymous(target) == Some("eventfd"));
        let events: Vec<u32> = events.filter_map(|(number, _)| number.parse().ok()).collect();
        return Ok(if events.is_empty() { Open::Other } else { Open::Events(events) });
    }
    let mut found = Descriptors::default();
    if entries.len() > MAX_DESCRIPTORS {
        let reason =
            format!("only {MAX_DESCRIPTORS} of its {} descriptors were read", entries.len());
        found.incomplete = Some(reason);
    }
    for (descriptor, target) in &targets {
        found.add(root, pid, descriptor, target);
    }
    Ok(Open::Machine(found))
}

impl Descriptors {
    fn add(&mut self, root: &Root, pid: u32, descriptor: &str, target: &str) {
        if let Some(name) = anonymous(target) {
            match name.strip_prefix("kvm-vcpu:") {
                Some(number) => {
                    let number = number.parse().ok().filter(|number: &u32| *number < MAX_VCPUS);
                    self.vcpus.extend(descriptor.parse().ok().zip(number));
                }
                None if name == "kvm-vm" => self.machines += 1,
                None if name == "eventfd" => self.eventfds.extend(descriptor.parse::<u32>().ok()),
                None => {}
            }
        } else if let Some(kind) = target.strip_prefix("/dev/vhost-") {
            match kind {
                "net" => self.vhost_net += 1,
                kind => *self.vhost_others.entry(printable(kind.as_bytes())).or_default() += 1,
            }
        } else if target == "/dev/net/tun" {
            let info = root.text(&format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
            if let Some(name) = tap_of_fdinfo(&info) {
                *self.taps.entry((TapKind::Tap, name)).or_default() += 1;
            }
        } else if let Some(name) = macvtap(root, target) {
            *self.taps.entry((TapKind::Macvtap, name)).or_default() += 1;
        } else if target.starts_with("/dev/vfio/") && is_device(target) {
            self.devices.insert(target.to_owned());
        }
    }
}

/// The name in `anon_inode:kvm-vm`, or in `anon_inode:[eventfd]`.
fn anonymous(target: &str) -> Option<&str> {
    let name = target.strip_prefix("anon_inode:")?;
    Some(name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name))
}

/// The interface of a descriptor of `/dev/net/tun` (`tun_chr_show_fdinfo`); `None` if it has none yet.
pub fn tap_of_fdinfo(text: &str) -> Option<String> {
    let name = text.lines().find_map(|line| line.strip_prefix("iff:"))?.trim();
    (!name.is_empty() && name.len() < 16).then(|| printable(name.as_bytes()))
}

/// The interface of `/dev/tap5`: its device is `…/net/macvtap0/macvtap/tap5` (drivers/net/macvtap.c).
fn macvtap(root: &Root, target: &str) -> Option<String> {
    let index = target.strip_prefix("/dev/tap")?;
    index.parse::<u32>().ok()?;
    let link = |class: &str| root.resolve(&format!("/sys/class/{class}/tap{index}")).ok();
    let path = link("macvtap").or_else(|| link("ipvtap"));
    let name = path.as_deref().and_then(|path| {
        let (_, rest) = path.split_once("/net/")?;
        Some(rest.split('/').next()?.to_owned())
    });
    // In another network namespace, the number remains.
    Some(name.unwrap_or_else(|| format!("tap{index}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_inodes_have_names_with_and_without_brackets() {
        assert_eq!(anonymous("anon_inode:kvm-vcpu:3"), Some("kvm-vcpu:3"));
        assert_eq!(anonymous("anon_inode:[eventfd]"), Some("eventfd"));
        assert_eq!(anonymous("socket:[7]"), None);
    }

    #[test]
    fn taps_have_their_names_in_fdinfo() {
        let info = "pos:\t0\nflags:\t0100002\nmnt_id:\t15\nino:\t90\niff:\ttap0\n";
        assert_eq!(tap_of_fdinfo(info).as_deref(), Some("tap0"));
        assert_eq!(tap_of_fdinfo("pos:\t0\n"), None);
        assert_eq!(tap_of_fdinfo(&format!("iff:\t{}", "x".repeat(16))), None, "no such interface");
    }
}
