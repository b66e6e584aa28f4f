//! A network namespace without a name: it lives as long as its file or a socket or thread in it,
//! so that it goes away with this process in whatever way that ends.

use anyhow::{Context, Result, anyhow};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;

/// A network namespace.
#[derive(Debug)]
pub(super) struct Namespace {
    file: OwnedFd,
    inode: u64,
}

impl Namespace {
    /// A new one, with nothing in it but a loopback device that is down.
    ///
    /// # Errors
    /// No privilege, or no namespaces in this kernel.
    pub(super) fn create() -> Result<Self> {
        on_own_thread(|| {
            // SAFETY: of what may be unshared only the table of open files (CLONE_FILES) breaks
            // what other code relies on.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(explain)?;
            let path = "/proc/thread-self/ns/net";
            let file: OwnedFd = File::open(path).context(path)?.into();
            let inode = fstat(&file).context(path)?.st_ino;
            Ok(Self { file, inode })
        })
    }

    /// The file that holds it.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Its inode, by which the kernel and `lsns` tell namespaces apart.
    pub(super) fn inode(&self) -> u64 {
        self.inode
    }

    /// Runs `work` on a thread of its own within the namespace. Sockets and threads that it makes
    /// stay there.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_own_thread(|| {
            move_into_link_name_space(self.file(), Some(LinkNameSpaceType::Network))
                .context("entering the demo's network namespace")?;
            work()
        })
    }
}

/// A namespace is a property of a thread: a thread of its own leaves the caller where it is.
fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, work).context("a thread")?;
        // A panic of `work` is passed on as it is.
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn explain(errno: Errno) -> anyhow::Error {
    match errno {
        Errno::PERM | Errno::ACCESS => anyhow!(
            "the demo needs network namespaces of its own, which takes root (CAP_SYS_ADMIN): use \
             sudo, or in a container --privileged"
        ),
        Errno::INVAL | Errno::NOSYS => {
            anyhow!("this kernel has no network namespaces (CONFIG_NET_NS), which the demo needs")
        }
        other => anyhow!("making a network namespace: {other}"),
    }
}
