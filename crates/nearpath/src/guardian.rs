//! A process of its own that undoes changes when the one that made them ends without having decided that they stay:
//! by kill -9, by a panic, by a lost terminal; or when nobody confirms them in time.
//!
//! Input: a pipe, on which [`Guardian::finish`] says that all is decided or applied, and whose end says that its process
//! is gone; and the journal, which has the changes about which is to be decided. It has a session of its own, so that what
//! ends the terminal does not end it, and takes the journal's lock, which the kernel releases with the process that held it.

use crate::failure::say;
use crate::interrupt::is_ignored;
use anyhow::{Context, bail};
use nearpath_host::Root;
use nearpath_model::Pending;
use nearpath_tune::{Executor, Journal, Live, TuneError, now_s, steering};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::{Errno, read, retry_on_intr};
use rustix::process::{Pid, getppid, setsid};
use rustix::time::Timespec;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::pipe::register;
use std::ffi::CString;
use std::io::{Write, pipe};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// This program, also after another one has taken its place.
const PROGRAM: &str = "/proc/self/exe";
/// All is decided, or applied.
const FINISHED: &[u8] = b".";

/// The guardian of the changes that this process makes.
pub struct Guardian {
    process: Child,
}

impl Guardian {
    /// Starts it, in the namespaces of the calling thread, before the first change.
    ///
    /// # Errors
    /// No process can be started.
    pub fn start(pending: Pending) -> anyhow::Result<Self> {
        let mut command = Command::new(PROGRAM);
        command.args(["tune", "guard"]).stdin(Stdio::piped()).stdout(Stdio::null());
        if let Pending::ConfirmBy(time_s) = pending {
            // It outlives this process: who reads its output must not wait for it.
            command.args(["--confirm-by", &time_s.to_string()]).stderr(Stdio::null());
        }
        // SAFETY: one system call, between fork and exec.
        unsafe { command.pre_exec(|| Ok(setsid().map(drop)?)) };
        let process =
            command.spawn().context("cannot start the process that would undo changes")?;
        Ok(Self { process })
    }

    /// All is decided, or applied and to be confirmed.
    ///
    /// # Errors
    /// It has ended.
    pub fn finish(mut self) -> anyhow::Result<()> {
        let mut pipe = self.process.stdin.take().context("no pipe")?;
        pipe.write_all(FINISHED).context("the process that would undo changes has ended")
    }
}

/// The process that asked for something: if it ends, nobody waits for the result.
#[derive(Debug)]
pub struct Asker(Option<Pid>);

impl Asker {
    /// The parent. nohup(1) says that nobody has to wait: then there is none.
    pub fn parent() -> Self {
        Self(getppid().filter(|_| !is_ignored(SIGHUP)))
    }

    /// Whether it has ended.
    pub fn is_gone(&self) -> bool {
        self.0.is_some() && self.0 != getppid()
    }
}

/// What the guardian does.
///
/// # Errors
/// The changes cannot be undone; they are in the journal.
pub fn guard(confirm_by: Option<u64>) -> anyhow::Result<()> {
    let (signal, raised) = pipe()?;
    for number in [SIGINT, SIGHUP, SIGTERM] {
        register(number, raised.try_clone()?)?;
    }
    let finished = retry_on_intr(|| read(std::io::stdin(), &mut [0])).unwrap_or(0) > 0;
    match confirm_by {
        _ if !finished => undo(true, "the process that made it has ended"),
        None => Ok(()),
        Some(time_s) => {
            let all = wait(time_s, &signal)?;
            undo(all, if all { "stopped by a signal" } else { "not confirmed in time" })
        }
    }
}

/// Waits until this time, or until nothing is pending; returns whether a signal ended it.
fn wait(time_s: u64, signal: &impl AsFd) -> anyhow::Result<bool> {
    let folder = Journal::folder();
    let changed = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&changed, &folder, WatchFlags::MODIFY | WatchFlags::MOVED_TO)?;
    while Journal::read(&folder)?.iter().any(|entry| entry.pending.is_some()) {
        let left_s = time_s.saturating_sub(now_s());
        if left_s == 0 {
            break;
        }
        let mut fds =
            [signal.as_fd(), changed.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // The clock may be set meanwhile: a minute at a time.
        let timeout = Timespec::try_from(Duration::from_secs(left_s.min(60)))?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if fds[0].revents().contains(PollFlags::IN) {
            return Ok(true);
        }
        while read(&changed, &mut [0; 4096]).is_ok_and(|length| length > 0) {}
    }
    Ok(false)
}

/// Undoes what is pending, as soon as no other process changes the host.
fn undo(all: bool, why: &str) -> anyhow::Result<()> {
    let root = Root::live();
    let boot = steering::boot(&root)?;
    let journal = Journal::wait(&Journal::folder(), &boot)?;
    undo_undecided(journal, all, &boot, |line| tell(&format!("{line}: {why}")))
}

/// Opens the journal for changes, and first undoes those that are in effect although nobody decides about them any more.
///
/// # Errors
/// It cannot be opened, or one of them cannot be undone.
pub fn executor(boot: &str, live: Live) -> anyhow::Result<Executor<Live>> {
    let folder = Journal::folder();
    let is_over = |pending: Option<Pending>| pending.is_some_and(|p| p.is_over(now_s()));
    let journal = Journal::open(&folder, boot)?;
    if !journal.entries().iter().any(|entry| is_over(entry.pending)) {
        return Ok(Executor::new(journal, live));
    }
    undo_undecided(journal, false, boot, |line| say(&format!("{line}: left by an earlier run")))?;
    Ok(Executor::new(Journal::open(&folder, boot)?, live))
}

/// Undoes the changes about which nobody decides any more, or all that are pending; a line tells of each.
///
/// # Errors
/// One cannot be undone; it stays in the journal.
fn undo_undecided(
    journal: Journal,
    all: bool,
    boot: &str,
    tell: impl Fn(&str),
) -> anyhow::Result<()> {
    let mut kept = 0;
    for (entry, undone) in Executor::new(journal, Live::new()).undo_undecided(all, boot) {
        let target = &entry.change.target;
        match undone {
            Ok(()) => tell(&format!("undone: change {}, {target}", entry.id)),
            Err(error @ TuneError::Journal { .. }) => {
                kept += 1;
                tell(&format!("undone, but not recorded: change {}, {target}: {error}", entry.id));
            }
            Err(error) => {
                kept += 1;
                tell(&format!("not undone: change {}, {error}", entry.id));
            }
        }
    }
    match kept {
        0 => Ok(()),
        _ => bail!("{kept} changes stay in the journal; see 'nearpath tune status'"),
    }
}

/// On standard error, if there is one, and to the system's log.
fn tell(line: &str) {
    say(line);
    let Ok(line) = CString::new(line) else { return };
    // SAFETY: the format takes one string, which ends with a zero byte.
    unsafe {
        libc::syslog(libc::LOG_DAEMON | libc::LOG_NOTICE, c"nearpath: %s".as_ptr(), line.as_ptr())
    };
}
