//! The commands, one file each: its arguments, its help, and what it does.

mod bench;
mod demo;
mod diagnose;
mod measure;
mod show;
mod snapshot;
mod steer;
mod tune;

use crate::failure::Failure;
use clap::Subcommand;

/// A command with its arguments.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say what is wrong with a host's packet path, and what would mend it
    Diagnose(diagnose::Diagnose),
    /// Gather evidence from the running kernel: where packets spend their time, and on which CPUs
    Measure(measure::Measure),
    /// Measure a path by traffic of its own: latency to a reflector
    Bench(bench::Bench),
    /// Show the facts of a host: CPUs, nodes, NICs, queues, interrupts, softnet counters
    Show(show::Show),
    /// Send connections to the worker that is nearest to the CPU they are received on
    Steer(steer::Steer),
    /// Plan changes of this host, make them, and undo them
    Tune(tune::Tune),
    /// Diagnose real packets on a path that is misplaced on purpose; or put a server's locality right
    Demo(demo::Arguments),
    /// The demo's server, started by 'demo' itself
    #[command(hide = true)]
    DemoServer,
    /// A worker of the server of 'demo locality', started by that itself
    #[command(hide = true)]
    DemoWorker,
    /// Save the facts of this machine in a file, to look at elsewhere
    Snapshot(snapshot::Snapshot),
}

/// Runs a command.
///
/// # Errors
/// The command could not do its work; the failure says why and how to exit.
pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Diagnose(diagnose) => diagnose.run(),
        Command::Measure(measure) => measure.run(),
        Command::Bench(bench) => bench.run(),
        Command::Show(show) => show.run(),
        Command::Steer(steer) => steer.run(),
        Command::Tune(tune) => tune.run(),
        Command::Demo(demo) => demo.run(),
        Command::DemoServer => Ok(crate::demo::reader::serve()?),
        Command::DemoWorker => Ok(crate::demo::locality::worker::serve()?),
        Command::Snapshot(snapshot) => snapshot.run(),
    }
}
