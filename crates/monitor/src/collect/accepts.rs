//! Where connections were accepted.

use super::{Own, own};
use crate::metrics::Id;
use crate::store::{OTHERS, Store};
use nearpath_model::accepts::{AcceptMeasurement, DistanceCounts};
use std::collections::{BTreeMap, BTreeSet};

/// Listeners with series of their own, in the order in which they came; there is room again when one has ended.
const LISTENERS_MAX: usize = 32;

/// Adds what was measured since an earlier reading.
pub fn accepts(store: &mut Store, now: &AcceptMeasurement, earlier: Option<&AcceptMeasurement>) {
    let mut known: BTreeSet<String> = store.first_labels(Id::Accepts);
    let nothing = AcceptMeasurement::default();
    let before = earlier.unwrap_or(&nothing);
    let mut listeners: BTreeMap<String, DistanceCounts> = BTreeMap::new();
    for listener in now.since(before).listeners {
        let is_known = known.contains(&listener.local);
        let name = if is_known || known.len() < LISTENERS_MAX {
            known.insert(listener.local.clone());
            listener.local
        } else {
            OTHERS.to_owned()
        };
        *listeners.entry(name).or_default() += listener.places;
    }
    for (listener, places) in listeners {
        for (distance, count) in places.by_name() {
            if count > 0 {
                store.count(Id::Accepts, &[&listener, distance], count);
            }
        }
    }
    own(store, "accepts", now.into(), before.into());
}

impl From<&AcceptMeasurement> for Own {
    fn from(accepts: &AcceptMeasurement) -> Self {
        Self {
            observed_s: accepts.duration_s,
            duration_s: accepts.duration_s,
            events_lost: accepts.lost,
            cpu_percent: accepts.cost.map_or(0.0, |cost| cost.cpu_percent),
        }
    }
}
