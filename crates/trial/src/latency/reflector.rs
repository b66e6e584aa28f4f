//! The answering side. Input: addresses to listen on. Output: answers to probes, and finally their number.
//!
//! An answer is the probe with the reflector's times in it: same length, one per probe. Anything that is not a
//! probe is not answered, so that two reflectors cannot keep each other busy. Memory is bounded: a buffer per
//! address and per connection, the number of which is limited; a connection that is idle or does not read its
//! answers is closed.

use super::LatencyError;
use super::message::{Message, SIZE_MAX, SIZE_MIN, Turn};
use super::sockets::{self, Control, SocketOptions};
use crate::affinity;
use crate::clock::wall_ns;
use crate::connections::{Connections, Service, lock};
use nearpath_model::CpuSet;
use nix::sys::socket::{MsgFlags, SockaddrLike, SockaddrStorage, recvfrom, sendto};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// Version of the JSON form of [`Reflected`].
pub const REFLECT_SCHEMA: u32 = 1;
/// Maximum number of connections; further ones are closed immediately.
const CONNECTIONS: usize = 256;
/// Timestamps are switched off this long after the last probe that requested times.
const UNWANTED_NS: u64 = 1_000_000_000;
/// Number of ports tried until one is free for both protocols.
const TRIES: u32 = 16;

/// Addresses and options.
#[derive(Debug, Clone)]
pub struct ReflectorPlan {
    /// Addresses; both UDP and TCP on each.
    pub addresses: Vec<IpAddr>,
    /// The port; 0: any free port, which differs by address.
    pub port: u16,
    /// CPUs for the threads; `None`: those of the caller.
    pub cpus: Option<CpuSet>,
    /// Options of the sockets.
    pub options: SocketOptions,
}

/// Result of a reflector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reflected {
    /// Version of this form.
    pub schema: u32,
    /// Datagrams answered.
    pub udp_answered: u64,
    /// Messages on connections answered.
    pub tcp_answered: u64,
    /// Invalid messages, or ones that could not be answered; a connection that sends such is closed.
    pub ignored: u64,
    /// Connections.
    pub connections: u64,
    /// Connections beyond the limit.
    pub refused: u64,
}

/// A running reflector, stopped on drop.
#[derive(Debug)]
pub struct Reflector {
    addresses: Vec<SocketAddr>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    connected: Connections,
    datagrams: Mutex<Vec<UdpSocket>>,
    udp_answered: AtomicU64,
    tcp_answered: AtomicU64,
    ignored: AtomicU64,
    connections: AtomicU64,
    refused: AtomicU64,
}

impl Reflector {
    /// Listens on each address and starts to answer.
    ///
    /// # Errors
    /// An address that does not exist, a port in use, CPUs or options that are refused.
    pub fn start(plan: &ReflectorPlan) -> Result<Self, LatencyError> {
        let mut reflector =
            Self { addresses: Vec::new(), shared: Arc::default(), threads: Vec::new() };
        for &address in &plan.addresses {
            let at = SocketAddr::new(address, plan.port);
            let (listener, socket) =
                listen(at).map_err(LatencyError::of(format!("listening on {at}")))?;
            let started = reflector.serve(plan, listener, socket);
            started.map_err(LatencyError::of(format!("answering on {at}")))?;
        }
        Ok(reflector)
    }

    /// The addresses on which it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The result so far.
    pub fn reflected(&self) -> Reflected {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Reflected {
            schema: REFLECT_SCHEMA,
            udp_answered: get(&self.shared.udp_answered),
            tcp_answered: get(&self.shared.tcp_answered),
            ignored: get(&self.shared.ignored),
            connections: get(&self.shared.connections),
            refused: get(&self.shared.refused),
        }
    }

    fn serve(
        &mut self,
        plan: &ReflectorPlan,
        listener: TcpListener,
        socket: UdpSocket,
    ) -> io::Result<()> {
        let address = listener.local_addr()?;
        let options = plan.options;
        options.set(&socket, address.is_ipv6())?;
        sockets::make_room(&socket);
        self.shared.connected.add(&listener)?;
        lock(&self.shared.datagrams).push(socket.try_clone()?);
        let (shared, accepting) = (Arc::clone(&self.shared), Arc::clone(&self.shared));
        self.spawn(plan, "reflect-udp", move || answer_datagrams(&socket, &shared))?;
        self.spawn(plan, "reflect-tcp", move || {
            let streams = Streams { shared: &accepting, options };
            accepting.connected.accept(&listener, &streams);
        })?;
        self.addresses.push(address);
        Ok(())
    }

    /// A thread on the plan's CPUs, which its child threads inherit.
    fn spawn(
        &mut self,
        plan: &ReflectorPlan,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let (cpus, (pinned, started)) = (plan.cpus.clone(), std::sync::mpsc::channel());
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let result = cpus.as_ref().map_or(Ok(()), affinity::pin);
            let failed = result.is_err();
            let _ = pinned.send(result);
            if !failed {
                work();
            }
        })?;
        self.threads.push(thread);
        started.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended at once")))
    }
}

impl Drop for Reflector {
    /// Wakes all readers and waits for them. Shutting down a UDP socket wakes its reader too, although it may
    /// return ENOTCONN (`inet_shutdown` in net/ipv4/af_inet.c).
    fn drop(&mut self) {
        self.shared.connected.stop();
        for socket in lock(&self.shared.datagrams).iter() {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Both protocols on one port.
fn listen(at: SocketAddr) -> io::Result<(TcpListener, UdpSocket)> {
    let mut tries = if at.port() == 0 { TRIES } else { 1 };
    loop {
        let listener = TcpListener::bind(at)?;
        match UdpSocket::bind(listener.local_addr()?) {
            Ok(socket) => return Ok((listener, socket)),
            Err(reason) if tries == 1 => return Err(reason),
            Err(_) => tries -= 1,
        }
    }
}

/// Turns a message into its answer in place, with times if requested; `None` if it is not a probe of this size.
fn turn(bytes: &mut [u8], stamps: &mut Stamps, stamp_ns: Option<u64>) -> Option<()> {
    // Read before parsing, so that the parsing is part of the turnaround time.
    let read_ns = stamps.on.then(wall_ns);
    let probe = Message::parse(bytes)?;
    let is_whole = usize::try_from(probe.size).is_ok_and(|size| size == bytes.len());
    stamps.wanted(probe.times, read_ns);
    let mut turn = Turn::default();
    if probe.times {
        let read_ns = read_ns.unwrap_or_else(wall_ns);
        let (arrived_ns, stamped) = (stamp_ns.unwrap_or(read_ns), stamp_ns.is_some());
        turn = Turn { arrived_ns, stamped, read_ns, sent_ns: wall_ns() };
    }
    let answer = probe.answer(turn)?;
    is_whole.then(|| answer.write(bytes))
}

/// Whether the reader of a socket requests timestamps, which make each packet more expensive: from the first
/// probe that requests times until there was none for a while.
#[derive(Debug)]
struct Stamps {
    on: bool,
    /// To be set on the socket before the next message is read.
    change: bool,
    last_wanted_ns: u64,
    control: Control,
}

impl Stamps {
    fn new() -> Self {
        Self { on: false, change: false, last_wanted_ns: 0, control: Control::new() }
    }

    /// A probe was read; records whether it requests times.
    fn wanted(&mut self, wanted: bool, read_ns: Option<u64>) {
        if wanted {
            self.last_wanted_ns = read_ns.unwrap_or(u64::MAX);
            self.change = !self.on;
        } else if let Some(now) = read_ns {
            self.change = now > self.last_wanted_ns.saturating_add(UNWANTED_NS);
        }
    }

    /// Receives, with a timestamp if enabled. If the kernel has none, the answers contain the time of reading,
    /// marked as such.
    fn receive<S: SockaddrLike>(
        &mut self,
        socket: &impl AsFd,
        buffer: &mut [u8],
    ) -> io::Result<sockets::Received<S>> {
        if std::mem::take(&mut self.change) {
            self.on = !self.on;
            let _ = sockets::stamp_received(socket, self.on);
        }
        if self.on {
            return sockets::receive(socket, buffer, &mut self.control);
        }
        let (bytes, from) = recvfrom(socket.as_fd().as_raw_fd(), buffer)?;
        Ok(sockets::Received { bytes, stamp_ns: None, from })
    }
}

fn answer_datagrams(socket: &UdpSocket, shared: &Shared) {
    let (mut buffer, mut stamps) = (vec![0; SIZE_MAX + 1], Stamps::new());
    while !shared.connected.stopped() {
        let received = stamps.receive::<SockaddrStorage>(socket, &mut buffer);
        let answered = received.ok().and_then(|received| {
            let bytes = buffer.get_mut(..received.bytes)?;
            turn(bytes, &mut stamps, received.stamp_ns)?;
            sendto(socket.as_raw_fd(), bytes, &received.from?, MsgFlags::MSG_DONTWAIT).ok()
        });
        let count = if answered.is_some() { &shared.udp_answered } else { &shared.ignored };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The connections of a reflector, with the options of its sockets.
struct Streams<'a> {
    shared: &'a Shared,
    options: SocketOptions,
}

impl Service for Streams<'_> {
    const THREAD: &'static str = "reflect-stream";
    const LIMIT: usize = CONNECTIONS;

    fn welcome(&self, stream: &TcpStream) -> io::Result<()> {
        self.options.set(stream, stream.local_addr()?.is_ipv6())
    }

    fn refuse(&self, _: &TcpStream) {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        answer_stream(stream, self.shared)
    }
}

/// Answers until the connection ends. All its messages have the length of the first.
fn answer_stream(mut stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    let mut stamps = Stamps::new();
    let mut buffer = vec![0; SIZE_MIN];
    let mut filled = 0;
    loop {
        let room = buffer.get_mut(filled..).unwrap_or_default();
        let received = stamps.receive::<()>(stream, room);
        let received = match received {
            Ok(received) if received.bytes > 0 => received,
            Err(reason) if sockets::again(&reason) => continue,
            other => return other.map(|_| ()),
        };
        filled += received.bytes;
        if filled < buffer.len() {
            continue;
        }
        let size = Message::parse(&buffer).and_then(|m| usize::try_from(m.size).ok());
        if let Some(size) = size.filter(|&size| size > buffer.len() && buffer.len() == SIZE_MIN) {
            buffer.resize(size, 0);
            continue;
        }
        if turn(&mut buffer, &mut stamps, received.stamp_ns).is_none() {
            shared.ignored.fetch_add(1, Ordering::Relaxed);
            return Err(io::ErrorKind::InvalidData.into());
        }
        stream.write_all(&buffer)?;
        shared.tcp_answered.fetch_add(1, Ordering::Relaxed);
        filled = 0;
    }
}
