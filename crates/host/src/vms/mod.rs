//! Virtual machines of KVM: the processes with its descriptors, their vCPUs, vhost workers, taps and devices.
//!
//! Input: a root. Output: [`Vms`]. A process is a virtual machine if it has `anon_inode:kvm-vm` open, whatever program
//! it runs. Nothing is read where KVM is not loaded.

mod backends;
mod descriptors;
mod name;
mod parameters;
mod threads;

pub use descriptors::tap_of_fdinfo;
pub use name::parse_vm_name;
pub(crate) use parameters::parameters;
pub use threads::descriptor_of_run;

use crate::placement::devices::used_devices;
use crate::processes::{comm, pids};
use crate::{Notes, Root, memory, topology};
use backends::Events;
use descriptors::{Descriptors, Open};
use nearpath_model::{Topology, VMS_SCHEMA, Vm, VmTap, Vms};

/// Exists if KVM is loaded or built in.
const KVM: &str = "/sys/module/kvm";
/// Maximum number of virtual machines.
const MAX_VMS: usize = 4096;
/// Maximum number of devices of one.
const MAX_DEVICES: usize = 64;

/// Reads the virtual machines of a host.
pub fn read(root: &Root) -> Vms {
    let mut notes = Notes::default();
    let topology = topology::read(root, &mut Notes::default());
    let vms = read_all(root, &topology, &mut notes);
    Vms { schema: VMS_SCHEMA, vms, unknown: notes.unknown().to_vec() }
}

/// The same, with the reasons of unknown facts among those of the host.
pub(crate) fn read_all(root: &Root, topology: &Topology, notes: &mut Notes) -> Vec<Vm> {
    if root.list(KVM).is_err_and(|error| error.absent) {
        return Vec::new();
    }
    let pids = notes.take("host", "virtual machines", pids(root)).unwrap_or_default();
    let mut found: Vec<(u32, Descriptors)> = Vec::new();
    let mut with_events = Vec::new();
    let mut refused = None;
    for pid in &pids {
        match descriptors::read(root, *pid) {
            Ok(Open::Machine(_)) if found.len() >= MAX_VMS => {
                notes.add("host", "virtual machines", &format!("more than {MAX_VMS}"));
                break;
            }
            Ok(Open::Machine(descriptors)) => found.push((*pid, descriptors)),
            Ok(Open::Events(events)) => with_events.push((*pid, events)),
            Ok(Open::Other) => {}
            // It has exited.
            Err(error) if error.absent => {}
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    if let Some(error) = refused {
        let reason = format!("descriptors of some processes are not accessible: {error}");
        notes.add("host", "virtual machines", &reason);
    }
    if found.is_empty() {
        return Vec::new();
    }
    let named = |pid: &u32| Some((*pid, comm(root, *pid).ok()?));
    let workers: Vec<(u32, String)> =
        pids.iter().filter_map(named).filter(|(_, comm)| comm.starts_with("vhost-")).collect();
    let events_of: Vec<(u32, Vec<u32>)> =
        found.iter().map(|(pid, open)| (*pid, open.eventfds.clone())).collect();
    let mut vms: Vec<Vm> = Vec::new();
    let mut served = Vec::new();
    for (pid, open) in found {
        let cmdline = root.read(&format!("/proc/{pid}/cmdline"));
        let cmdline = notes.take(&format!("vm {pid}"), "name", cmdline).unwrap_or_default();
        served.push(backends::may_have(&cmdline));
        vms.push(vm((root, topology), notes, (pid, &cmdline), open, &workers));
    }
    if served.contains(&true) {
        let events = Events::read(root, &with_events);
        if events.incomplete {
            notes.add("host", "processes of vhost-user", "there are too many event descriptors");
        }
        for ((vm, (pid, descriptors)), _) in
            vms.iter_mut().zip(&events_of).zip(&served).filter(|(_, served)| **served)
        {
            vm.backends = events.backends(root, *pid, descriptors);
        }
    }
    vms
}

fn vm(
    (root, topology): (&Root, &Topology),
    notes: &mut Notes,
    (pid, cmdline): (u32, &[u8]),
    open: Descriptors,
    kernel_workers: &[(u32, String)],
) -> Vm {
    let subject = format!("vm {pid}");
    let threads = threads::read((root, topology), pid, &open, kernel_workers);
    let memory = memory::read(root, notes, &[pid]).pop();
    let tsc = threads::tsc(root, pid, &open);
    for reason in open.incomplete.iter().chain(&threads.incomplete) {
        notes.add(&subject, "descriptors and threads", reason);
    }
    for vcpu in threads.vcpus.iter().filter(|vcpu| vcpu.thread.is_none()) {
        let reason = "neither its name nor its system call shows which thread runs it";
        notes.add(&subject, &format!("thread of vCPU {}", vcpu.number), reason);
    }
    let tap = |((kind, name), queues)| VmTap { name, kind, queues };
    let mut devices: Vec<_> =
        open.devices.iter().flat_map(|device| used_devices(root, device)).collect();
    // The container, which has no device behind it.
    devices.retain(|device| device.device != "/dev/vfio/vfio");
    devices.truncate(MAX_DEVICES);
    let (bytes, huge) = memory.map(|m| (m.bytes, m.huge_bytes)).unzip();
    Vm {
        pid,
        comm: comm(root, pid).unwrap_or_default(),
        name: parse_vm_name(cmdline),
        machines: open.machines,
        vcpus: threads.vcpus,
        vhost_workers: threads.vhost_workers,
        emulator: threads.emulator,
        taps: open.taps.into_iter().map(tap).collect(),
        vhost_net: open.vhost_net,
        vhost_others: open.vhost_others,
        eventfds: u32::try_from(open.eventfds.len()).unwrap_or(u32::MAX),
        backends: Vec::new(),
        devices,
        memory: bytes,
        huge_memory: huge,
        tsc,
    }
}

#[cfg(test)]
mod tests;
