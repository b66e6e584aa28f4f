//! The receiving side: counts packets for probers. Input: addresses to listen on. Output: the counts, returned
//! over the control connection of each prober.
//!
//! Memory is bounded: a few probers at a time, with a limited number of flows and short lines; one that is
//! silent for a minute is disconnected. It sends nothing but answers on its control connections.

use super::PacketsError;
use super::kernel::Reading;
use super::receiver::{Counts, IDLE, Receivers};
use super::wire::{Answer, Counted, Request, parse_request, read_line, write_line};
use crate::affinity;
use crate::connections::{Connections, Service};
use crate::latency::make_room;
use nearpath_host::Root;
use nearpath_model::CpuSet;
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use std::io::{self, BufReader};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Maximum number of probers; further ones are rejected.
const PROBERS: usize = 4;
/// Everything has arrived when nothing arrived for this long, which is longer than a receiver's wait; or after
/// the second time.
const QUIET: Duration = Duration::from_millis(3 * IDLE.as_millis() as u64);
const LONGEST: Duration = Duration::from_secs(2);

/// A running sink, stopped on drop.
#[derive(Debug)]
pub struct Sink {
    addresses: Vec<SocketAddr>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    connected: Connections,
    cpus: Option<CpuSet>,
}

impl Sink {
    /// Listens on each address; the receiving threads run on these CPUs. With port 0 each address gets a free
    /// one.
    ///
    /// # Errors
    /// An address that does not exist, a port in use, CPUs that cannot be used.
    pub fn start(
        addresses: &[IpAddr],
        port: u16,
        cpus: Option<&CpuSet>,
    ) -> Result<Self, PacketsError> {
        if let Some(cpus) = cpus {
            let tried = thread::scope(|scope| scope.spawn(|| affinity::pin(cpus)).join());
            tried
                .unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
                .map_err(PacketsError::of("--cpus"))?;
        }
        let shared = Arc::new(Shared { cpus: cpus.cloned(), ..Shared::default() });
        let mut sink = Self { addresses: Vec::new(), shared, threads: Vec::new() };
        for &address in addresses {
            let at = SocketAddr::new(address, port);
            sink.listen(at).map_err(PacketsError::of(format!("listening on {at}")))?;
        }
        Ok(sink)
    }

    /// The addresses on which it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    fn listen(&mut self, at: SocketAddr) -> io::Result<()> {
        let listener = TcpListener::bind(at)?;
        self.addresses.push(listener.local_addr()?);
        self.shared.connected.add(&listener)?;
        let shared = Arc::clone(&self.shared);
        let named = thread::Builder::new().name("sink".to_owned());
        self.threads.push(named.spawn(move || shared.connected.accept(&listener, &*shared))?);
        Ok(())
    }
}

impl Drop for Sink {
    /// Wakes all readers and waits for them.
    fn drop(&mut self) {
        self.shared.connected.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The control connections of a sink.
impl Service for Shared {
    const THREAD: &'static str = "sink-control";
    const LIMIT: usize = PROBERS;

    fn welcome(&self, _: &TcpStream) -> io::Result<()> {
        Ok(())
    }

    fn refuse(&self, stream: &TcpStream) {
        let reason = format!("{PROBERS} other measurements are running");
        let _ = write_line(stream, &Answer::Refused { reason });
    }

    fn serve(&self, stream: &TcpStream) -> io::Result<()> {
        serve(stream, self)
    }
}

/// The state of a prober's requests.
struct Session {
    receivers: Receivers,
    trial: u32,
    before: Option<(Counts, Reading)>,
}

/// Answers until the connection ends.
fn serve(stream: &TcpStream, shared: &Shared) -> io::Result<()> {
    let root = Root::live();
    let mut from = BufReader::new(stream);
    let mut session = None;
    while let Some(line) = read_line(&mut from)? {
        let answer = match (parse_request(&line), &mut session) {
            (Some(Request::Prepare { ports, size }), session) => {
                // The sockets of the previous request first: they may have the same ports.
                *session = None;
                match prepare(stream, &ports, size, shared.cpus.as_ref()) {
                    Ok((number, receivers)) => {
                        *session = Some(Session { receivers, trial: 0, before: None });
                        Answer::Ready { session: number, boot: boot(&root) }
                    }
                    Err(reason) => Answer::Refused { reason: reason.to_string() },
                }
            }
            (Some(Request::Begin { trial }), Some(session)) => {
                session.trial = trial;
                session.receivers.begin(trial);
                let before = session.receivers.counts(trial);
                session.before = Some((before, Reading::take(&root)));
                Answer::Begun
            }
            (Some(Request::End { sent }), Some(session)) => match session.before.take() {
                Some(before) => {
                    let sent = sent.into_iter().fold(0, u64::saturating_add);
                    Answer::Counted(Box::new(count(session, &before, sent, &root)))
                }
                None => Answer::Refused { reason: "no trial has been started".to_owned() },
            },
            _ => Answer::Refused { reason: "invalid request in this state".to_owned() },
        };
        write_line(stream, &answer)?;
    }
    Ok(())
}

/// The boot id, by which two programs know that they are on one host; empty if there is none.
pub(super) fn boot(root: &Root) -> String {
    root.text("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// Sockets that receive only from the prober's ports: they are connected.
fn prepare(
    stream: &TcpStream,
    ports: &[u16],
    size: u32,
    cpus: Option<&CpuSet>,
) -> io::Result<(u32, Receivers)> {
    let (local, mut peer) = (stream.local_addr()?, stream.peer_addr()?);
    let family = if local.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let mut sockets = Vec::new();
    for &port in ports {
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        // All have the same address; the one connected to the sender receives its packets.
        set_socket_reuseaddr(&socket, true)?;
        make_room(&socket);
        bind(&socket, &local)?;
        peer.set_port(port);
        connect(&socket, &peer)?;
        sockets.push(UdpSocket::from(socket));
    }
    let mut session = [0; 4];
    rustix::rand::getrandom(&mut session[..], rustix::rand::GetRandomFlags::empty())?;
    let session = u32::from_ne_bytes(session);
    let size = usize::try_from(size).map_err(io::Error::other)?;
    Ok((session, Receivers::start(sockets, session, size, cpus)?))
}

/// Waits until everything has arrived, or nothing arrives any more.
fn count(session: &Session, before: &(Counts, Reading), sent: u64, root: &Root) -> Counted {
    let begin = Instant::now();
    let (mut last, mut since) = (session.receivers.counts(session.trial), begin);
    while since.elapsed() < QUIET && begin.elapsed() < LONGEST {
        thread::sleep(IDLE / 2);
        let now = session.receivers.counts(session.trial);
        if now.received < sent && now.received != last.received {
            since = Instant::now();
        }
        last = now;
    }
    let (counts, reading) = before;
    Counted {
        received: last.received,
        reordered: last.reordered,
        duplicated: last.duplicated,
        socket_drops: counts.drops.zip(last.drops).map(|(then, now)| now.wrapping_sub(then)),
        threads_ns: last.used_ns.saturating_sub(counts.used_ns),
        kernel: reading.until(&Reading::take(root)),
    }
}
