//! PMD threads of an existing Open vSwitch: checked, and planned again where they poll from another node.
//!
//! Input: [`Switch`](nearpath_host::workers::Switch), the host's topology. Output: an [`OvsCheck`](nearpath_model::OvsCheck),
//! or changes. Pure. The rules are those of Open vSwitch's Documentation/topics/dpdk/pmd.rst and of
//! `sched_numa_list_schedule` in lib/dpif-netdev.c: a queue goes to a thread of its port's node that is not isolated, else
//! to one of another node; a thread that an affinity names takes nothing else.

mod check;
mod plan;
mod view;

pub use check::check as check_ovs;
pub use plan::{of_running, plan as plan_ovs};
