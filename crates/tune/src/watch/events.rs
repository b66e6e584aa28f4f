//! What the kernel tells of interfaces and queues that come, go and change, so that nobody need ask
//! again and again: messages of rtnetlink about links (rtnetlink(7), `RTMGRP_LINK`), and those that
//! udev gets, of interfaces and queues (`kobject_uevent_net_broadcast` of lib/kobject_uevent.c).
//!
//! In goes nothing, out comes that something happened. What it was is not looked at: who is told looks
//! at the host. The kernel sends to each network namespace what is its own.

use netlink_sys::protocols::{NETLINK_KOBJECT_UEVENT, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// `RTMGRP_LINK` of include/uapi/linux/rtnetlink.h.
const LINKS: u32 = 1;
/// The group of messages that are the kernel's own, and not udev's.
const OF_KERNEL: u32 = 1;
/// Bytes of a message that are read; the rest is not looked at either.
const MESSAGE: usize = 8192;
/// Messages that are taken for one event at most.
const MOST: usize = 10_000;

/// Listens in the network namespace of the thread that makes it.
#[derive(Debug)]
pub struct Events {
    sockets: Vec<Socket>,
}

impl Events {
    /// Begins to listen.
    ///
    /// # Errors
    /// The kernel gives no socket.
    pub fn listen() -> io::Result<Self> {
        let links = subscribe(NETLINK_ROUTE, LINKS)?;
        let mut sockets = vec![links];
        // A namespace that is not the first user's gets none; links are told of all the same.
        sockets.extend(subscribe(NETLINK_KOBJECT_UEVENT, OF_KERNEL));
        Ok(Self { sockets })
    }

    /// Waits until something happens, that time has passed, or `stop` can be read from. Whether
    /// something happened; all that has happened until now is one event.
    ///
    /// # Errors
    /// The kernel does not let us wait.
    pub fn wait(&self, stop: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
        let stop = PollFd::from_borrowed_fd(stop, PollFlags::IN);
        let sockets = self.sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = std::iter::once(stop).chain(sockets).collect();
        let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Of all of them, and not only up to the first.
        Ok(self.sockets.iter().filter(|socket| drained(socket)).count() > 0)
    }
}

fn subscribe(protocol: isize, groups: u32) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.set_non_blocking(true)?;
    socket.bind(&SocketAddr::new(0, groups))?;
    Ok(socket)
}

/// Takes all messages that wait; whether there was one. When there were more than the socket holds the
/// kernel has dropped some, and says so once (ENOBUFS): that is an event, too.
fn drained(socket: &Socket) -> bool {
    let mut happened = false;
    // Not for ever, when they come faster than they are taken.
    for _ in 0..MOST {
        let mut message = Vec::with_capacity(MESSAGE);
        match socket.recv(&mut message, 0) {
            Ok(_) => happened = true,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => happened = true,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    happened
}
