//! `nearpath demo`: real packets on paths of its own making, a demonstration in each file here.

mod locality;
mod misplaced;
mod tune;

use crate::failure::Failure;
use clap::{Args, Subcommand};
use locality::LocalityArguments;
use misplaced::Misplaced;
use tune::TuneArguments;

const AFTER_HELP: &str = "\
Builds two network namespaces joined by a veth pair, steers its packets (RPS) to one CPU and reads
them on another, far from it, drives TCP and UDP over IPv4 and IPv6 between the two, and diagnoses
the path. It takes root, touches no device but its own, and leaves nothing behind, also when it is
killed.

EXAMPLES
  nearpath demo                     ten seconds of real packets, and what is wrong with them
  nearpath demo --for 1m            longer, for deeper percentiles
  nearpath demo --json | jq '.findings[0]'
  nearpath demo locality            a server whose packets come to stay on their CPU, step by step
  nearpath demo tune                the same path put right: planned, tried, kept, and undone";

/// This program, whatever its file is called or whether it still is there.
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
    /// Put the locality of a running server right, step by step, and measure it after each
    Locality(LocalityArguments),
    /// Put the misplaced path right: plan, try, keep what helps, and undo it to the byte
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
