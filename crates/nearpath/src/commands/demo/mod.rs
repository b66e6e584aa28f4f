//! `nearpath demo`: real packets on paths that it creates itself. Each file here is one demonstration.

mod locality;
mod misplaced;
mod tune;

use crate::failure::Failure;
use clap::{Args, Subcommand};
use locality::LocalityArguments;
use misplaced::Misplaced;
use tune::TuneArguments;

const AFTER_HELP: &str = "\
Creates two network namespaces joined by a veth pair, steers its packets (RPS) to one CPU and reads
them on another CPU far from it, sends TCP and UDP over IPv4 and IPv6 between the two, and diagnoses
the path. Requires root. It changes only its own devices, and leaves nothing behind, even when
killed.

EXAMPLES
  nearpath demo                     ten seconds of real packets, and what is wrong with their path
  nearpath demo --for 1m            longer, for higher percentiles
  nearpath demo --json | jq '.findings[0]'
  nearpath demo locality            fix the locality of a server, step by step
  nearpath demo tune                plan, try, apply and undo the fix for the same path";

/// This program, even if its file was renamed or deleted.
const PROGRAM: &str = "/proc/self/exe";

/// Arguments of `demo`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    misplaced: Misplaced,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Fix the locality of a running server step by step, and measure it after each step
    Locality(LocalityArguments),
    /// Fix the misplaced path: plan, try, keep what helps, and restore every setting
    Tune(TuneArguments),
}

impl Arguments {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.part {
            Some(Part::Locality(locality)) => locality.run(),
            Some(Part::Tune(tune)) => tune.run(),
            None => self.misplaced.run(),
        }
    }
}
