//! From measurements and facts to series, a file for each source. Input: two readings of an instrument, of which the
//! first may be missing. Output: increases and values in the [`Store`].
//!
//! An instrument that is started again counts from zero; it then comes without an earlier reading, and what it had
//! counted before stays in the store.

mod accepts;
mod drops;
pub mod facts;
mod findings;
mod locality;
mod memory;
mod stages;
mod steering;
mod tcp;
pub(crate) mod vms;
mod workers;

pub use accepts::accepts;
pub use drops::drops;
pub use facts::Facts;
pub(crate) use facts::{Last, SOFTNET, queue_irqs};
pub use findings::{findings, subject};
pub use locality::locality;
pub use memory::memory;
pub use stages::{stages, stages_between};
pub use steering::steering;
pub use tcp::tcp;
pub use vms::vms;
pub use workers::Workers;

use crate::metrics::Id;
use crate::store::Store;
use serde::Serialize;

/// What each instrument says of itself, since its start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Own {
    /// Seconds observed.
    pub observed_s: f64,
    /// Seconds since its start.
    pub duration_s: f64,
    /// Events that the kernel dropped.
    pub events_lost: u64,
    /// CPU time of its programs; 100 is one whole CPU.
    pub cpu_percent: f64,
}

impl Own {
    /// CPU time of its programs in seconds.
    pub fn cpu_s(&self) -> f64 {
        self.cpu_percent / 100.0 * self.duration_s
    }
}

/// Adds what an instrument says of itself.
pub fn own(store: &mut Store, instrument: &str, now: Own, before: Own) {
    store.set(Id::InstrumentUp, &[instrument], 1.0);
    store.add(Id::Observed, &[instrument], (now.observed_s - before.observed_s).max(0.0));
    store.count(Id::EventsLost, &[instrument], now.events_lost.saturating_sub(before.events_lost));
    // The cost between two windows is an estimate, which may fall.
    store.add(Id::ObservingCpu, &[], (now.cpu_s() - before.cpu_s()).max(0.0));
}

/// The name of a unit variant, as in JSON.
pub(crate) fn name_of(variant: &impl Serialize) -> String {
    match serde_json::to_value(variant) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

/// A share of a count as the count that it was.
pub(crate) fn part(share: Option<f64>, count: u64) -> Option<u64> {
    share.map(|share| (share.clamp(0.0, 1.0) * count as f64).round() as u64)
}

#[cfg(test)]
mod tests;
