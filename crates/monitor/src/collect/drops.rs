//! Where and why packets were dropped.

use super::{Own, own};
use crate::metrics::Id;
use crate::store::Store;
use nearpath_model::drops::DropMeasurement;
use std::collections::BTreeMap;

/// Adds what was measured since an earlier reading.
pub fn drops(store: &mut Store, now: &DropMeasurement, earlier: Option<&DropMeasurement>) {
    let nothing = DropMeasurement::default();
    let before = earlier.unwrap_or(&nothing);
    let interval = now.since(before);
    let mut series: BTreeMap<(String, String), u64> = BTreeMap::new();
    for drop in interval.drops {
        let reason = drop.reason.unwrap_or(drop.function);
        *series.entry((reason, drop.device.unwrap_or_default())).or_default() += drop.packets;
    }
    if interval.no_room.packets > 0 {
        *series.entry(("others".to_owned(), String::new())).or_default() +=
            interval.no_room.packets;
    }
    for ((reason, device), packets) in series {
        store.count(Id::Drops, &[&reason, &device], packets);
    }
    own(store, "drops", now.into(), before.into());
}

impl From<&DropMeasurement> for Own {
    fn from(drops: &DropMeasurement) -> Self {
        Self {
            observed_s: drops.duration_s,
            duration_s: drops.duration_s,
            events_lost: drops.events_lost,
            cpu_percent: drops.cost.map_or(0.0, |cost| cost.cpu_percent),
        }
    }
}
