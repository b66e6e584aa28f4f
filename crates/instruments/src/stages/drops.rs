//! Reads dropped packets that were tracked: converts the programs' counts by last stage, reason and instruction
//! to names.

use super::load::types;
use super::table::stage;
use crate::drops::Names;
use crate::grouping::{comm, word};
use libbpf_rs::{MapCore, MapFlags};
use nearpath_model::{Direction, StageDrop};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::mem::offset_of;

/// The count of one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Row {
    location: u64,
    reason: u32,
    netns: u32,
    ifindex: u32,
    stage: u32,
    packets: u64,
    device: String,
}

impl Row {
    /// Parses `struct stage_drop` and `struct stage_drop_count`; `None` if they are too short.
    fn read(key: &[u8], count: &[u8]) -> Option<Self> {
        type Key = types::stage_drop;
        type Count = types::stage_drop_count;
        let half = |at: usize| Some(u32::from_ne_bytes(*key.get(at..)?.first_chunk()?));
        if key.len() < size_of::<Key>() || count.len() < size_of::<Count>() {
            return None;
        }
        Some(Self {
            location: word(key, offset_of!(Key, location)),
            reason: half(offset_of!(Key, reason))?,
            netns: half(offset_of!(Key, netns))?,
            ifindex: half(offset_of!(Key, ifindex))?,
            stage: half(offset_of!(Key, stage))?,
            packets: word(count, offset_of!(Count, packets)),
            device: comm(count.get(offset_of!(Count, dev)..)?),
        })
    }
}

/// The drops, most packets first. `names` is called only if there are any; `tells_reasons` is whether the
/// kernel has drop reasons.
pub fn read<'a>(
    map: &impl MapCore,
    tells_reasons: bool,
    names: impl FnOnce() -> &'a Names,
) -> Vec<StageDrop> {
    let rows = map
        .keys()
        .filter_map(|key| Row::read(&key, &map.lookup(&key, MapFlags::ANY).ok()??))
        .filter(|row| row.packets > 0);
    let rows: Vec<Row> = rows.collect();
    if rows.is_empty() {
        return Vec::new();
    }
    named(rows, tells_reasons, names())
}

/// Several instructions of a function are one place.
fn named(rows: Vec<Row>, tells_reasons: bool, names: &Names) -> Vec<StageDrop> {
    let mut merged: BTreeMap<_, StageDrop> = BTreeMap::new();
    for row in rows {
        let Some((direction, after)) = usize::try_from(row.stage).ok().and_then(stage_name) else {
            continue;
        };
        let reason = tells_reasons.then(|| names.reason(row.reason));
        let function = names.function_or_address(row.location);
        let key = (row.stage, reason.clone(), function.clone(), row.netns, row.ifindex);
        let drop = merged.entry(key).or_insert_with(|| StageDrop {
            direction,
            after: after.to_owned(),
            meaning: reason.as_deref().and_then(crate::drops::meaning).map(str::to_owned),
            reason,
            function,
            device: Some(row.device).filter(|name| !name.is_empty()),
            netns: Some(row.netns).filter(|&netns| netns > 0),
            packets: 0,
        });
        drop.packets = drop.packets.saturating_add(row.packets);
    }
    let mut drops: Vec<StageDrop> = merged.into_values().collect();
    drops.sort_by_key(|drop| Reverse(drop.packets));
    drops
}

fn stage_name(number: usize) -> Option<(Direction, &'static str)> {
    stage(number).map(|stage| (stage.direction, stage.name))
}
