//! On which CPUs packets were freed.

use super::{Own, own};
use crate::metrics::Id;
use crate::store::Store;
use nearpath_model::locality::{Distances, Locality};

/// Adds what was measured since an earlier reading.
pub fn locality(store: &mut Store, now: &Locality, earlier: Option<&Locality>) {
    let nothing = Locality::default();
    let before = earlier.unwrap_or(&nothing);
    distances(store, "rx", &now.rx.since(&before.rx));
    distances(store, "tx", &now.tx.since(&before.tx));
    own(store, "locality", now.into(), before.into());
}

impl From<&Locality> for Own {
    fn from(locality: &Locality) -> Self {
        Self {
            observed_s: locality.duration_s,
            duration_s: locality.duration_s,
            events_lost: locality.events_lost,
            cpu_percent: locality.cost.map_or(0.0, |cost| cost.cpu_percent),
        }
    }
}

fn distances(store: &mut Store, direction: &str, packets: &Distances) {
    for (distance, count) in packets.by_name() {
        store.count(Id::LocalityPackets, &[direction, distance], count);
    }
}
