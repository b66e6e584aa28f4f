//! The plain types of the data flow: what a host is, what was measured, what was found, what is to be
//! changed, and whether it helped.
//!
//! Nothing here reads the machine or writes to it. All types have serde, so that what passes from one crate
//! to the next can be saved, compared and replayed. What a type can tell of itself alone (a difference of
//! two readings, a set of CPUs as a list) is here, too; what takes the machine is in the crates that use it.

pub mod accepts;
mod change;
mod cpuset;
mod detail;
pub mod drops;
mod finding;
pub mod histogram;
mod host;
mod ids;
mod interval;
pub mod irqs;
mod journal;
pub mod locality;
mod measurement;
mod outlier;
mod plan;
mod proposal;
pub mod steering;
mod verdict;

pub use change::*;
pub use cpuset::{CpuSet, MAX_CPUS, ParseCpuSetError};
pub use detail::{Detail, StageListing};
pub use finding::*;
pub use host::*;
pub use ids::{CpuId, IfIndex, IrqNumber, LlcId, NodeId, QueueId};
pub use journal::*;
pub use measurement::*;
pub use outlier::{Outlier, Passed, Share, ShareKind, Slow, Who};
pub use plan::*;
pub use proposal::{Proposal, ProposedChange};
pub use verdict::*;
