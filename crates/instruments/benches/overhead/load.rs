//! The loads: fixed pieces of work between two namespaces, all on one CPU, so that the overhead reduces the
//! work done and cannot hide on another CPU.

use nearpath_testing::veth::{Side, VethPair};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The CPU for everything.
const CPU: usize = 0;
/// Datagrams per burst; far fewer than fit in a socket's queue.
const BURST: usize = 64;
/// Number of flows: enough that a sample of one in 16 flows is about one in 16 datagrams.
const FLOWS: usize = 256;
/// Bytes of a small datagram.
const SMALL: usize = 64;
/// Bytes of one write of the bulk load, and of a request.
const BULK: usize = 64 << 10;
const REQUEST: usize = 1000;

/// A load.
pub struct Load {
    /// Its name.
    pub name: &'static str,
    /// The unit of work: datagrams, MiB, requests.
    pub unit: &'static str,
    /// Number of units in one piece of work.
    pub units: usize,
    /// Does one piece of work.
    pub work: Box<dyn FnMut() -> io::Result<()>>,
}

/// All loads over the pair, with pieces of work of similar duration; `scale` is 1 on a real machine, less on an
/// emulated one.
pub fn loads(pair: &VethPair, scale: f64) -> io::Result<Vec<Load>> {
    pin()?;
    let units = |full: usize| ((full as f64 * scale) as usize).max(BURST);
    Ok(vec![udp(pair, units(120_000))?, tcp_bulk(pair, units(1_000))?, tcp(pair, units(20_000))?])
}

/// Pins the calling thread; its child threads inherit the affinity.
fn pin() -> io::Result<()> {
    let mut only = rustix::thread::CpuSet::new();
    only.set(CPU);
    Ok(rustix::thread::sched_setaffinity(None, &only)?)
}

/// Small datagrams at an unlimited rate: the flows alternate with one burst per system call, and a word comes
/// back after each burst, so that none is lost.
fn udp(pair: &VethPair, datagrams: usize) -> io::Result<Load> {
    let server = pair.run(Side::Server, |side| UdpSocket::bind((side.ipv4(), 0)))?;
    let address = server.local_addr()?;
    let client = |side: Side| {
        let socket = UdpSocket::bind((side.ipv4(), 0))?;
        socket.set_read_timeout(Some(Duration::from_secs(60)))?;
        socket.connect(address)?;
        Ok(socket)
    };
    let clients: Vec<UdpSocket> =
        pair.run(Side::Client, |side| (0..FLOWS).map(|_| client(side)).collect())?;
    std::thread::spawn(move || -> io::Result<()> {
        let mut buffer = [0; SMALL];
        loop {
            for _ in 1..BURST {
                server.recv(&mut buffer)?;
            }
            let (_, from) = server.recv_from(&mut buffer)?;
            server.send_to(&[1], from)?;
        }
    });
    let bursts = datagrams / BURST;
    let work = move || {
        for client in clients.iter().cycle().take(bursts) {
            send_burst(client)?;
            client.recv(&mut [0; 8])?;
        }
        Ok(())
    };
    let units = bursts * BURST;
    Ok(Load { name: "udp", unit: "datagram", units, work: Box::new(work) })
}

/// A burst of datagrams by sendmmsg(2).
fn send_burst(socket: &UdpSocket) -> io::Result<()> {
    let mut bytes = [0u8; SMALL];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: SMALL };
    // SAFETY: all fields may be zero: no address, no control data.
    let mut messages: [libc::mmsghdr; BURST] = unsafe { std::mem::zeroed() };
    for message in &mut messages {
        message.msg_hdr.msg_iov = &raw mut part;
        message.msg_hdr.msg_iovlen = 1;
    }
    let mut sent = 0;
    while sent < BURST {
        let left = &mut messages[sent..];
        // SAFETY: the messages, and the buffer that all of them point to, outlive the call.
        let n = unsafe {
            libc::sendmmsg(socket.as_raw_fd(), left.as_mut_ptr(), left.len() as libc::c_uint, 0)
        };
        sent += usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    }
    Ok(())
}

/// A connection between the two sides.
fn connection(pair: &VethPair) -> io::Result<(TcpStream, TcpStream)> {
    let listener = pair.run(Side::Server, |side| TcpListener::bind((side.ipv4(), 0)))?;
    let address = listener.local_addr()?;
    let client = pair.run(Side::Client, |_| TcpStream::connect(address))?;
    let (server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    Ok((client, server))
}

/// One long stream; a byte comes back when all data is read.
fn tcp_bulk(pair: &VethPair, mebibytes: usize) -> io::Result<Load> {
    let (mut client, mut server) = connection(pair)?;
    let bytes = mebibytes << 20;
    std::thread::spawn(move || -> io::Result<()> {
        let mut buffer = vec![0; BULK];
        loop {
            let mut left = bytes;
            while left > 0 {
                match server.read(&mut buffer)? {
                    0 => return Ok(()),
                    read => left -= read,
                }
            }
            server.write_all(&[1])?;
        }
    });
    let buffer = vec![0; BULK];
    let work = move || {
        for _ in 0..bytes / BULK {
            client.write_all(&buffer)?;
        }
        client.read_exact(&mut [0])
    };
    Ok(Load { name: "tcp bulk", unit: "MiB", units: mebibytes, work: Box::new(work) })
}

/// Requests and answers of one segment each.
fn tcp(pair: &VethPair, requests: usize) -> io::Result<Load> {
    let (mut client, mut server) = connection(pair)?;
    std::thread::spawn(move || -> io::Result<()> {
        let mut buffer = [0; REQUEST];
        loop {
            server.read_exact(&mut buffer)?;
            server.write_all(&buffer)?;
        }
    });
    let work = move || {
        let mut buffer = [0; REQUEST];
        for _ in 0..requests {
            client.write_all(&buffer)?;
            client.read_exact(&mut buffer)?;
        }
        Ok(())
    };
    Ok(Load { name: "tcp requests", unit: "request", units: requests, work: Box::new(work) })
}
