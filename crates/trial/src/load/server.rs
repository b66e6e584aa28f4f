//! The receiving side. Input: a plan and the addresses to listen on. Output: the endpoints for the client, and
//! finally what was received.

use super::report::{LoadCount, LoadKind, Part};
use super::{LoadError, LoadPlan, LoadReport};
use crate::affinity;
use nearpath_model::CpuSet;
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// First byte of a datagram that ends its flow; those of the load have a different one.
pub(super) const END_OF_FLOW: u8 = 0xff;
/// How long the server waits for data still in flight after the client has ended.
const GRACE: Duration = Duration::from_millis(500);
/// Timeout to accept the client's connections.
const ACCEPTING: Duration = Duration::from_secs(10);
/// Maximum size of a read, and the requested receive buffer.
const BUFFER_BYTES: usize = 256 << 10;

/// The endpoints on one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// TCP port for requests.
    pub requests: u16,
    /// TCP port for streams.
    pub streams: u16,
    /// UDP port for datagrams.
    pub datagrams: u16,
}

/// A running server. Dropping it without [`Server::finish`] also ends its threads.
#[derive(Debug)]
pub struct Server {
    endpoints: Vec<Endpoint>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Vec<Part>>>,
    /// Disconnected when the last thread has ended.
    done: Receiver<()>,
    /// Disconnected when every connection has its reader.
    accepted: Receiver<()>,
    started: Instant,
}

/// State shared by the threads and their owner: the sockets, used to wake blocked threads.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    sockets: Mutex<Vec<OwnedFd>>,
}

impl Shared {
    /// Keeps a second handle of a socket, so that [`Shared::stop`] can wake its reader.
    fn register(&self, socket: OwnedFd) {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        if self.stopping() {
            wake(&socket);
        }
        sockets.push(socket);
    }

    fn stop(&self) {
        let sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        self.stop.store(true, Ordering::Relaxed);
        sockets.iter().for_each(wake);
    }

    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Ends a blocked read or accept. Linux wakes listeners and UDP sockets too, although it may return ENOTCONN
/// (`inet_shutdown` in net/ipv4/af_inet.c).
fn wake(socket: &OwnedFd) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

impl Server {
    /// Listens on each address and starts the readers, all of them on `cpus`.
    ///
    /// # Errors
    /// An invalid plan, an address that does not exist, CPUs that cannot be used.
    pub fn start(plan: &LoadPlan, addresses: &[IpAddr], cpus: &CpuSet) -> Result<Self, LoadError> {
        plan.check()?;
        let ((alive, done), (accepting, accepted)) = (channel(), channel());
        let mut server = Self {
            endpoints: Vec::new(),
            shared: Arc::default(),
            threads: Vec::new(),
            done,
            accepted,
            started: Instant::now(),
        };
        for &address in addresses {
            let tcp = |name| TcpListener::bind((address, 0)).map_err(LoadError::of(name));
            let requests = tcp(format!("listening on {address} for requests"))?;
            let streams = tcp(format!("listening on {address} for streams"))?;
            let datagrams = UdpSocket::bind((address, 0))
                .map_err(LoadError::of(format!("binding UDP to {address}")))?;
            let error = || LoadError::of(format!("starting the server on {address}"));
            server.endpoints.push(Endpoint {
                address,
                requests: requests.local_addr().map_err(error())?.port(),
                streams: streams.local_addr().map_err(error())?.port(),
                datagrams: datagrams.local_addr().map_err(error())?.port(),
            });
            // A larger buffer reduces loss; the kernel may grant less.
            let _ = sockopt::set_socket_recv_buffer_size(&datagrams, 4 * BUFFER_BYTES);
            let handles = [&requests, &streams].map(TcpListener::try_clone);
            for handle in handles {
                server.shared.register(handle.map_err(error())?.into());
            }
            server.shared.register(datagrams.try_clone().map_err(error())?.into());
            for work in [
                Work::Requests(requests, plan.requests.connections),
                Work::Streams(streams, plan.streams.connections),
                Work::Datagrams(datagrams, plan.datagrams.flows),
            ] {
                let ends = (alive.clone(), accepting.clone());
                server.spawn(work, plan, address.is_ipv6(), cpus, ends).map_err(error())?;
            }
        }
        Ok(server)
    }

    /// The endpoints for the client.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Waits until all connections of the plan are accepted, each by its own thread. To be called after the
    /// client has started.
    ///
    /// # Errors
    /// Some connections did not arrive.
    pub fn wait_for_readers(&self) -> Result<(), LoadError> {
        // Nothing is ever sent: the channel is disconnected by the last thread that has accepted.
        match self.accepted.recv_timeout(ACCEPTING) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                let reason = io::Error::from(io::ErrorKind::TimedOut);
                Err(LoadError::of("accepting the client's connections")(reason))
            }
        }
    }

    /// One thread, which reports through a channel whether it could be pinned.
    fn spawn(
        &mut self,
        work: Work,
        plan: &LoadPlan,
        ipv6: bool,
        cpus: &CpuSet,
        (alive, accepting): (Sender<()>, Sender<()>),
    ) -> io::Result<()> {
        let (pinned, started) = channel();
        let (plan, cpus, shared) = (plan.clone(), cpus.clone(), Arc::clone(&self.shared));
        let name = format!("server-{}{}", work.name(), if ipv6 { 6 } else { 4 });
        let thread = thread::Builder::new().name(name.clone()).spawn(move || {
            let _alive = alive;
            let result = affinity::pin(&cpus);
            let failed = result.is_err();
            let _ = pinned.send(result);
            if failed { Vec::new() } else { work.run(&name, &plan, ipv6, &shared, accepting) }
        })?;
        self.threads.push(thread);
        started.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended at once")))
    }

    /// Waits for data still in flight, ends the readers and returns what they received. To be called after the
    /// client has finished.
    pub fn finish(mut self) -> LoadReport {
        // Nothing is ever sent: the channel is disconnected by the last thread that holds its other end.
        let _ = self.done.recv_timeout(GRACE);
        LoadReport::of(self.started.elapsed(), self.end())
    }

    fn end(&mut self) -> Vec<Part> {
        self.shared.stop();
        self.threads.drain(..).flat_map(|thread| thread.join().unwrap_or_default()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The task of a server thread; the number is that of connections or flows to expect.
enum Work {
    Requests(TcpListener, u16),
    Streams(TcpListener, u16),
    Datagrams(UdpSocket, u16),
}

impl Work {
    /// Short, because the kernel keeps 15 bytes of a thread's name.
    fn name(&self) -> &'static str {
        match self {
            Self::Requests(..) => "requests",
            Self::Streams(..) => "stream",
            Self::Datagrams(..) => "udp",
        }
    }

    fn run(
        self,
        name: &str,
        plan: &LoadPlan,
        ipv6: bool,
        shared: &Shared,
        accepting: Sender<()>,
    ) -> Vec<Part> {
        match self {
            Self::Requests(listener, connections) => {
                accept_each(&listener, connections, name, shared, accepting, |stream| {
                    // Requests are counted by the client, which also sees the responses.
                    let count = LoadCount::new(LoadKind::TcpRequests, ipv6);
                    let mut bytes = 0;
                    let result = answer(stream, plan, &mut bytes);
                    Part {
                        count: LoadCount { received_bytes: bytes, ..count },
                        failure: failure(name, result),
                    }
                })
            }
            Self::Streams(listener, connections) => {
                let write_bytes = u64::from(plan.streams.write_bytes.max(1));
                accept_each(&listener, connections, name, shared, accepting, |stream| {
                    let count = LoadCount::new(LoadKind::TcpStream, ipv6);
                    let mut bytes = 0;
                    let result = swallow(stream, &mut bytes);
                    let received = bytes / write_bytes;
                    Part {
                        count: LoadCount { received, received_bytes: bytes, ..count },
                        failure: failure(name, result),
                    }
                })
            }
            Self::Datagrams(socket, flows) => {
                drop(accepting);
                let mut count = LoadCount::new(LoadKind::UdpDatagrams, ipv6);
                let result = receive(&socket, flows, shared, &mut count);
                vec![Part { count, failure: failure(name, result) }]
            }
        }
    }
}

fn failure(name: &str, result: io::Result<()>) -> Option<String> {
    result.err().map(|reason| format!("{name}: {reason}"))
}

/// Accepts this many connections and serves each in its own thread, which inherits the CPUs of this one.
/// `accepting` is dropped when the last one has its thread.
fn accept_each(
    listener: &TcpListener,
    connections: u16,
    name: &str,
    shared: &Shared,
    accepting: Sender<()>,
    serve: impl Fn(&TcpStream) -> Part + Sync,
) -> Vec<Part> {
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..connections {
            let Ok((stream, _)) = listener.accept() else { break };
            // Without a second handle the stream could not be woken at the end.
            let Ok(handle) = stream.try_clone() else { break };
            shared.register(handle.into());
            let serve = &serve;
            let work = move || {
                let part = serve(&stream);
                // The second handle keeps it open; the client waits for its end.
                let _ = stream.shutdown(Shutdown::Both);
                part
            };
            match thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work) {
                Ok(thread) => threads.push(thread),
                Err(_) => break,
            }
        }
        drop(accepting);
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
    })
}

/// Reads requests and writes responses until the client closes the connection.
fn answer(mut stream: &TcpStream, plan: &LoadPlan, bytes: &mut u64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut request = vec![0; plan.requests.request_bytes as usize];
    let response = vec![0x5a; plan.requests.response_bytes as usize];
    loop {
        match stream.read_exact(&mut request) {
            Ok(()) => *bytes += request.len() as u64,
            Err(reason) if reason.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(reason) => return Err(reason),
        }
        stream.write_all(&response)?;
    }
}

/// Reads a stream to its end.
fn swallow(mut stream: &TcpStream, bytes: &mut u64) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => *bytes += read as u64,
            Err(reason) if reason.kind() == io::ErrorKind::Interrupted => {}
            Err(reason) => return Err(reason),
        }
    }
}

/// Receives datagrams until each flow has ended or the server stops.
fn receive(
    socket: &UdpSocket,
    flows: u16,
    shared: &Shared,
    count: &mut LoadCount,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let mut open = flows;
    while open > 0 {
        match socket.recv(&mut buffer) {
            Ok(0) | Err(_) if shared.stopping() => return Ok(()),
            Ok(1) if buffer.first() == Some(&END_OF_FLOW) => open -= 1,
            Ok(read) => {
                count.received += 1;
                count.received_bytes += read as u64;
            }
            Err(reason) if reason.kind() == io::ErrorKind::Interrupted => {}
            Err(reason) => return Err(reason),
        }
    }
    Ok(())
}
