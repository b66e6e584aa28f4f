//! The command line: parse, call, render. Each command is one file in [`commands`]; what it
//! does is in the crates below.
//!
//! In goes an argument vector, out come text or one JSON document on standard output, progress
//! and warnings on standard error, and an exit status: 0 done, 1 error, 2 wrong usage.

pub mod commands;
pub mod demo;
mod evidence;
mod failure;
mod filters;
mod grouping;
mod interrupt;
mod lower_devices;
mod output;
mod session;
mod source;
mod trial;
mod verbose;

use clap::{CommandFactory, Parser};
use failure::Failure;
use std::ffi::OsString;
use std::process::ExitCode;

const ABOUT: &str = "Measures where packets spend their time inside the Linux network path, and \
    on which CPU and NUMA node; says what is wrong and what would mend it.";

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath diagnose                            what is wrong with this machine's packet path
  nearpath measure stages --dev eth0 --for 30s where its packets spend their time
  nearpath measure locality                    are they let go of on the CPU that they came to?
  nearpath steer --port 443 --dry-run          which worker would get which CPU's connections
  nearpath tune plan --nic eth0                what would bring its packets near
  nearpath show cpus                           sockets, cores, LLCs and nodes
  nearpath show --svg host.svg                 a picture of the machine and its NICs
  nearpath snapshot -o host.tar.zst            take its facts along
  nearpath show --snapshot host.tar.zst        and look at them elsewhere

EXIT STATUS
  0  done
  1  error: one line on standard error says what is wrong and what to do
  2  wrong usage

Standard output carries the result alone; with --json it is one JSON document. Progress and
warnings go to standard error. Colours are used on a terminal only, and not with NO_COLOR set.";

/// nearpath's arguments.
#[derive(Debug, Parser)]
#[command(name = "nearpath", version, about = ABOUT, after_long_help = AFTER_HELP)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

/// Runs one command line, the program's name included, and returns its exit status.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let outcome = Cli::try_parse_from(&args)
        .map_err(|error| Failure::Clap(Box::new(error), command_of(&args)))
        .and_then(|cli| commands::run(&cli.command));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// The command that an argument vector names, as it is typed: `nearpath measure stages`.
fn command_of(args: &[OsString]) -> String {
    let mut command = Cli::command();
    let mut words = vec![command.get_name().to_owned()];
    for arg in args.iter().skip(1) {
        let Some(subcommand) = command.find_subcommand(arg) else { break };
        words.push(subcommand.get_name().to_owned());
        command = subcommand.clone();
    }
    words.join(" ")
}
