//! `nearpath snapshot`: saves what facts are read from, for every read-only command elsewhere.

use crate::failure::Failure;
use crate::output;
use crate::source::{Namespace, all_facts};
use anyhow::{Context, anyhow};
use clap::Args;
use nearpath_model::SnapshotSummary;
use nearpath_views::json;
use nearpath_views::text::{bytes, printable};
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Saves exactly the files of /sys and /proc that nearpath reads facts from, and the kernel's answers
to netlink and ethtool requests, as a tar archive packed with zstd. Nothing else of the machine is
in it: no packets, no process's memory. It does hold host, interface and process names, addresses
of interfaces and listening sockets, and the kernel's command line.

EXAMPLES
  nearpath snapshot -o host.tar.zst
  nearpath snapshot -o blue.tar.zst --netns blue
  nearpath diagnose --snapshot host.tar.zst     on any machine
  tar xf host.tar.zst -C tree && nearpath show --root tree

As root it holds more: without, the processes of other users and some settings are unknown.";

/// Arguments of `snapshot`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Snapshot {
    /// The file to write, by custom host.tar.zst; it is readable by its owner only
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace the file if it is there
    #[arg(long)]
    force: bool,
    /// Print what was saved as one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
}

impl Snapshot {
    pub(super) fn run(&self) -> Result<(), Failure> {
        self.refuse_to_overwrite()?;
        let summary = self.namespace.recorded(|root| {
            all_facts(root)?;
            root.save(&self.output).context("cannot save the snapshot")
        })?;
        self.report(&summary)
    }

    /// Only a file is ever replaced: the snapshot would take the place of a device, too.
    fn refuse_to_overwrite(&self) -> anyhow::Result<()> {
        let name = self.output.display();
        match self.output.symlink_metadata() {
            Ok(there) if !there.is_file() => {
                Err(anyhow!("{name} is there already and is no regular file; name another"))
            }
            Ok(_) if !self.force => Err(anyhow!("{name} is there already; --force replaces it")),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn report(&self, summary: &SnapshotSummary) -> Result<(), Failure> {
        let file = self.output.display().to_string();
        if self.json {
            return output::json(&json::snapshot(&file, summary));
        }
        let SnapshotSummary { files, answers, refused, bytes: size } = *summary;
        let size = bytes(u64::try_from(size).unwrap_or(u64::MAX));
        let file = printable(&file);
        output::text(&format!(
            "{file}: {files} files, {answers} answers to requests, {refused} refusals, {size}\n"
        ))
    }
}
