//! Interrupts that processes write to virtual machines (vhost-user), and the kicks that these get.

use super::devices::from_queue;
use super::load::{Loaded, types};
use super::reading::{Fields, Found};
use libbpf_rs::{MapCore, MapFlags};
use nearpath_model::Vm;
use nearpath_model::vm::{VmBackendInterrupt, VmKicks, VmSpanKind, VmWriter};
use std::collections::BTreeMap;
use std::mem::offset_of;

/// Whether it is an interrupt of this virtual machine: by the vCPU that took the last one, else by the event that both
/// processes have.
pub fn is_of(vm: &Vm, found: &Found) -> bool {
    let has = |eventfd: u32| vm.backends.iter().any(|one| one.eventfds.contains(&eventfd));
    if found.pid != 0 { vm.pid == found.pid } else { found.queue.queue.is_some_and(has) }
}

/// The interrupt, with the thread that wrote it last.
pub fn interrupt(loaded: &Loaded, found: Found) -> VmBackendInterrupt {
    let eventfd = found.queue.queue.unwrap_or_default();
    let writer = writer(loaded, found.index, eventfd);
    let source = writer.unwrap_or_else(|| VmWriter { eventfd, ..VmWriter::default() });
    from_queue(found.queue, source, VmSpanKind::WriteToKvm)
}

fn writer(loaded: &Loaded, index: u32, eventfd: u32) -> Option<VmWriter> {
    let map = &loaded.skeleton.maps.backends;
    let value = map.lookup(&index.to_ne_bytes(), MapFlags::ANY).ok()??;
    let fields = Fields(&value);
    Some(VmWriter {
        eventfd,
        pid: fields.word(offset_of!(types::backend, pid))?,
        tid: fields.word(offset_of!(types::backend, tid))?,
        comm: fields.name(offset_of!(types::backend, comm))?,
    })
}

/// The kicks of all guests, by the numbers of the eventfds, which nothing else has.
pub fn kicked(loaded: &Loaded) -> BTreeMap<u32, u64> {
    let map = &loaded.skeleton.maps.kicked_eventfds;
    let read = |key: Vec<u8>| {
        let value = map.lookup(&key, MapFlags::ANY).ok()??;
        let fields = Fields(&value);
        let number = fields.word(offset_of!(types::kicked_eventfd, id))?;
        Some((number, fields.number(offset_of!(types::kicked_eventfd, kicks))?))
    };
    map.keys().filter_map(read).collect()
}

/// Those of a virtual machine whose eventfds a process has that serves a device. Other kicks are for vhost-net, or for
/// the virtual machine's own threads.
pub fn kicks_of(vm: &Vm, kicked: &BTreeMap<u32, u64>) -> Vec<VmKicks> {
    let of = |backend: &nearpath_model::VmBackend| {
        let kicks = |number: &u32| Some((*number, *kicked.get(number)?));
        VmKicks {
            pid: backend.pid,
            comm: backend.comm.clone(),
            eventfds: backend.eventfds.iter().filter_map(kicks).collect(),
        }
    };
    vm.backends.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_model::VmBackend;

    #[test]
    fn kicks_are_of_the_process_that_has_the_eventfd() {
        let backend = |pid: u32, eventfds: &[u32]| VmBackend {
            pid,
            comm: "ovs-vswitchd".to_owned(),
            eventfds: eventfds.to_vec(),
        };
        let vm = Vm { backends: vec![backend(9, &[3, 4, 5]), backend(10, &[6])], ..Vm::default() };
        // 8 is of vhost-net, or of a device of the virtual machine's own.
        let kicked = BTreeMap::from([(4, 100), (5, 1), (8, 7)]);
        let kicks = kicks_of(&vm, &kicked);
        assert_eq!(
            kicks.iter().map(|of| (of.pid, of.kicks())).collect::<Vec<_>>(),
            [(9, 101), (10, 0)]
        );
        assert_eq!(kicks[0].eventfds, BTreeMap::from([(4, 100), (5, 1)]));
    }
}
