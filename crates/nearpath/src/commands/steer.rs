//! `nearpath steer`: steers connections to the worker nearest to the receiving CPU.

use crate::commands::tune::ConfirmWithin;
use crate::failure::{Failure, say};
use crate::guardian::executor;
use crate::output;
use crate::source::Namespace;
use anyhow::Context;
use clap::{Args, Subcommand};
use nearpath_host::{Root, Wanted, current_netns};
use nearpath_model::steering::Status;
use nearpath_model::{Change, Entry, SocketProtocol};
use nearpath_tune::steering::{Method, Request, entry_of};
use nearpath_tune::{DryRun, Executor, Journal, Live, TuneError, steering};
use nearpath_views::{json, text};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

const AFTER_HELP: &str = "\
Finds the sockets that share the port (SO_REUSEPORT), the worker that reads from each, and the CPUs
that the worker may run on. Then attaches a BPF program that gives each connection to the worker
nearest to the CPU that receives it. The server is neither changed nor restarted. When the server
restarts, it creates new sockets, and must be steered again. Requires root and Linux 5.10 or later
with BTF.

EXAMPLES
  nearpath steer --port 8181 --dry-run     show which worker would get each CPU's connections
  nearpath steer --port 8181               attach the program
  nearpath steer --port 8181 --pin         also pin the workers, for servers that do not pin them
  nearpath steer --port 53 --udp           steer datagrams
  nearpath steer status                    list the REUSEPORT groups and their programs
  nearpath steer off --port 8181           detach the program";

/// Arguments of `steer`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Steer {
    #[command(subcommand)]
    action: Option<Action>,
    /// Port that the server's sockets share
    #[arg(long, value_name = "PORT", required = true)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// UDP sockets instead of listening TCP sockets
    #[arg(long)]
    udp: bool,
    /// Address, if several groups use the port
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Only a group that this process has sockets in
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Attach a classic BPF program: socket index = CPU number modulo number of sockets
    #[arg(long)]
    cbpf: bool,
    /// Pin workers that may run on any CPU, each to its own CPU, before steering; 'off' undoes both
    #[arg(long)]
    pin: bool,
    /// Show what would be done without doing it
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    kernel: KernelBtf,
    #[command(flatten, next_help_heading = None::<&'static str>)]
    confirm_within: ConfirmWithin,
}

/// The BTF option.
#[derive(Debug, Args)]
struct KernelBtf {
    /// Read the kernel's BTF from this file, for kernels without /sys/kernel/btf/vmlinux
    #[arg(long, value_name = "FILE")]
    btf: Option<PathBuf>,
}

impl KernelBtf {
    fn file(&self) -> Option<&Path> {
        self.btf.as_deref()
    }
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the REUSEPORT groups and the program attached to each
    Status(StatusOf),
    /// Detach nearpath's programs
    Off(Off),
}

#[derive(Debug, Args)]
struct StatusOf {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    kernel: KernelBtf,
}

#[derive(Debug, Args)]
struct Off {
    /// Only groups with this port
    #[arg(long, value_name = "PORT")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    kernel: KernelBtf,
}

impl Steer {
    pub(super) fn run(&self) -> Result<(), Failure> {
        match (&self.action, self.port) {
            (Some(Action::Status(status)), _) => status.run(),
            (Some(Action::Off(off)), _) => off.run(),
            (None, Some(port)) => self.steer(port),
            (None, None) => Err(Failure::Usage("--port is required".to_owned())),
        }
    }

    fn steer(&self, port: u16) -> Result<(), Failure> {
        let protocol = if self.udp { SocketProtocol::Udp } else { SocketProtocol::Tcp };
        let request = Request { protocol, port, address: self.address, pid: self.pid };
        let method = if self.cbpf { Method::CpuModulo } else { Method::Nearest };
        let changes = self.namespace.read(|root| {
            let host =
                nearpath_host::read(root, &Wanted::default()).context("cannot read the host")?;
            let mut found = steering::select(root, self.kernel.file(), &request)?;
            let boot = steering::boot(root)?;
            let entries = Journal::read(&Journal::folder())?;
            if let Some(entry) = entry_of(&found, &entries, &boot) {
                let local = found.group.local;
                return Err(TuneError::Refused(format!(
                    "{local} is already steered by nearpath, since {}; detach first: \
                     nearpath steer off --port {port}",
                    text::time_of_day(entry.time_s)
                ))
                .into());
            }
            let mut plan = if self.pin {
                steering::pins(root, &host.topology, &mut found)?
            } else {
                Vec::new()
            };
            plan.push(steering::plan(&host.topology, &found, method)?);
            Ok(if self.dry_run {
                dry(plan, self.kernel.file())?
            } else {
                self.apply(plan, root, &boot)?
            })
        })?;
        if self.json {
            output::json(&json::steered(!self.dry_run, &changes))
        } else {
            let shown = changes.iter().map(|change| text::steered(!self.dry_run, change));
            output::text(&shown.collect::<String>())
        }
    }
}

impl Steer {
    fn apply(&self, plan: Vec<Change>, root: &Root, boot: &str) -> anyhow::Result<Vec<Change>> {
        let btf = self.kernel.file();
        let mut executor = executor(boot, Live::new().with_btf(btf))?;
        forget_closed(&mut executor, root, btf, boot)?;
        self.confirm_within.make(executor, |executor| executor.apply(plan))
    }
}

/// The changes that would be made.
fn dry(plan: Vec<Change>, btf: Option<&Path>) -> Result<Vec<Change>, TuneError> {
    let mut shown = Vec::new();
    let live = Live::new().with_btf(btf);
    let check = |change: Change| live.check(change);
    let made = |change: &Change| shown.push(change.clone());
    Executor::dry(DryRun { check, made, undone: |_: &Change| {} }).apply(plan)?;
    Ok(shown)
}

/// Drops steering of closed sockets from the journal: no later boot or server has them.
fn forget_closed(
    executor: &mut Executor<Live>,
    root: &Root,
    btf: Option<&Path>,
    boot: &str,
) -> Result<(), TuneError> {
    let netns = current_netns(root).inode;
    for entry in executor.entries() {
        let Some(group) = entry.change.target.group() else { continue };
        let ours = |inode| group.sockets.iter().any(|socket| socket.inode == inode);
        let closed = || -> Result<bool, TuneError> {
            Ok(group.netns == netns && steering::groups(root, btf, |s| ours(s.inode))?.is_empty())
        };
        if entry.boot != boot || closed()? {
            // Exited threads need no undo; the others may run on their old CPUs again.
            undo_pins(executor, &entry, boot)?;
            executor.forget(&entry)?;
        }
    }
    Ok(())
}

/// Restores the affinity of workers that were pinned for a steering. Those of another boot no longer exist.
fn undo_pins(executor: &mut Executor<Live>, steering: &Entry, boot: &str) -> Result<(), TuneError> {
    let entries = executor.entries();
    for pin in steering::pins_of(steering, &entries) {
        if pin.boot != boot {
            executor.forget(pin)?;
            continue;
        }
        match executor.undo(pin) {
            // An external change is kept.
            Err(TuneError::Drift { target, now, .. }) => {
                say(&format!("{target}: changed externally to {now}; skipped"));
                executor.forget(pin)?;
            }
            undone => undone?,
        }
    }
    Ok(())
}

impl StatusOf {
    fn run(&self) -> Result<(), Failure> {
        let status = self.namespace.read(|root| status(root, self.kernel.file()))?;
        if self.json { output::json(&status) } else { output::text(&text::steering(&status)) }
    }
}

fn status(root: &Root, btf: Option<&Path>) -> anyhow::Result<Status> {
    let found = steering::groups(root, btf, |_| true)?;
    let entries = Journal::read(&Journal::folder())?;
    Ok(steering::status(&found, &entries, &steering::boot(root)?, current_netns(root).inode))
}

impl Off {
    fn run(&self) -> Result<(), Failure> {
        let lines = self.namespace.read(|root| self.undo(root))?;
        lines.iter().for_each(|line| say(line));
        Ok(())
    }

    fn undo(&self, root: &Root) -> anyhow::Result<Vec<String>> {
        let boot = steering::boot(root)?;
        let btf = self.kernel.file();
        let mut executor = executor(&boot, Live::new().with_btf(btf))?;
        forget_closed(&mut executor, root, btf, &boot)?;
        let netns = current_netns(root).inode;
        let mut said = Vec::new();
        for entry in executor.entries() {
            let Some(group) = entry.change.target.group() else { continue };
            if self.port.is_some_and(|port| port != group.local.port()) {
                continue;
            }
            if group.netns != netns {
                let number = group.netns.map_or_else(|| "-".to_owned(), |n| n.to_string());
                said.push(format!(
                    "{} is steered in network namespace {number}; use --netns",
                    group.local
                ));
                continue;
            }
            // Pins first: they are found through the steering's entry.
            undo_pins(&mut executor, &entry, &boot)?;
            executor.undo(&entry)?;
            said.push(format!("{}: steering removed", group.local));
        }
        if said.is_empty() {
            said.push("no steering by nearpath in this network namespace".to_owned());
        }
        Ok(said)
    }
}
