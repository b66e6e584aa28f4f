//! `nearpath fleet rank|diff|query`: what a Prometheus answered.

use super::super::tune::read;
use crate::failure::Failure;
use crate::output;
use anyhow::Context;
use clap::Args;
use nearpath_model::fleet::Fleet;
use nearpath_monitor::fleet::{BYTES_MAX, SELECTOR, difference, rank};
use nearpath_views::text;
use std::path::{Path, PathBuf};

/// How a host is named.
#[derive(Debug, Args)]
struct Naming {
    /// The label that names a host
    #[arg(long, value_name = "LABEL", default_value = "instance")]
    by: String,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Naming {
    fn fleet(&self, file: &Path) -> anyhow::Result<Fleet> {
        let bytes = read(file, BYTES_MAX as u64)?;
        rank(&bytes, &self.by).with_context(|| format!("cannot use {}", file.display()))
    }
}

/// Arguments of `fleet rank`.
#[derive(Debug, Args)]
pub(super) struct Rank {
    /// Answer of Prometheus' HTTP API to 'nearpath fleet query'; '-' is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
    #[command(flatten)]
    naming: Naming,
}

impl Rank {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let fleet = self.naming.fleet(&self.file)?;
        if self.naming.json { output::json(&fleet) } else { output::text(&text::fleet(&fleet)) }
    }
}

/// Arguments of `fleet diff`.
#[derive(Debug, Args)]
pub(super) struct Diff {
    /// The earlier answer
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// The later answer; one of both may be '-'
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    #[command(flatten)]
    naming: Naming,
}

impl Diff {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let difference =
            difference(&self.naming.fleet(&self.before)?, &self.naming.fleet(&self.after)?);
        if self.naming.json {
            output::json(&difference)
        } else {
            output::text(&text::fleet_difference(&difference))
        }
    }
}

/// Arguments of `fleet query`.
#[derive(Debug, Args)]
pub(super) struct Query {}

impl Query {
    pub(super) fn run(&self) -> Result<(), Failure> {
        output::text(&format!("{SELECTOR}\n"))
    }
}
