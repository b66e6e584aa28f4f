//! Changes of a host. Planners derive them from facts, the executor records and applies them, and the journal
//! keeps them until they are undone.
//!
//! Input: a request. Output: changes, plain data with the value before and after, the reason, and how long they
//! last. Only the executor's writer touches the host; a dry run is the same code with a writer that only shows.

mod bpf_programs;
mod cgroups;
mod configuration;
mod deferred;
pub mod dpdk;
pub mod dpvs;
mod error;
mod ethtool;
mod executor;
pub mod exporters;
mod files;
mod fuzzing;
mod hotplug;
mod hugepages;
mod irqbalance;
mod journal;
mod live;
mod migrate;
mod ovs;
mod pages;
pub mod planners;
mod qdiscs;
mod setting;
mod status;
pub mod steering;
mod threads;
mod units;
mod vlan_egress;
mod watch;
mod xdp;

pub use error::{NotUndone, TuneError};
#[doc(hidden)]
pub use ethtool::fuzzing as fuzzing_ethtool;
pub use executor::{DryRun, Executor, Writer};
pub use files::settings;
#[doc(hidden)]
pub use fuzzing::fuzzing_targets;
#[doc(hidden)]
pub use journal::fuzzing;
pub use journal::{Damage, JOURNAL_VERSION, Journal, JournalContents, now_s};
pub use live::Live;
pub use setting::ObservedValue;
pub use status::change_status;
pub use threads::{find_thread, ticks_since_boot};
pub use watch::{DeviceWatch, Events, HugepagesWatch, MemoryWatch, Watch};
