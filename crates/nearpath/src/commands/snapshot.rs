//! `nearpath snapshot`: saves the files that facts are read from, for read-only commands on other machines.

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
Saves the files of /sys and /proc that nearpath reads, and the kernel's answers to netlink and
ethtool requests, as a zstd-compressed tar archive. It holds nothing else: no packets, no process
memory. It does hold host, interface and process names, addresses of interfaces and listening
sockets, and the kernel command line.

EXAMPLES
  nearpath snapshot -o host.tar.zst
  nearpath snapshot -o blue.tar.zst --netns blue
  nearpath diagnose --snapshot host.tar.zst     on any machine
  tar xf host.tar.zst -C tree && nearpath show --root tree

Without root, processes of other users and some settings are missing.";

/// Arguments of `snapshot`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub struct Snapshot {
    /// File to write, usually named *.tar.zst; readable by its owner only
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    /// Print a summary as one JSON document
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

    /// Only regular files are replaced: the rename would replace a device node, too.
    fn refuse_to_overwrite(&self) -> anyhow::Result<()> {
        let name = self.output.display();
        match self.output.symlink_metadata() {
            Ok(there) if !there.is_file() => {
                Err(anyhow!("{name} exists and is not a regular file"))
            }
            Ok(_) if !self.force => Err(anyhow!("{name} exists; use --force to replace it")),
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
