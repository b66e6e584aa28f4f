//! Reads why packets were late.

use super::load::{Loaded, PARTS, types};
use super::reading::Fields;
use libbpf_rs::{MapCore, MapFlags};
use nearpath_model::vm::{VmLate, VmLatePart, VmPart};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::num::NonZeroU64;

/// Late packets of a queue; `None` if the map cannot be read.
pub fn read(loaded: &Loaded, queue: usize, slow_ns: NonZeroU64) -> Option<VmLate> {
    let key = u32::try_from(queue).ok()?;
    let map = &loaded.skeleton.maps.late_packets;
    let value = map.lookup(&key.to_ne_bytes(), MapFlags::ANY).ok()??;
    let fields = Fields(&value);
    let mut behind = culprits(loaded, key);
    let mut parts = Vec::new();
    for (at, part) in VmPart::ALL.into_iter().enumerate().take(PARTS) {
        let packets = fields.number(offset_of!(types::late, packets) + 8 * at)?;
        let time_ns = fields.number(offset_of!(types::late, ns) + 8 * at)?;
        if packets > 0 {
            let behind = behind.remove(&at).unwrap_or_default();
            parts.push(VmLatePart { part, packets, time_ns, behind });
        }
    }
    parts.sort_by_key(|part| u64::MAX - part.packets);
    Some(VmLate { slow_ns: slow_ns.get(), parts })
}

/// By part of the time, what ran instead of the thread that late packets of the queue waited for.
fn culprits(loaded: &Loaded, queue: u32) -> BTreeMap<usize, BTreeMap<String, u64>> {
    let map = &loaded.skeleton.maps.culprits;
    let mut behind: BTreeMap<usize, BTreeMap<String, u64>> = BTreeMap::new();
    for key in map.keys() {
        let of = |key: &[u8]| {
            let fields = Fields(key);
            let part = fields.word(offset_of!(types::culprit, part))?;
            let comm = key.get(offset_of!(types::culprit, comm)..)?;
            let comm = comm.split(|byte| *byte == 0).next().unwrap_or_default();
            let is_its = fields.word(offset_of!(types::culprit, queue))? == queue;
            is_its.then(|| (part as usize, String::from_utf8_lossy(comm).into_owned()))
        };
        let packets = map.lookup(&key, MapFlags::ANY).ok().flatten();
        let packets = packets.and_then(|value| Fields(&value).number(0));
        if let (Some((part, comm)), Some(packets)) = (of(&key), packets) {
            *behind.entry(part).or_default().entry(comm).or_default() += packets;
        }
    }
    behind
}
