//! The cpuset of a cgroup (cgroup v2): which CPUs and nodes its processes may use.

use super::{Persistence, TargetKind};
use crate::CpuSet;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A setting of a cgroup's cpuset.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cpuset {
    /// The cgroup, as `/proc/PID/cgroup` names it: `/system.slice/nginx.service`.
    pub cgroup: String,
    /// The inode of its directory.
    pub inode: u64,
    /// Which of its settings.
    pub what: CpusetFile,
}

/// A file of a cgroup's cpuset controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpusetFile {
    /// `cpuset.cpus`.
    Cpus,
    /// `cpuset.mems`.
    Mems,
    /// `cpuset.cpus.partition`: `member`, or a partition that has its CPUs for itself: `root`, or `isolated`, in which no
    /// load is balanced, either.
    Partition,
}

impl CpusetFile {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Cpus, Self::Mems, Self::Partition];

    /// Its file name in the cgroup's directory.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpus => "cpuset.cpus",
            Self::Mems => "cpuset.mems",
            Self::Partition => "cpuset.cpus.partition",
        }
    }
}

impl fmt::Display for Cpuset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} inode {} cgroup {}", self.what.name(), self.inode, self.cgroup)
    }
}

impl Cpuset {
    /// Parses its text in a plan: `cpuset.cpus inode 99 cgroup /a`.
    pub fn parse(text: &str) -> Option<Self> {
        let (what, rest) = text.split_once(" inode ")?;
        let (inode, cgroup) = rest.split_once(" cgroup ")?;
        let what = CpusetFile::ALL.into_iter().find(|w| w.name() == what)?;
        let names = cgroup.strip_prefix('/')?.split('/');
        let plain = |mut names: std::str::Split<'_, char>| {
            names.all(|name| !matches!(name, "" | "." | "..") && !name.contains(char::is_control))
        };
        plain(names).then_some(())?;
        Some(Self { cgroup: cgroup.to_owned(), inode: inode.parse().ok()?, what })
    }
}

impl TargetKind for Cpuset {
    fn of_plan(text: &str, _: Option<u64>) -> Option<Self> {
        Self::parse(text)
    }

    fn kind(&self) -> &'static str {
        "cpuset"
    }

    fn persistence(&self) -> Persistence {
        Persistence::WhileRunning
    }

    fn lost_for_good(&self) -> Option<&'static str> {
        Some("the cgroup is re-created at reboot")
    }

    fn disrupts(&self) -> Option<&'static str> {
        (self.what == CpusetFile::Mems).then_some("the memory that it moves stays where it is")
    }

    fn owner(&self) -> String {
        self.cgroup.clone()
    }

    fn set_of(&self, value: &str) -> Option<CpuSet> {
        (self.what != CpusetFile::Partition).then(|| CpuSet::from_list(value).ok())?
    }
}
