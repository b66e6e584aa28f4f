//! `nearpath steer`: connections go to the worker that is nearest to the CPU they are received on.

use crate::failure::{Failure, say};
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
Finds the sockets that share the port (SO_REUSEPORT), the worker that reads from each and the CPUs
it may run on, and attaches a program that gives each connection to the worker nearest to the CPU on
which it is received. The server is neither changed nor restarted; when it restarts its sockets are
new, and the steering is gone. It takes root and a kernel from 5.10 on with BTF.

EXAMPLES
  nearpath steer --port 8181 --dry-run     which worker each CPU's connections would go to
  nearpath steer --port 8181               do it
  nearpath steer --port 8181 --pin         do it, with workers that are not pinned to CPUs by themselves
  nearpath steer --port 53 --udp           the same for datagrams
  nearpath steer status                    the REUSEPORT groups here, and whose program each has
  nearpath steer off --port 8181           take it off again";

/// Arguments of `steer`.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Steer {
    #[command(subcommand)]
    action: Option<Action>,
    /// The port that the server's sockets share
    #[arg(long, value_name = "PORT", required = true)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// UDP sockets instead of listening TCP sockets
    #[arg(long)]
    udp: bool,
    /// The address, where several groups have the port
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Only a group that this process holds sockets of
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Attach a classic program: the CPU's number modulo the number of sockets
    #[arg(long)]
    cbpf: bool,
    /// Pin workers that may run on every CPU, each to a CPU of its own, and steer then; 'off' puts both back
    #[arg(long)]
    pin: bool,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    kernel: KernelBtf,
}

/// The option for kernels without BTF.
#[derive(Debug, Args)]
struct KernelBtf {
    /// The kernel's BTF from a file, for a kernel that has none of its own
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
    /// Show the REUSEPORT groups, and whose program each has
    Status(StatusOf),
    /// Take nearpath's programs off
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
    /// Only of groups with this port
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
            (None, None) => Err(Failure::Usage("--port is missing".to_owned())),
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
                    "{local} is steered by nearpath already, since {}; take that off first: \
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
                apply(plan, root, self.kernel.file(), &boot)?
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

/// What would be changed.
fn dry(plan: Vec<Change>, btf: Option<&Path>) -> Result<Vec<Change>, TuneError> {
    let mut shown = Vec::new();
    let live = Live::new().with_btf(btf);
    let check = |change: Change| live.check(change);
    let made = |change: &Change| shown.push(change.clone());
    Executor::dry(DryRun { check, made, undone: |_: &Change| {} }).apply(plan)?;
    Ok(shown)
}

fn apply(
    plan: Vec<Change>,
    root: &Root,
    btf: Option<&Path>,
    boot: &str,
) -> Result<Vec<Change>, TuneError> {
    let journal = Journal::open(&Journal::folder(), boot)?;
    let mut executor = Executor::new(journal, Live::new().with_btf(btf));
    forget_what_is_gone(&mut executor, root, btf, boot)?;
    executor.apply(plan)
}

/// Closes steering whose sockets are closed: no later boot or server has them.
fn forget_what_is_gone(
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
            // Threads that have ended have nothing to put back, others may run everywhere again.
            undo_pins(executor, &entry, boot)?;
            executor.forget(&entry)?;
        }
    }
    Ok(())
}

/// Puts back where workers may run that were pinned for a steering. Those of another boot are gone.
fn undo_pins(executor: &mut Executor<Live>, steering: &Entry, boot: &str) -> Result<(), TuneError> {
    let entries = executor.entries();
    for pin in steering::pins_of(steering, &entries) {
        if pin.boot != boot {
            executor.forget(pin)?;
            continue;
        }
        match executor.undo(pin) {
            // What somebody else has set since is theirs.
            Err(TuneError::Drift { target, now, .. }) => {
                say(&format!(
                    "{target}: somebody else has set it to {now} since; it is left alone"
                ));
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
        let journal = Journal::open(&Journal::folder(), &boot)?;
        let btf = self.kernel.file();
        let mut executor = Executor::new(journal, Live::new().with_btf(btf));
        forget_what_is_gone(&mut executor, root, btf, &boot)?;
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
                    "{} is steered in network namespace {number}: use --netns there",
                    group.local
                ));
                continue;
            }
            // The pins first: they are found by the steering's entry.
            undo_pins(&mut executor, &entry, &boot)?;
            executor.undo(&entry)?;
            said.push(format!("{} is not steered any more", group.local));
        }
        if said.is_empty() {
            said.push("nothing is steered by nearpath here".to_owned());
        }
        Ok(said)
    }
}
