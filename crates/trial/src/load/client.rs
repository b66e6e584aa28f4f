//! The sending side. Input: a plan and the server's endpoints. Output, at the end of the load: what was sent
//! and answered.

use super::report::{LoadCount, LoadKind, LoadReport, Part};
use super::server::END_OF_FLOW;
use super::{Endpoint, LoadError, LoadPlan};
use crate::affinity;
use crate::pacer::Pacer;
use nearpath_model::CpuSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Timeout of a connection, and of an answer: a slower path is considered broken.
const PATIENCE: Duration = Duration::from_secs(2);
/// Filler of messages.
const FILL: u8 = 0x5a;

/// A running client. Dropping it without [`Client::finish`] also ends its threads.
#[derive(Debug)]
pub struct Client {
    stop: Arc<AtomicBool>,
    started: Instant,
    threads: Vec<JoinHandle<Part>>,
}

/// A connection or flow, and its load.
enum Flow {
    Requests(TcpStream),
    Stream(TcpStream),
    Datagrams(UdpSocket),
}

impl Client {
    /// Connects to each endpoint and starts sending, with all threads on `cpus`.
    ///
    /// # Errors
    /// An invalid plan, a server that does not answer, CPUs that cannot be used.
    pub fn start(
        plan: &LoadPlan,
        endpoints: &[Endpoint],
        cpus: &CpuSet,
    ) -> Result<Self, LoadError> {
        plan.check()?;
        let mut flows = Vec::new();
        for endpoint in endpoints {
            connect_all(plan, endpoint, &mut flows)?;
        }
        let (stop, started) = (Arc::default(), Instant::now());
        let mut client = Self { stop, started, threads: Vec::new() };
        // A separate thread for the affinity: its threads inherit it, the caller keeps its own.
        let (stop, threads) = (Arc::clone(&client.stop), &mut client.threads);
        thread::scope(|scope| {
            let starter = scope.spawn(move || -> io::Result<()> {
                affinity::pin(cpus)?;
                for (flow, ipv6, index, of) in flows {
                    threads.push(flow.spawn(plan, ipv6, (index, of), Arc::clone(&stop))?);
                }
                Ok(())
            });
            starter.join().unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
        })
        .map_err(LoadError::of("starting the client"))?;
        Ok(client)
    }

    /// Ends the load and returns what was sent and answered. The server must still be running, as each
    /// connection waits for its end; add the server's counts from [`Server::finish`].
    ///
    /// [`Server::finish`]: super::Server::finish
    pub fn finish(mut self) -> LoadReport {
        self.stop.store(true, Ordering::Relaxed);
        let duration = self.started.elapsed();
        LoadReport::of(duration, self.end())
    }

    fn end(&mut self) -> Vec<Part> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).filter_map(|thread| thread.join().ok()).collect()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end();
    }
}

/// Opens all connections and flows to one endpoint: each with its family and its index among those of its kind.
fn connect_all(
    plan: &LoadPlan,
    endpoint: &Endpoint,
    flows: &mut Vec<(Flow, bool, u16, u16)>,
) -> Result<(), LoadError> {
    let ipv6 = endpoint.address.is_ipv6();
    for index in 0..plan.requests.connections {
        let stream = connect(endpoint.address, endpoint.requests)?;
        flows.push((Flow::Requests(stream), ipv6, index, plan.requests.connections));
    }
    for index in 0..plan.streams.connections {
        let stream = connect(endpoint.address, endpoint.streams)?;
        flows.push((Flow::Stream(stream), ipv6, index, plan.streams.connections));
    }
    for index in 0..plan.datagrams.flows {
        let socket = open(endpoint.address, endpoint.datagrams)?;
        flows.push((Flow::Datagrams(socket), ipv6, index, plan.datagrams.flows));
    }
    Ok(())
}

fn connect(address: IpAddr, port: u16) -> Result<TcpStream, LoadError> {
    let to = SocketAddr::new(address, port);
    let connected = || {
        let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    };
    connected().map_err(LoadError::of(format!("connecting to {to}")))
}

fn open(address: IpAddr, port: u16) -> Result<UdpSocket, LoadError> {
    let to = SocketAddr::new(address, port);
    let any = if address.is_ipv6() {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED)
    } else {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED)
    };
    let opened = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(to)?;
        Ok(socket)
    };
    opened().map_err(LoadError::of(format!("opening UDP to {to}")))
}

impl Flow {
    fn spawn(
        self,
        plan: &LoadPlan,
        ipv6: bool,
        (index, of): (u16, u16),
        stop: Arc<AtomicBool>,
    ) -> io::Result<JoinHandle<Part>> {
        let (kind, rate_hz, name) = match self {
            Self::Requests(_) => (LoadKind::TcpRequests, plan.requests.rate_hz, "requests"),
            Self::Stream(_) => (LoadKind::TcpStream, plan.streams.rate_hz, "stream"),
            Self::Datagrams(_) => (LoadKind::UdpDatagrams, plan.datagrams.rate_hz, "udp"),
        };
        let name = format!("client-{name}{}", if ipv6 { 6 } else { 4 });
        let plan = plan.clone();
        thread::Builder::new().name(name.clone()).spawn(move || {
            let mut count = LoadCount { connections: 1, ..LoadCount::new(kind, ipv6) };
            let mut pacer = Pacer::new(rate_hz, index, of);
            let result = match self {
                Self::Requests(stream) => ask(stream, &plan, &mut pacer, &stop, &mut count),
                Self::Stream(stream) => pour(stream, &plan, &mut pacer, &stop, &mut count),
                Self::Datagrams(socket) => send(&socket, &plan, &mut pacer, &stop, &mut count),
            };
            count.planned = pacer.planned();
            Part { count, failure: result.err().map(|reason| format!("{name}: {reason}")) }
        })
    }
}

/// Sends requests and waits for the response to each.
fn ask(
    mut stream: TcpStream,
    plan: &LoadPlan,
    pacer: &mut Pacer,
    stop: &AtomicBool,
    count: &mut LoadCount,
) -> io::Result<()> {
    let request = vec![FILL; plan.requests.request_bytes as usize];
    let mut response = vec![0; plan.requests.response_bytes as usize];
    while pacer.wait(stop) {
        stream.write_all(&request)?;
        count.sent += 1;
        stream.read_exact(&mut response)?;
        count.received += 1;
    }
    hang_up(stream)
}

/// Writes a stream.
fn pour(
    mut stream: TcpStream,
    plan: &LoadPlan,
    pacer: &mut Pacer,
    stop: &AtomicBool,
    count: &mut LoadCount,
) -> io::Result<()> {
    let data = vec![FILL; plan.streams.write_bytes as usize];
    while pacer.wait(stop) {
        stream.write_all(&data)?;
        count.sent += 1;
    }
    hang_up(stream)
}

/// Ends a connection and waits until the server has ended its side too, so that no socket remains in the kernel
/// with data for a path that is about to be removed.
fn hang_up(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    io::copy(&mut stream, &mut io::sink()).map(|_| ())
}

/// Sends datagrams of each size in turn, and finally the one that ends the flow.
fn send(
    socket: &UdpSocket,
    plan: &LoadPlan,
    pacer: &mut Pacer,
    stop: &AtomicBool,
    count: &mut LoadCount,
) -> io::Result<()> {
    let sizes = &plan.datagrams.sizes_bytes;
    let longest = sizes.iter().max().copied().unwrap_or(0);
    let payload = vec![FILL; longest as usize];
    for &bytes in sizes.iter().cycle() {
        if !pacer.wait(stop) {
            break;
        }
        let Some(payload) = payload.get(..bytes as usize) else { break };
        match socket.send(payload) {
            Ok(_) => count.sent += 1,
            // The device's queue is full: the datagram was planned and is not sent.
            Err(reason) if reason.raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(reason) if reason.kind() == io::ErrorKind::Interrupted => {}
            Err(reason) => return Err(reason),
        }
    }
    socket.send(&[END_OF_FLOW]).map(|_| ())
}
