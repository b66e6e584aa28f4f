//! Reads the waits of vCPUs one by one.

use super::load::{Loaded, shortest_pause_ns, types};
use super::reading::Fields;
use libbpf_rs::{MapCore, MapFlags};
use nearpath_model::Vm;
use nearpath_model::vm::{VcpuPause, VcpuPauses};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::num::NonZeroU64;

/// `PAUSES_MAX` of `bpf/vm_late.h`.
const PAUSES_MAX: u32 = crate::constants::PAUSES_MAX as u32;

/// The waits of the threads that were kept, by the thread's number in the kernel, each in the order of its ends.
pub fn read(loaded: &Loaded) -> BTreeMap<u32, Vec<VcpuPause>> {
    let map = &loaded.skeleton.maps.pauses;
    let mut all: BTreeMap<u32, Vec<VcpuPause>> = BTreeMap::new();
    for number in 0..count(loaded).min(PAUSES_MAX) {
        let value = map.lookup(&number.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        if let Some((thread, pause)) = value.as_deref().and_then(pause) {
            all.entry(thread).or_default().push(pause);
        }
    }
    for of in all.values_mut() {
        of.sort_by_key(|pause| (pause.end_ns, pause.start_ns));
    }
    all
}

/// Waits that were replaced by later ones.
pub fn lost(loaded: &Loaded) -> u64 {
    count(loaded).saturating_sub(PAUSES_MAX).into()
}

fn count(loaded: &Loaded) -> u32 {
    loaded.skeleton.maps.bss_data.as_deref().map_or(0, |variables| variables.pause_count)
}

/// The thread, and its wait, without the vCPU's number.
fn pause(value: &[u8]) -> Option<(u32, VcpuPause)> {
    let fields = Fields(value);
    let comm = value.get(offset_of!(types::pause, comm)..)?;
    let comm = comm.split(|byte| *byte == 0).next().unwrap_or_default();
    let end_ns = fields.number(offset_of!(types::pause, end_ns)).filter(|end| *end > 0)?;
    let pause = VcpuPause {
        vcpu: 0,
        start_ns: fields.number(offset_of!(types::pause, start_ns))?,
        end_ns,
        throttled: fields.word(offset_of!(types::pause, quota))? != 0,
        behind: (!comm.is_empty()).then(|| String::from_utf8_lossy(comm).into_owned()),
    };
    Some((fields.word(offset_of!(types::pause, thread))?, pause))
}

/// Those of a virtual machine's vCPUs.
pub fn of_vm(vm: &Vm, all: &BTreeMap<u32, Vec<VcpuPause>>, slow_ns: NonZeroU64) -> VcpuPauses {
    let of = |vcpu: &nearpath_model::Vcpu| {
        let number = vcpu.number;
        let kept = vcpu.thread.as_ref().and_then(|thread| all.get(&thread.tid))?;
        Some(kept.iter().map(move |pause| VcpuPause { vcpu: number, ..pause.clone() }))
    };
    let mut kept: Vec<VcpuPause> = vm.vcpus.iter().filter_map(of).flatten().collect();
    kept.sort_by_key(|pause| (pause.end_ns, pause.vcpu));
    VcpuPauses { shortest_ns: shortest_pause_ns(slow_ns), kept }
}
