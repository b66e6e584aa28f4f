//! The options that select processes whose memory is read.

use clap::Args;
use nearpath_host::MemorySelection;

/// Selected processes: those that match any of the options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Processes")]
pub struct ProcessSelection {
    /// Read the memory of this process; repeatable
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Read the memory of the processes of this systemd unit or slice; repeatable
    #[arg(long, value_name = "NAME")]
    unit: Vec<String>,
    /// Read the memory of the processes in this cgroup and below, e.g. /system.slice; repeatable
    #[arg(long, value_name = "PATH")]
    cgroup: Vec<String>,
    /// Read the memory of the processes with this name; repeatable
    #[arg(long, value_name = "NAME")]
    comm: Vec<String>,
    /// Read the memory of all processes, also of those with less than 16 MiB
    #[arg(long)]
    all: bool,
    /// Read also how much of it is in transparent hugepages: another walk over its page tables
    /// (smaps_rollup)
    #[arg(long)]
    thp: bool,
}

impl ProcessSelection {
    /// Whether any option is given.
    pub fn is_set(&self) -> bool {
        *self != Self::default()
    }

    /// The selection for the reader.
    pub fn selection(&self) -> MemorySelection {
        let Self { pid, unit, cgroup, comm, all, thp } = self.clone();
        MemorySelection { pids: pid, units: unit, cgroups: cgroup, comms: comm, all, thp }
    }
}
