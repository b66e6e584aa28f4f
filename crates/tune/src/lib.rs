//! Changes of a host. Planners make them from facts, the executor writes them down and makes them,
//! the journal remembers them until they are undone.
//!
//! In goes what is wanted of the host, out come changes: plain data with what was before and what
//! is after, why, and how long it lasts. Only the executor's writer touches the machine; a dry run
//! is the same code with a writer that shows.

mod cgroups;
mod configuration;
mod error;
mod ethtool;
mod executor;
pub mod exporters;
mod files;
mod fuzzing;
mod hotplug;
mod irqbalance;
mod journal;
mod live;
pub mod planners;
mod setting;
mod status;
pub mod steering;
mod threads;
mod units;
mod watch;

pub use error::{NotUndone, TuneError};
#[doc(hidden)]
pub use ethtool::fuzzing as fuzzing_ethtool;
pub use executor::{DryRun, Executor, Writer};
pub use files::settings;
#[doc(hidden)]
pub use fuzzing::fuzzing_targets;
#[doc(hidden)]
pub use journal::fuzzing;
pub use journal::{Damage, JOURNAL_VERSION, Journal, JournalContents};
pub use live::Live;
pub use setting::Presence;
pub use status::change_status;
pub use threads::{find_thread, ticks_since_boot};
pub use watch::{Events, Watch};
