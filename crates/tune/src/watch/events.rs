//! Kernel events for interfaces and queues that are added, removed or changed, so that there is no need to poll:
//! rtnetlink messages about links (rtnetlink(7), `RTMGRP_LINK`), and uevents of interfaces and queues
//! (`kobject_uevent_net_broadcast` of lib/kobject_uevent.c).
//!
//! Output: that something happened. The messages are not parsed: the caller checks the host. The kernel sends each
//! network namespace only its own events.

use netlink_sys::protocols::{NETLINK_KOBJECT_UEVENT, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// `RTMGRP_LINK` of include/uapi/linux/rtnetlink.h.
const LINKS: u32 = 1;
/// The multicast group of the kernel's own messages, not those of udev.
const OF_KERNEL: u32 = 1;
/// Size of the read buffer; the rest of a message is discarded.
const MESSAGE: usize = 8192;
/// Maximum number of messages counted as one event.
const MOST: usize = 10_000;

/// Listens in the network namespace of the thread that creates it.
#[derive(Debug)]
pub struct Events {
    sockets: Vec<Socket>,
}

impl Events {
    /// Starts to listen.
    ///
    /// # Errors
    /// No socket can be opened.
    pub fn listen() -> io::Result<Self> {
        let links = subscribe(NETLINK_ROUTE, LINKS)?;
        let mut sockets = vec![links];
        // Namespaces not owned by the initial user namespace get no uevents; link messages still arrive.
        sockets.extend(subscribe(NETLINK_KOBJECT_UEVENT, OF_KERNEL));
        Ok(Self { sockets })
    }

    /// Waits until something happens, the time has passed, or `stop` becomes readable. Returns whether something
    /// happened; everything up to now is one event.
    ///
    /// # Errors
    /// poll(2) failed.
    pub fn wait(&self, stop: BorrowedFd<'_>, time: Duration) -> io::Result<bool> {
        let stop = PollFd::from_borrowed_fd(stop, PollFlags::IN);
        let sockets = self.sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = std::iter::once(stop).chain(sockets).collect();
        let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        // Drain all sockets, not only up to the first with messages.
        Ok(self.sockets.iter().filter(|socket| drained(socket)).count() > 0)
    }
}

fn subscribe(protocol: isize, groups: u32) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    socket.set_non_blocking(true)?;
    socket.bind(&SocketAddr::new(0, groups))?;
    Ok(socket)
}

/// Reads all pending messages; returns whether there was one. If the socket buffer overflowed, the kernel reports
/// ENOBUFS once, which is an event too.
fn drained(socket: &Socket) -> bool {
    let mut happened = false;
    // Bounded, in case they arrive faster than they are read.
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
