//! `nearpath fleet`: many hosts, from a Prometheus that has scraped them, or from their snapshots.

mod answers;
mod plan;

use crate::failure::Failure;
use clap::{Args, Subcommand};

const AFTER_HELP: &str = "\
nearpath opens no connection: answers of Prometheus' HTTP API come from files or standard input.
The rules of 'nearpath monitor export prometheus-rules' must be loaded there.

EXAMPLES
  curl -s prometheus:9090/api/v1/query --data-urlencode \"query=$(nearpath fleet query)\" |
    nearpath fleet rank
  nearpath fleet diff yesterday.json today.json
  nearpath fleet plan snapshots/*.tar.zst";

/// Arguments of `fleet`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Fleet {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Rank hosts by what packets wait for on them
    Rank(answers::Rank),
    /// Show which hosts changed between two moments
    Diff(answers::Diff),
    /// Print the query whose answer 'rank' and 'diff' read
    Query(answers::Query),
    /// Plan many hosts from their snapshots, and group equal plans
    Plan(Box<plan::Plans>),
}

impl Fleet {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match &self.what {
            What::Rank(rank) => rank.run(),
            What::Diff(diff) => diff.run(),
            What::Query(query) => query.run(),
            What::Plan(plans) => plans.run(),
        }
    }
}
