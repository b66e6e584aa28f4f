//! The plain types of the data flow: hosts, measurements, findings, changes, plans and verdicts.
//!
//! Nothing here reads or writes the machine. All types have serde, so that everything passed from one crate to
//! the next can be saved, compared and replayed. Computations on a type alone (the difference of two readings,
//! a CPU set as a list) are here, too; those that need the machine are in the crates that use them.

pub mod accepts;
mod accesses;
pub mod answers;
mod change;
pub mod clock;
mod cpuset;
mod detail;
mod dpdk;
mod dpvs;
pub mod drops;
pub mod eal;
mod finding;
pub mod fix;
pub mod fleet;
pub mod frame;
pub mod histogram;
mod host;
mod ids;
mod interval;
pub mod irqs;
mod journal;
mod loads;
pub mod locality;
mod measurement;
pub mod memory;
mod outlier;
mod ovs;
mod plan;
mod proposal;
pub mod recorded;
mod scheduler;
pub mod shell;
pub mod steering;
pub mod tcp;
mod txtime;
pub mod units;
mod verdict;
pub mod vm;
mod worker_interval;
mod workers;

pub use accesses::{AccessEstimates, AccessTarget, AccessedBytes, Kdamond};
pub use change::*;
pub use cpuset::{CpuSet, MAX_CPUS, ParseCpuSetError};
pub use detail::{Detail, StageListing};
pub use dpdk::*;
pub use dpvs::*;
pub use finding::*;
pub use host::*;
pub use ids::{CpuId, IfIndex, IrqNumber, LlcId, NodeId, QueueId};
pub use journal::*;
pub use loads::{CodeOfLine, LoadSamples, LoadSource, ProcessLoads, RegionLoads, SharedLine};
pub use measurement::*;
pub use outlier::{Culprit, Outlier, Passed, Share, ShareKind, Slow};
pub use ovs::*;
pub use plan::*;
pub use proposal::{Proposal, ProposedChange};
pub use scheduler::*;
pub use txtime::*;
pub use verdict::*;
pub use worker_interval::{DISTURBED_NS, DISTURBED_PERCENT, POLLING_PERCENT};
pub use workers::*;
