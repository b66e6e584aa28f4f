//! Whether nearpath's changes are still in effect.

use crate::metrics::Id;
use crate::store::Store;
use nearpath_model::{ChangeState, ChangeStatus};

/// Sets the number of changes by state.
pub fn steering(store: &mut Store, changes: &[ChangeStatus]) {
    for (name, state) in [
        ("applied", Some(ChangeState::Applied)),
        ("drifted", Some(ChangeState::Drifted)),
        ("lost", Some(ChangeState::Lost)),
        ("undone", Some(ChangeState::Undone)),
        ("unknown", None),
    ] {
        let count = changes.iter().filter(|change| change.state == state).count();
        store.set(Id::SteeringSettings, &[name], count as f64);
    }
}
