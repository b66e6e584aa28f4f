//! The commands, one file each: arguments, help and implementation.

mod bench;
mod completions;
mod demo;
mod diagnose;
mod fix;
mod fleet;
mod man_pages;
mod measure;
mod monitor;
mod record;
mod report;
mod show;
mod snapshot;
mod steer;
mod top;
mod tune;

use crate::failure::Failure;
use clap::Subcommand;

/// A command with its arguments.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Report what is wrong with a host's packet path, and what would fix it
    Diagnose(diagnose::Diagnose),
    /// Find what makes packets late, change it, prove that it helped, and undo what did not
    Fix(Box<fix::Fix>),
    /// Measure where packets spend their time, and on which CPUs
    Measure(measure::Measure),
    /// Observe all the time, and serve metrics and findings to Prometheus
    Monitor(monitor::Monitor),
    /// Observe all the time, and keep it in Parquet files
    Record(record::Record),
    /// Watch this host, or a recording, in the terminal
    Top(top::Top),
    /// Rank, compare and plan many hosts
    Fleet(fleet::Fleet),
    /// Write a diagnosis, or a part of a recording, as one HTML file
    Report(report::Report),
    /// Measure a path with its own traffic: latency, packet rate, scenarios
    Bench(bench::Bench),
    /// Show a host's CPUs, NUMA nodes, NICs, queues, interrupts and softnet counters
    Show(show::Show),
    /// Steer connections to the worker nearest to the receiving CPU
    Steer(steer::Steer),
    /// Plan, apply, test and undo changes of this host's configuration
    Tune(tune::Tune),
    /// Diagnose and fix real packets on a deliberately misplaced path
    Demo(demo::Arguments),
    /// The server of 'demo'; started by 'demo' itself
    #[command(hide = true)]
    DemoServer,
    /// A worker of the server of 'demo locality'; started by 'demo locality' itself
    #[command(hide = true)]
    DemoWorker,
    /// Save this host's configuration to a file, for use on another machine
    Snapshot(snapshot::Snapshot),
    /// Print a shell completion script
    Completions(completions::Completions),
    /// Write the manual pages to a directory
    #[command(hide = true)]
    ManPages(man_pages::ManPages),
}

/// Runs a command.
///
/// # Errors
/// The command failed; the failure has the reason and the exit status.
pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Diagnose(diagnose) => diagnose.run(),
        Command::Fix(fix) => fix.run(),
        Command::Measure(measure) => measure.run(),
        Command::Monitor(monitor) => monitor.run(),
        Command::Record(record) => record.run(),
        Command::Top(top) => top.run(),
        Command::Fleet(fleet) => fleet.run(),
        Command::Report(report) => report.run(),
        Command::Bench(bench) => bench.run(),
        Command::Show(show) => show.run(),
        Command::Steer(steer) => steer.run(),
        Command::Tune(tune) => tune.run(),
        Command::Demo(demo) => demo.run(),
        Command::DemoServer => Ok(crate::demo::reader::serve()?),
        Command::DemoWorker => Ok(crate::demo::locality::worker::serve()?),
        Command::Snapshot(snapshot) => snapshot.run(),
        Command::Completions(completions) => completions.run(),
        Command::ManPages(pages) => pages.run(),
    }
}
