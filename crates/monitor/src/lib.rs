//! The daemon: measurements over time as metrics and as recordings.
//!
//! Input: the host and its instruments, read on a clock. Output: a [`Store`] of series, of which each scrape gets the
//! same snapshot; alert rules, dashboards and documentation generated from the same registry ([`metrics`]).
//!
//! ```text
//!   instruments ─ runner ─┬─ collect ─> Store ─ tick ─> Snapshot ─> exposition ─> http
//!                         │                       (metrics: one row for each name)
//!   facts, findings ──────┴─ recording::rows ─> Batch ─> Recorder ─> files ─> Recording
//! ```

pub mod collect;
pub mod export;
pub mod exposition;
pub mod fleet;
pub mod http;
pub mod metrics;
pub mod recording;
pub mod runner;
pub mod store;

pub use metrics::{Id, METRICS, Metric};
pub use store::{Snapshot, Store};
