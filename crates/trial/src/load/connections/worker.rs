//! A worker like those of nginx: one thread, one listening socket that shares its port, and an epoll set with
//! it and all connections.

use super::ConnectionLoad;
use crate::load::LoadError;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Listen backlog.
const BACKLOG: i32 = 1024;
/// Maximum events per epoll_wait().
const EVENTS: usize = 64;

/// A listening worker.
#[derive(Debug)]
pub struct Worker {
    listener: TcpListener,
    epoll: OwnedFd,
    load: ConnectionLoad,
}

/// Results of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Connections accepted.
    pub accepted: u64,
    /// Requests answered.
    pub answered: u64,
    /// Connections that failed.
    pub broken: u64,
}

impl Worker {
    /// Listens on an address; with port 0 on a port chosen by the kernel, which is then to be passed to the
    /// other workers.
    ///
    /// # Errors
    /// An invalid load, or the kernel refused.
    pub fn listen(address: SocketAddr, load: &ConnectionLoad) -> Result<Self, LoadError> {
        load.check()?;
        let listen = || {
            let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
            sockopt::set_socket_reuseport(&socket, true)?;
            rustix::net::bind(&socket, &address)?;
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            // The readers of a socket are found by the epoll sets that it is in, so it is added at once.
            watch(&epoll, socket.as_fd(), EventFlags::IN)?;
            rustix::net::listen(&socket, BACKLOG)?;
            Ok(Self { listener: socket.into(), epoll, load: load.clone() })
        };
        listen().map_err(LoadError::of(format!("listening on {address}")))
    }

    /// The address on which it listens.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `end` is readable, or hung up.
    ///
    /// # Errors
    /// An error of the kernel that the worker cannot recover from.
    pub fn serve(self, end: BorrowedFd<'_>) -> io::Result<WorkerReport> {
        watch(&self.epoll, end, EventFlags::IN)?;
        let mut connections = Connections::new(&self.load);
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            for event in events.drain(..) {
                let number = event.data.u64();
                if number == number_of(end) {
                    return Ok(connections.report);
                } else if number == number_of(self.listener.as_fd()) {
                    connections.accept(&self.listener, &self.epoll)?;
                } else {
                    connections.go_on(number);
                }
            }
        }
    }
}

/// The data of an event: the descriptor's number.
fn number_of(fd: BorrowedFd<'_>) -> u64 {
    u64::from(fd.as_raw_fd().unsigned_abs())
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>, events: EventFlags) -> rustix::io::Result<()> {
    epoll::add(epoll, fd, EventData::new_u64(number_of(fd)), events)
}

/// The connections of a worker, by descriptor number.
struct Connections {
    open: HashMap<u64, Connection>,
    request: Vec<u8>,
    response: Vec<u8>,
    requests: u32,
    report: WorkerReport,
}

struct Connection {
    stream: TcpStream,
    /// Bytes of the request received.
    asked: usize,
    /// Bytes of the response still to be sent.
    owed: usize,
    /// Complete requests received.
    requests: u32,
}

impl Connections {
    fn new(load: &ConnectionLoad) -> Self {
        Self {
            open: HashMap::new(),
            request: vec![0; load.request_bytes as usize],
            response: vec![0x5a; load.response_bytes as usize],
            requests: load.requests,
            report: WorkerReport::default(),
        }
    }

    /// Accepts all pending connections.
    fn accept(&mut self, listener: &TcpListener, epoll: &OwnedFd) -> io::Result<()> {
        loop {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The client has closed it in the meantime, or a signal.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            self.report.accepted += 1;
            let events = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
            watch(epoll, stream.as_fd(), events)?;
            let connection = Connection { stream, asked: 0, owed: 0, requests: 0 };
            self.open.insert(number_of(connection.stream.as_fd()), connection);
        }
    }

    /// Handles a connection as far as possible now; it is closed when nothing is left to do.
    fn go_on(&mut self, number: u64) {
        let Some(connection) = self.open.get_mut(&number) else { return };
        let result = connection.advance(&mut self.request, &self.response, self.requests);
        let waits = matches!(&result, Err(error) if error.kind() == ErrorKind::WouldBlock);
        if waits {
            return;
        }
        if let Some(connection) = self.open.remove(&number) {
            self.report.answered += u64::from(connection.requests);
            self.report.broken += u64::from(result.is_err());
        }
    }
}

impl Connection {
    /// Reads and answers until the last answer is sent, the client has disconnected, or it would block (an
    /// error).
    fn advance(&mut self, request: &mut [u8], response: &[u8], requests: u32) -> io::Result<()> {
        loop {
            while let Some(owed @ [_, ..]) = response.get(response.len() - self.owed..) {
                match self.stream.write(owed) {
                    Ok(sent) => self.owed -= sent,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            if self.requests == requests {
                return Ok(());
            }
            match self.stream.read(request.get_mut(self.asked..).unwrap_or_default()) {
                Ok(0) => return Ok(()),
                Ok(read) => self.asked += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.asked == request.len() {
                self.asked = 0;
                self.owed = response.len();
                self.requests += 1;
            }
        }
    }
}
