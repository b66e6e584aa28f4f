//! Which host a read-only command looks at: this machine, an unpacked tree, or a snapshot.

use anyhow::Context;
use clap::Args;
use nearpath_host::{Host, NetnsRef, Root, Wanted, in_netns};
use std::path::PathBuf;

/// The options of every read-only command.
#[derive(Debug, Clone, Args)]
pub struct Source {
    /// Read the host from a folder that holds its sys and proc
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Read interfaces and sockets of another network namespace: its name in /run/netns, a path,
    /// or pid:NUMBER
    #[arg(long, value_name = "NAME|PATH", conflicts_with = "root")]
    netns: Option<String>,
}

impl Source {
    /// Reads the facts of the host.
    ///
    /// # Errors
    /// The tree or the namespace cannot be read, or there is nothing of a host in it.
    pub fn host(&self, wanted: &Wanted) -> anyhow::Result<Host> {
        let read = |root: &Root| Host::read(root, wanted).context("cannot read the host");
        match (&self.netns, &self.root) {
            (Some(netns), _) => {
                let Ok(netns) = netns.parse::<NetnsRef>();
                in_netns(&netns, |root| read(&root)).context("cannot use the namespace")?
            }
            (None, Some(dir)) => {
                let cannot = || format!("cannot use {} as a root", dir.display());
                read(&Root::tree(dir).with_context(cannot)?)
            }
            (None, None) => read(&Root::live()),
        }
    }
}
