//! The options that group a measurement, and their meaning for the instrument.

use clap::{Args, ValueEnum};
use nearpath_instruments::{GROUPS_MAX, Grouping, Sort};
use nearpath_model::Per;

/// Whether and how results are grouped.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Grouping")]
pub struct Groups {
    /// Also show results per CPU, node, queue, flow, process or cgroup: the CPU at the end of a span, the
    /// queue that received or sends a packet, the process that reads or sends it
    #[arg(long, value_enum, value_name = "WHAT")]
    per: Option<What>,
    /// Number of groups to show; the rest are summed in one
    #[arg(long, value_name = "N", default_value_t = 10, requires = "per")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(GROUPS_MAX)))]
    top: u32,
    /// Which groups to show: those with the most packets, or with the highest end-to-end 99th percentile
    #[arg(long, value_enum, value_name = "ORDER", default_value = "packets", requires = "per")]
    sort: Order,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    Cpu,
    Node,
    Queue,
    Flow,
    Process,
    Cgroup,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    Packets,
    P99,
}

impl Groups {
    /// The option of the instrument; `None` without grouping.
    pub fn wanted(&self) -> Option<Grouping> {
        let per = match self.per? {
            What::Cpu => Per::Cpu,
            What::Node => Per::Node,
            What::Queue => Per::Queue,
            What::Flow => Per::Flow,
            What::Process => Per::Process,
            What::Cgroup => Per::Cgroup,
        };
        let sort = match self.sort {
            Order::Packets => Sort::Packets,
            Order::P99 => Sort::P99,
        };
        Some(Grouping { per, top: usize::try_from(self.top).unwrap_or(usize::MAX), sort })
    }
}
