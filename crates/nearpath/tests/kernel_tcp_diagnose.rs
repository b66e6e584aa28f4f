//! `nearpath diagnose --measure tcp` on this kernel: findings name the listener and the connections of the requested
//! network namespace, and propose a sysctl only where it is the limit.

use nearpath_model::tcp::{TcpLimit, TcpMeasurement};
use nearpath_model::{Diagnosis, Finding};
use nearpath_testing::veth::{Side, VethPair};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const NEARPATH: &str = env!("CARGO_BIN_EXE_nearpath");

/// A diagnosis of one side that has begun.
fn begin(pair: &VethPair, side: Side, seconds: &str) -> Child {
    let mut command = Command::new(NEARPATH);
    command.args(["diagnose", "--json", "--measure", "tcp", "--for", seconds]);
    nearpath_testing::begin(command.args(["--netns", &pair.path(side)]), "measuring for")
}

fn ended(mut child: Child) -> Diagnosis {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    serde_json::from_str(&text).unwrap()
}

fn finding<'a>(diagnosis: &'a Diagnosis, check: &str) -> &'a Finding {
    let found = diagnosis.findings.iter().find(|finding| finding.check == check);
    found.unwrap_or_else(|| panic!("{check}: {:?}", diagnosis.findings))
}

fn listen(pair: &VethPair) -> (TcpListener, SocketAddr) {
    let listener = pair.run(Side::Server, |side| TcpListener::bind((side.ipv4(), 0))).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// The client's and the server's end of a connection.
fn connected(pair: &VethPair) -> (TcpStream, TcpStream) {
    let (listener, address) = listen(pair);
    let client = pair.run(Side::Client, |_| TcpStream::connect(address)).unwrap();
    (client, listener.accept().unwrap().0)
}

/// A connection that is under way.
fn connecting(pair: &VethPair, to: SocketAddr) -> OwnedFd {
    let connect = |_| {
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::NONBLOCK, None)?;
        let _ = rustix::net::connect(&socket, &to);
        Ok(socket)
    };
    pair.run(Side::Client, connect).unwrap()
}

#[test]
fn a_full_accept_queue_is_named_with_what_limits_it() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (listener, address) = listen(&pair);
    // The server requests a queue of 2; then the namespace allows no more.
    for (backlog, somaxconn) in [(2, 4096), (1000, 2)] {
        let set = |_| std::fs::write("/proc/sys/net/core/somaxconn", format!("{somaxconn}\n"));
        pair.run(Side::Server, set).unwrap();
        rustix::net::listen(&listener, backlog).unwrap();
        let child = begin(&pair, Side::Server, "2s");
        let clients: Vec<OwnedFd> = (0..8).map(|_| connecting(&pair, address)).collect();
        let diagnosis = ended(child);
        drop(clients);
        let found = finding(&diagnosis, "listen_overflows");
        let named = |line: &&String| line.starts_with(&format!("{address} ("));
        let line = found.evidence.iter().find(named).unwrap_or_else(|| panic!("{found:?}"));
        let pid = std::process::id();
        assert!(line.contains(&format!(" {pid}): up to 3 connections in a queue of 2")), "{line}");
        let changes: Vec<String> = found
            .changes
            .iter()
            .map(|change| format!("{} = {}", change.target, change.after))
            .collect();
        if backlog == 2 {
            assert!(line.contains("the server limits it in listen(2)"), "{line}");
            assert_eq!(changes, [""; 0]);
        } else {
            assert!(line.contains("net.core.somaxconn limits it"), "{line}");
            // The default of current kernels.
            assert_eq!(changes, ["sysctl net.core.somaxconn = 4096"]);
        }
    }
}

/// Of a namespace, not of the host; without other instruments, and with what the sampler costs.
#[test]
fn connections_of_the_namespace_are_measured_within_the_limit() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (mut client, mut server) = connected(&pair);
    let child = begin(&pair, Side::Client, "2s");
    client.write_all(&[1; 100_000]).unwrap();
    server.read_exact(&mut [0; 100_000]).unwrap();
    let diagnosis = ended(child);
    assert!(diagnosis.measurement.is_none() && diagnosis.locality.is_none());
    let measured: TcpMeasurement = diagnosis.tcp.clone().unwrap();
    let [connection] = measured.connections.as_slice() else { panic!("{measured:?}") };
    let address = SocketAddr::new(connection.dst, connection.dport);
    assert_eq!(address, server.local_addr().unwrap());
    assert_eq!(connection.interval.bytes_sent, 100_000);
    assert_eq!(connection.verdict.as_ref().map(|v| v.limit), Some(TcpLimit::Application));
    // The limit is 2%; the first readings and the last come whatever they cost, and a debug build's cost 2 to 12 ms each.
    let cost = &measured.cost;
    let of_reading = cost.cpu_percent / cost.dumps as f64;
    assert!(cost.dumps > 2 && cost.cpu_percent < 2.0 + 5.0 * of_reading, "{cost:?}");
    let about_tcp = |finding: &&Finding| finding.check.starts_with("tcp_");
    let said: Vec<&Finding> = diagnosis.findings.iter().filter(about_tcp).collect();
    assert!(said.is_empty(), "{said:?}");
}

/// Ends what a test has begun, also when it fails.
struct AtEnd<F: FnMut()>(F);

impl<F: FnMut()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

const PIECES: [&[u8]; 2] = [&[1; 10], &[2; 100]];

/// Requests that a client writes in two pieces to a server that reads whole requests, with how many were answered.
fn requests_in_pieces(nodelay: bool) -> (Diagnosis, u32) {
    let pair = VethPair::new(1).unwrap();
    let (mut client, mut server) = connected(&pair);
    client.set_nodelay(nodelay).unwrap();
    let child = begin(&pair, Side::Client, "3s");
    let ends = &AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(move || {
            while server.read_exact(&mut [0; 110]).is_ok() {
                thread::sleep(Duration::from_millis(2));
                if server.write_all(&[3; 2]).is_err() {
                    break;
                }
            }
        });
        let asker = scope.spawn(move || {
            let mut count = 0;
            while PIECES.iter().all(|piece| client.write_all(piece).is_ok())
                && client.read_exact(&mut [0; 2]).is_ok()
                && !ends.load(Ordering::Relaxed)
            {
                count += 1;
            }
            count
        });
        let end = AtEnd(|| ends.store(true, Ordering::Relaxed));
        let diagnosis = ended(child);
        drop(end);
        (diagnosis, asker.join().unwrap())
    })
}

/// The judge is the client: it counts its answers.
#[test]
fn small_writes_that_wait_for_delayed_acknowledgements_are_named() {
    if !(nearpath_testing::require_lengthy() && nearpath_testing::require_netns()) {
        return;
    }
    let is_named = |diagnosis: &Diagnosis| {
        diagnosis.findings.iter().any(|found| found.title.contains("(Nagle)"))
    };
    let (diagnosis, answers) = requests_in_pieces(false);
    assert!((1..120).contains(&answers), "{answers} in 3 s: acknowledgements are not delayed");
    assert!(is_named(&diagnosis), "{answers}: {:?}", diagnosis.tcp);
    let connection = &diagnosis.tcp.as_ref().unwrap().connections[0];
    let verdict = connection.verdict.as_ref().map(|verdict| verdict.limit);
    assert_eq!(verdict, Some(TcpLimit::Application), "{connection:?}");
    let (diagnosis, answers) = requests_in_pieces(true);
    assert!(answers > 120, "{answers} in 3 s without delay");
    assert!(!is_named(&diagnosis), "{:?}", diagnosis.findings);
}

/// Data comes faster than it is read: the window closes. The judge is the reader, which knows how much it took.
#[test]
fn a_reader_that_does_not_keep_up_is_named() {
    if !nearpath_testing::require_netns() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let (mut client, mut server) = connected(&pair);
    let stop = client.try_clone().unwrap();
    let ends = &AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut sent = 0;
            while client.write_all(&[7; 65_536]).is_ok() {
                sent += 65_536u64;
            }
            sent
        });
        let reader = scope.spawn(move || {
            let (mut buffer, mut read) = ([0; 4096], 0);
            while let Ok(bytes @ 1..) = server.read(&mut buffer) {
                read += bytes as u64;
                thread::sleep(Duration::from_millis(5));
                if ends.load(Ordering::Relaxed) {
                    break;
                }
            }
            read
        });
        let end = AtEnd(|| {
            ends.store(true, Ordering::Relaxed);
            let _ = stop.shutdown(Shutdown::Both);
        });
        let diagnosis = ended(begin(&pair, Side::Server, "3s"));
        drop(end);
        let (sent, read) = (writer.join().unwrap(), reader.join().unwrap());
        // A reader that keeps up with a writer on the same machine takes gigabytes.
        let is_behind = read < 20_000_000 && sent > read + 100_000;
        assert!(read > 0 && is_behind, "{sent} {read}: the reader kept up");
        let found = finding(&diagnosis, "tcp_reader");
        assert!(found.title.starts_with("1 connection waits for"), "{found:?}");
        assert!(found.changes.is_empty(), "{found:?}");
        assert!(diagnosis.findings.iter().all(|other| other.check != "tcp_receive_buffer"));
    });
}
