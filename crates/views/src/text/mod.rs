//! Text output: aligned tables without boxes, as in ip(8), lscpu(1) and ss(8).
//!
//! Each view is a function from plain data to a `String` that ends with a newline.

mod accepts;
mod accesses;
mod answers;
mod bench_paths;
mod commands;
mod cpu_layout;
mod cpus;
mod devices;
mod diagnosis;
mod dpdk;
mod dpdk_scenarios;
mod dpvs;
mod drops;
mod fix;
mod fleet;
mod groups;
mod histogram;
mod interrupts;
mod irqs;
mod latency;
mod loads;
mod locality;
mod locality_steps;
mod measurement;
mod memory;
mod nics;
mod nodes;
mod nstat;
mod outliers;
mod ovs;
mod packets;
mod paths;
mod queues;
mod recorded;
mod scenarios;
mod softnet;
mod stamps;
mod steering;
mod summary;
mod table;
mod tcp;
mod timelines;
mod trial;
mod tune;
mod tune_demo;
mod txtime;
mod units;
mod unknown;
mod verdict;
mod vm;
mod vm_guest;
mod vm_interrupts;
mod vms;
mod worker_activity;
mod workers;

pub use accepts::accepts;
pub use answers::answers;
pub use bench_paths::bench_paths;
pub(crate) use commands::commands;
pub use cpus::{cpus, layout};
pub use devices::devices;
pub use diagnosis::{diagnosis, findings};
pub use dpdk::dpdk_plan;
pub use dpdk_scenarios::dpdk_scenarios;
pub use dpvs::dpvs_check;
pub use drops::drops;
pub use fix::{attempt, fixed};
pub use fleet::{PlannedHosts, fleet, fleet_difference, fleet_plan};
pub use histogram::histogram;
pub use interrupts::{interrupts, interrupts_heading, interrupts_line};
pub(crate) use irqs::irq_nodes;
pub use irqs::irqs;
pub use latency::{latencies, latency_progress};
pub use locality::{locality, locality_rates};
pub use locality_steps::locality_steps;
pub use measurement::{measurement, stages};
pub use memory::memory;
pub use nics::nics;
pub use nodes::nodes;
pub(crate) use outliers::share_name;
pub use ovs::ovs_check;
pub use packets::{packets, packets_progress};
pub use paths::name as path_name;
pub use queues::queues;
pub use recorded::{RecordedPart, recorded};
pub use scenarios::scenarios;
pub use softnet::softnet;
pub use steering::{steered, steering, time_of_day};
pub use summary::all;
pub use tcp::tcp;
pub use trial::trial;
pub use tune::{applied, journal, memory_moved, plan, rolled_back, watched};
pub use tune_demo::tune_demo;
pub(crate) use units::whole;
pub use units::{bytes, latency, printable};
pub use unknown::unknown;
pub use verdict::{SCREEN_LINES, verdict};
pub use vm::vm;
pub use vms::vms;
pub use worker_activity::worker_activity;
pub use workers::workers;

/// Adds a line; writing to a `String` cannot fail.
macro_rules! line {
    ($out:expr) => { $out.push('\n') };
    ($out:expr, $($arg:tt)*) => {{
        let _ = std::fmt::Write::write_fmt(&mut $out, format_args!($($arg)*));
        $out.push('\n');
    }};
}
use line;

/// A heading over a part of a view.
fn heading(out: &mut String, title: &str) {
    let style = anstyle::Style::new().bold();
    out.push_str(&format!("{style}{title}{style:#}\n"));
}
