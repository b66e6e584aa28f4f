//! The command line: parse, call, render. Each command is one file in [`commands`]; the work is done in the
//! crates below.
//!
//! Input: an argument vector. Output: text or one JSON document on standard output, progress and warnings on
//! standard error, and an exit status: 0 success, 1 error, 2 wrong usage.

pub mod commands;
pub mod demo;
mod evidence;
mod failure;
mod filters;
mod grouping;
mod guardian;
mod help;
mod interrupt;
mod lower_devices;
mod manual;
mod names;
mod output;
mod process_selection;
mod recorded;
pub mod screen;
mod session;
mod source;
mod tcp_connections;
mod together;
mod trial;
mod verbose;
mod version;

use clap::{Command, CommandFactory, FromArgMatches, Parser};
use failure::Failure;
use std::ffi::OsString;
use std::process::ExitCode;

const ABOUT: &str = "Measures where packets spend their time in the Linux network stack, on which \
    CPU and NUMA node; reports what is wrong and what would fix it.";

const AFTER_HELP: &str = "\
EXAMPLES
  nearpath diagnose                            what is wrong with this machine's packet path
  nearpath top                                 watch it
  nearpath measure stages --dev eth0 --for 30s where packets of eth0 spend their time
  nearpath measure locality                    are packets freed on the CPU that received them?
  nearpath steer --port 443 --dry-run          which worker would get each CPU's connections
  nearpath tune plan --nic eth0                what would move its packets closer to their readers
  nearpath show cpus                           sockets, cores, LLCs and nodes
  nearpath show --svg host.svg                 a picture of the host and its NICs
  nearpath snapshot -o host.tar.zst            save its configuration
  nearpath show --snapshot host.tar.zst        and inspect it elsewhere

EXIT STATUS
  0  success
  1  error; one line on standard error gives the reason
  2  wrong usage

Standard output carries only the result; with --json, one JSON document. Progress and warnings go to
standard error. Colours are used on terminals only, unless NO_COLOR is set.";

/// nearpath's arguments.
#[derive(Debug, Parser)]
#[command(name = "nearpath", version = version::NUMBER, about = ABOUT, after_long_help = AFTER_HELP)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

/// Runs one command line, including the program name, and returns its exit status.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let outcome = command()
        .try_get_matches_from(&args)
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .map_err(|error| {
            let command = command_of(&args);
            // Before the options are parsed, only the text of this one says what statuses mean.
            let by_findings =
                command == "nearpath diagnose" && args.iter().any(|a| a == "--exit-code");
            let failure = Failure::Clap(Box::new(error), command);
            if by_findings { Failure::NotDiagnosed(Box::new(failure)) } else { failure }
        })
        .and_then(|cli| commands::run(&cli.command));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// The command with its subcommands, and grouped help.
fn command() -> Command {
    help::grouped(Cli::command().long_version(version::long()))
}

/// The command that an argument vector names, as typed: `nearpath measure stages`.
fn command_of(args: &[OsString]) -> String {
    let mut command = command();
    let mut words = vec![command.get_name().to_owned()];
    for arg in args.iter().skip(1) {
        let Some(subcommand) = command.find_subcommand(arg) else { break };
        words.push(subcommand.get_name().to_owned());
        command = subcommand.clone();
    }
    words.join(" ")
}
