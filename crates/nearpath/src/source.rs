//! The host that a read-only command reads: this one, one of its network namespaces, an unpacked tree, or a
//! snapshot.

use anyhow::{Context, anyhow};
use clap::Args;
use nearpath_host::{
    MemoryReader, MemorySelection, NetnsRef, Root, Wanted, current_netns, in_netns,
};
use nearpath_model::memory::MemoryMeasurement;
use nearpath_model::{Host, Workers};
use std::path::{Path, PathBuf};

/// Maximum number of processes whose memory is read: `numa_maps` walks their page tables, 50 ms each.
const MEMORY_OF: usize = 64;

/// Options of every read-only command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Host")]
pub struct Source {
    /// Read the host from a directory with copies of its sys and proc
    #[arg(long, value_name = "DIR", conflicts_with_all = ["snapshot", "netns"])]
    root: Option<PathBuf>,
    /// Read the host from a file written by 'nearpath snapshot'
    #[arg(long, value_name = "FILE", conflicts_with = "netns")]
    snapshot: Option<PathBuf>,
    #[command(flatten)]
    namespace: Namespace,
}

/// The option of every command on this host.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Host")]
pub struct Namespace {
    /// Use another network namespace: a name in /run/netns, a path, or pid:NUMBER
    #[arg(long, value_name = "NAME|PATH")]
    netns: Option<String>,
}

impl Source {
    /// Whether it is the running host.
    pub fn is_live(&self) -> bool {
        self.root.is_none() && self.snapshot.is_none()
    }

    /// The requested namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The requested namespace as it was given: `blue`, `pid:7`.
    pub fn netns(&self) -> Option<&str> {
        self.namespace.netns.as_deref()
    }

    /// The inode of the requested namespace.
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
    /// The tree, the snapshot or the namespace cannot be opened, or `read` fails.
    pub fn read<T: Send>(
        &self,
        read: impl FnOnce(&Root) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        match (&self.root, &self.snapshot) {
            (Some(dir), _) => {
                let root = tree(dir).and_then(|root| not_empty(&root).map(|()| root));
                read(&root.with_context(|| format!("cannot use {} as a root", dir.display()))?)
            }
            (None, Some(file)) => {
                let root = Root::snapshot(file).context("cannot use the snapshot")?;
                not_empty(&root)
                    .with_context(|| format!("cannot use the snapshot {}", file.display()))?;
                read(&root)
            }
            (None, None) => self.namespace.read(read),
        }
    }
}

impl Namespace {
    /// The requested namespace, as on the command line.
    pub fn name(&self) -> Option<&str> {
        self.netns.as_deref()
    }

    /// Reads facts of this host.
    ///
    /// # Errors
    /// As [`Namespace::read`].
    pub fn host(&self, wanted: &Wanted) -> anyhow::Result<Host> {
        self.read(|root| nearpath_host::read(root, wanted).context("cannot read the host"))
    }

    /// The inode of the requested namespace, if any.
    ///
    /// # Errors
    /// It cannot be entered, or its inode cannot be read.
    pub fn inode(&self) -> anyhow::Result<Option<u64>> {
        if self.netns.is_none() {
            return Ok(None);
        }
        let inode = self.read(|root| Ok(current_netns(root).inode))?;
        inode.map(Some).context("cannot read the inode of the network namespace")
    }

    /// Reads from this host with a root that records what was read.
    ///
    /// # Errors
    /// The namespace cannot be entered, or `read` fails.
    pub fn recorded<T: Send>(
        &self,
        read: impl FnOnce(&Root) -> anyhow::Result<T> + Send,
    ) -> anyhow::Result<T> {
        self.with_root(|root| read(&root.recording()))
    }

    /// Reads from this host, on a thread inside the namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered, or `read` fails.
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

/// Refuses a root behind which there is no host. Folders that are there and empty, or a snapshot without files, would
/// otherwise appear as a host on which nothing is wrong.
///
/// # Errors
/// It has no host.
pub fn not_empty(root: &Root) -> anyhow::Result<()> {
    let cpus = root.list("/sys/devices/system/cpu").is_ok_and(|entries| !entries.is_empty());
    let stat = root.read("/proc/stat").is_ok_and(|bytes| !bytes.is_empty());
    if cpus || stat {
        return Ok(());
    }
    Err(anyhow!("no host in it: neither CPUs (sys/devices/system/cpu) nor proc/stat"))
}

/// Opens a tree. Without proc its facts are unknown; without sys there are no CPUs and interfaces, and a host must not
/// appear to have none.
fn tree(dir: &Path) -> anyhow::Result<Root> {
    if dir.is_file() {
        return Err(anyhow!("it is a file; --snapshot reads a snapshot"));
    }
    let root = Root::tree(dir)?;
    // Other errors come from a directory that was not listed when the snapshot in this tree was made.
    if root.list("/sys").is_err_and(|error| error.absent) {
        return Err(anyhow!("it has no sys directory; copy both sys and proc of the host"));
    }
    Ok(root)
}

/// The processes whose per-node memory is read.
pub fn memory_of_readers(host: &Host) -> Vec<u32> {
    let mut pids = nearpath_diagnose::readers_with_nodes(host);
    pids.truncate(MEMORY_OF);
    pids
}

/// Reads everything that any command needs: facts, sockets, the memory of readers where its node matters, and where the
/// memory of larger processes is, and the workers.
///
/// # Errors
/// There is no host behind the root.
pub fn all_facts(root: &Root) -> anyhow::Result<(Host, Option<MemoryMeasurement>, Workers)> {
    let read = |wanted: &Wanted| nearpath_host::read(root, wanted).context("cannot read the host");
    let sockets = Wanted { sockets: true, ..Wanted::default() };
    let first = read(&sockets)?;
    let workers = nearpath_host::workers::read(root);
    drop(nearpath_host::workers::read_switch(root));
    // A snapshot without processes has none.
    let reader = MemoryReader::new(root, &first, &MemorySelection::default()).ok();
    let memory = reader.map(|reader| reader.still(root));
    let memory_of = memory_of_readers(&first);
    Ok((read(&Wanted { memory_of, ..sockets })?, memory, workers))
}

/// Whether it matters where memory is: several nodes have memory.
pub fn has_nodes(host: &Host) -> bool {
    host.topology.nodes.len() > 1
}
