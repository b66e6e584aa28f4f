//! The options that split a measurement, and their meaning for the instrument.

use clap::{Args, ValueEnum};
use nearpath_instruments::{GROUPS_MAX, Grouping, Sort};
use nearpath_model::Per;

/// Whether and how the result is split.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "How to split the result")]
pub struct Groups {
    /// Also show the packets of each CPU, node, queue, flow, process or cgroup by themselves: the
    /// CPU that ran a span's end, the queue that a packet came by or is sent by, who reads or sends it
    #[arg(long, value_enum, value_name = "WHAT")]
    per: Option<What>,
    /// How many groups to show; all others are one
    #[arg(long, value_name = "N", default_value_t = 10, requires = "per")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(GROUPS_MAX)))]
    top: u32,
    /// Which groups: those with most packets, or with the highest 99th percentile of packets from end to end
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
    /// For the instrument; `None` where the result is not split.
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
