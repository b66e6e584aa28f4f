//! Which host a read-only command looks at: this machine, one of its network namespaces, an
//! unpacked tree, or a snapshot.

use anyhow::{Context, anyhow};
use clap::Args;
use nearpath_host::{NetnsRef, Root, Wanted, current_netns, in_netns};
use nearpath_model::Host;
use std::path::{Path, PathBuf};

/// Processes whose memory is read at most: `numa_maps` walks their page tables.
const MEMORY_OF: usize = 64;

/// The options of every read-only command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Which host")]
pub struct Source {
    /// Read the host from a folder that holds its sys and proc
    #[arg(long, value_name = "DIR", conflicts_with_all = ["snapshot", "netns"])]
    root: Option<PathBuf>,
    /// Read the host from a file that 'nearpath snapshot' wrote
    #[arg(long, value_name = "FILE", conflicts_with = "netns")]
    snapshot: Option<PathBuf>,
    #[command(flatten)]
    namespace: Namespace,
}

/// The option of every command on this machine.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Which host")]
pub struct Namespace {
    /// Look at another network namespace: its name in /run/netns, a path, or pid:NUMBER
    #[arg(long, value_name = "NAME|PATH")]
    netns: Option<String>,
}

impl Source {
    /// Whether it is this machine.
    pub fn is_live(&self) -> bool {
        self.root.is_none() && self.snapshot.is_none()
    }

    /// The inode of the namespace that was asked for.
    ///
    /// # Errors
    /// As [`Namespace::inode`].
    pub fn netns_inode(&self) -> anyhow::Result<Option<u64>> {
        self.namespace.inode()
    }

    /// Reads facts of the host.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn host(&self, wanted: &Wanted) -> anyhow::Result<Host> {
        self.read(|root| nearpath_host::read(root, wanted).context("cannot read the host"))
    }

    /// Opens the host and reads from it.
    ///
    /// # Errors
    /// The tree, the snapshot or the namespace cannot be opened, or what `read` says.
    pub fn read<T: Send>(
        &self,
        read: impl FnOnce(&Root) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        match (&self.root, &self.snapshot) {
            (Some(dir), _) => read(
                &tree(dir).with_context(|| format!("cannot use {} as a root", dir.display()))?,
            ),
            (None, Some(file)) => read(&Root::snapshot(file).context("cannot use the snapshot")?),
            (None, None) => self.namespace.read(read),
        }
    }
}

impl Namespace {
    /// Reads facts of this machine.
    ///
    /// # Errors
    /// As [`Namespace::read`].
    pub fn host(&self, wanted: &Wanted) -> anyhow::Result<Host> {
        self.read(|root| nearpath_host::read(root, wanted).context("cannot read the host"))
    }

    /// The inode of the namespace, when one was asked for.
    ///
    /// # Errors
    /// It cannot be entered, or does not tell its number.
    pub fn inode(&self) -> anyhow::Result<Option<u64>> {
        if self.netns.is_none() {
            return Ok(None);
        }
        let inode = self.read(|root| Ok(current_netns(root).inode))?;
        inode.map(Some).context("the kernel does not tell the number of the network namespace")
    }

    /// Reads from this machine with a root that remembers what was read.
    ///
    /// # Errors
    /// The namespace cannot be entered, or what `read` says.
    pub fn recorded<T: Send>(
        &self,
        read: impl FnOnce(&Root) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        self.with_root(|root| read(&root.recording()))
    }

    /// Reads from this machine, on a thread that is in the namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered, or what `read` says.
    pub fn read<T: Send>(
        &self,
        read: impl FnOnce(&Root) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        self.with_root(|root| read(&root))
    }

    fn with_root<T: Send>(
        &self,
        read: impl FnOnce(Root) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        let Some(netns) = &self.netns else { return read(Root::live()) };
        let Ok(netns) = netns.parse::<NetnsRef>();
        in_netns(&netns, read).context("cannot use the network namespace")?
    }
}

/// The tree in a folder, one that holds the part without which there are no CPUs and interfaces.
fn tree(dir: &Path) -> anyhow::Result<Root> {
    let root = Root::tree(dir)?;
    match root.list("/sys") {
        Err(error) if error.absent => {
            Err(anyhow!("it has no sys folder; copy both sys and proc of the machine"))
        }
        // Also a folder that was not listed when the snapshot in this tree was made.
        _ => Ok(root),
    }
}

/// The processes whose memory tells where a reader's buffers are: those that hold receiving
/// sockets.
pub fn memory_of_owners(host: &Host) -> Vec<u32> {
    host.owners.iter().map(|owner| owner.pid).take(MEMORY_OF).collect()
}

/// Everything that any command reads: facts, sockets, and the memory of the sockets' owners.
///
/// # Errors
/// There is nothing of a host behind the root.
pub fn all_facts(root: &Root) -> anyhow::Result<Host> {
    let read = |wanted: &Wanted| nearpath_host::read(root, wanted).context("cannot read the host");
    let sockets = Wanted { sockets: true, ..Wanted::default() };
    let memory_of = memory_of_owners(&read(&sockets)?);
    read(&Wanted { memory_of, ..sockets })
}
