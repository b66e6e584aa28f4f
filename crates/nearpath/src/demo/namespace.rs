//! A network namespace without a name. It lives as long as its file descriptor, or a socket or thread in it,
//! and so disappears with this process however that ends.

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
    /// Creates one that holds only a loopback device, which is down.
    ///
    /// # Errors
    /// No privilege, or a kernel without network namespaces.
    pub(super) fn create() -> Result<Self> {
        on_own_thread(|| {
            // SAFETY: only unsharing the file descriptor table (CLONE_FILES) would break
            // assumptions of other code.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(explain)?;
            let path = "/proc/thread-self/ns/net";
            let file: OwnedFd = File::open(path).context(path)?.into();
            let inode = fstat(&file).context(path)?.st_ino;
            Ok(Self { file, inode })
        })
    }

    /// The file descriptor that keeps it alive.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Its inode, which identifies it in the kernel and in lsns(8).
    pub(super) fn inode(&self) -> u64 {
        self.inode
    }

    /// Runs `work` on a new thread inside the namespace. Sockets and threads that it creates stay there.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_own_thread(|| {
            move_into_link_name_space(self.file(), Some(LinkNameSpaceType::Network))
                .context("cannot enter the demo's network namespace")?;
            work()
        })
    }
}

/// The namespace is a property of a thread: with a new thread the caller stays in its own.
fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, work).context("a thread")?;
        // A panic of `work` is propagated.
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn explain(errno: Errno) -> anyhow::Error {
    match errno {
        Errno::PERM | Errno::ACCESS => anyhow!(
            "the demo creates network namespaces, which requires root (CAP_SYS_ADMIN): use \
             sudo, or --privileged in a container"
        ),
        Errno::INVAL | Errno::NOSYS => {
            anyhow!("the demo requires network namespaces (CONFIG_NET_NS), which this kernel lacks")
        }
        other => anyhow!("cannot create a network namespace: {other}"),
    }
}
