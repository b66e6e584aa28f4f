//! The commands, one file each: its arguments, its help, and what it does.

mod demo;
mod show;

use crate::failure::Failure;
use clap::Subcommand;

/// A command with its arguments.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show the facts of a host: CPUs, nodes, NICs, queues, interrupts, softnet counters
    Show(show::Show),
    /// Diagnose real packets on a path that is misplaced on purpose
    Demo(demo::Arguments),
    /// The demo's server, started by 'demo' itself
    #[command(hide = true)]
    DemoServer,
}

/// Runs a command.
///
/// # Errors
/// The command could not do its work; the failure says why and how to exit.
pub(crate) fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Show(show) => show.run(),
        Command::Demo(demo) => demo.run(),
        Command::DemoServer => Ok(crate::demo::reader::serve()?),
    }
}
