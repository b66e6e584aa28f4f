//! Checks: facts and measurements in, ranked findings out. Nothing here reads the machine or
//! writes to it.
//!
//! Input: a [`nearpath_model::Host`], an earlier one from the start of the interval (for rates
//! instead of totals since boot) and what was measured ([`Evidence`]); all but the first may be
//! missing. [`diagnose`] runs each check of [`CHECKS`] on them and ranks what they find.
//! A check that lacks a fact says so; it never guesses. None of it panics, whatever the host
//! says of itself: hosts come from other machines, too.

mod buffers;
mod check;
pub mod checks;
mod connections;
mod context;
mod counters;
mod diagnose;
mod evidence;
mod guest;
mod locality;
mod merge;
mod place;
mod readers;
mod severity;
mod spans;
mod steering;
mod summary;
mod text;
mod vms;
mod workers;

pub use check::{Check, CheckOutcome};
pub use checks::CHECKS;
pub use context::Context;
pub use diagnose::{diagnose, rank};
pub use evidence::Evidence;
pub use guest::{GuestMismatch, explain_guest};
pub use place::{
    cpus_near_node, housekeeping, nearest_cpus, nearest_of, node_with_cpus, spread, why_near,
};
pub use readers::readers_with_nodes;
pub use severity::of_tail as severity_of_tail;
