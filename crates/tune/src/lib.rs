//! Changes of a host. Planners make them from facts, the executor writes them down and makes them,
//! the journal remembers them until they are undone.
//!
//! In goes what is wanted of the host, out come changes: plain data with what was before and what
//! is after, why, and how long it lasts. Only the executor's writer touches the machine; a dry run
//! is the same code with a writer that shows.

mod cgroups;
mod change;
mod configuration;
mod error;
mod ethtool;
mod executor;
pub mod exporters;
mod files;
mod irqbalance;
mod journal;
mod live;
mod plan;
pub mod planners;
mod setting;
mod status;
pub mod steering;
mod threads;
mod units;
mod watch;

pub use cgroups::{Cpuset, CpusetFile};
#[doc(hidden)]
pub use change::fuzzing_targets;
pub use change::{Change, Persistence, Target, Value};
pub use configuration::ConfigFile;
pub use error::{NotUndone, TuneError};
#[doc(hidden)]
pub use ethtool::fuzzing as fuzzing_ethtool;
pub use ethtool::{Ethtool, NicSetting};
pub use executor::{DryRun, Executor, Outcome, Skipped, Writer};
pub use files::{SettingFile, settings};
pub use irqbalance::Irqbalance;
#[doc(hidden)]
pub use journal::fuzzing;
pub use journal::{Damage, Entry, JOURNAL_VERSION, Journal, JournalContents, State};
pub use live::Live;
pub use plan::{Crossings, Goal, PLAN_SCHEMA, Plan, PlannedChange, Step};
pub use setting::Presence;
pub use status::{ChangeStatus, Standing, change_status};
pub use threads::Thread;
pub use units::{UnitProperty, UnitSetting};
pub use watch::{Events, Notice, Noticed, Watch};
