//! From measurements and facts to rows, a file for each kind of source. Input: two readings of an instrument, of which
//! the first may be missing. Output: a [`Batch`](super::Batch).

mod facts;
mod host;
mod packets;
mod stages;
mod vms;

pub use facts::FactRows;
pub use host::{findings, memory, settings, workers};
pub use packets::{accepts, drops, locality, tcp};
pub use stages::stages;
pub use vms::vms;

use super::batch::Batch;
use super::table::Table;
use crate::collect::Own;

/// What an instrument observed and cost since an earlier reading.
fn cost(batch: &mut Batch, instrument: &str, now: Own, before: Own) {
    let observed_s = (now.observed_s - before.observed_s).max(0.0);
    // The cost between two windows is an estimate, which may fall.
    let cpu_s = (now.cpu_s() - before.cpu_s()).max(0.0);
    let lost = now.events_lost.saturating_sub(before.events_lost);
    batch.push(Table::Cost, [instrument.into(), observed_s.into(), cpu_s.into(), lost.into()]);
}
