//! Connections with more than one limit, or with a limit that hides another: each part of the time has its own, and a
//! window or a buffer is not to blame where a larger one would change nothing.

use crate::scenes::{Scene, at_once, read_all, send_all, shape};
use crate::{begin, can_run, connect, ended, listen_at, measured, whole};
use nearpath_model::tcp::{TcpConnection, TcpLimit};
use nearpath_testing::veth::{Side, VethPair};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::ops::RangeInclusive;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A bottleneck of 2.5 MB/s whose queue holds all that the scenes send.
const BOTTLENECK: &str = "tbf rate 20mbit burst 5kb latency 400ms";

fn can_shape() -> bool {
    can_run() && nearpath_testing::require_program("tc")
}

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// The only connection of five seconds must have these shares of time.
fn assert_shares(scene: &Scene, side: Side, port: u16, wanted: &[(TcpLimit, RangeInclusive<f64>)]) {
    let port = port.to_string();
    let document = whole(&scene.pair, side, &["--port", &port, "--for", "5s"]);
    let [connection] = document.connections.as_slice() else { panic!("{document:?}") };
    let share = |limit| connection.limits.get(limit).unwrap_or(&0.0) / connection.observed_s;
    let sum: f64 = connection.limits.values().sum::<f64>() / connection.observed_s;
    let right = wanted.iter().all(|(limit, range)| range.contains(&share(limit)));
    let said = format!("{:?} of {} s, wanted {wanted:?}", connection.limits, connection.observed_s);
    assert!(right && (0.97..=1.03).contains(&sum), "{said}");
}

/// In each second, the sender pauses for some two thirds, and the reader for the rest.
#[test]
fn two_limits_within_an_interval_share_its_time() {
    if !nearpath_testing::require_lengthy() || !can_run() {
        return;
    }
    const BURST: usize = 400_000;
    let mut scene = Scene::new();
    let send = |socket: &mut TcpStream| {
        socket.write_all(&vec![1; BURST])?;
        pause(650);
        Ok(())
    };
    let receive = |socket: &mut TcpStream| {
        set_socket_recv_buffer_size(&*socket, 32_768)?;
        socket.read_exact(&mut [0])?;
        pause(300);
        socket.read_exact(&mut vec![0; BURST - 1])
    };
    let port = scene.connection(send, receive);
    let sides = [(Side::Client, TcpLimit::Application), (Side::Server, TcpLimit::Peer)];
    at_once(&sides, |(side, idle)| {
        assert_shares(&scene, side, port, &[(idle, 0.45..=0.85), (TcpLimit::Reader, 0.12..=0.5)]);
    });
}

/// Data for a third of a second, in each second.
#[test]
fn a_connection_that_is_idle_for_a_part_of_the_time() {
    if !nearpath_testing::require_lengthy() || !can_shape() {
        return;
    }
    let mut scene = Scene::new();
    if !scene.shape(Side::Client, BOTTLENECK) {
        return;
    }
    let send = |socket: &mut TcpStream| {
        socket.write_all(&vec![1; 750_000])?;
        pause(1000);
        Ok(())
    };
    let port = scene.connection(send, read_all);
    let wanted = [(TcpLimit::Application, 0.5..=0.9), (TcpLimit::Path, 0.1..=0.5)];
    assert_shares(&scene, Side::Client, port, &wanted);
}

/// The peer acknowledges after 40 ms, as it has nothing to send: nothing waits meanwhile.
#[test]
fn small_requests_without_answers_wait_for_nothing() {
    if !nearpath_testing::require_lengthy() || !can_run() {
        return;
    }
    let mut scene = Scene::new();
    let send = |socket: &mut TcpStream| {
        pause(120);
        socket.write_all(&[1; 100])
    };
    let port = scene.connection(send, read_all);
    scene.assert_limited(
        port,
        &[(Side::Client, TcpLimit::Application), (Side::Server, TcpLimit::Peer)],
    );
}

/// The window is open, but both ends wait for the reader, which the client cannot see.
#[test]
fn a_request_that_nobody_reads() {
    if !nearpath_testing::require_lengthy() || !can_run() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = listen_at(&pair, Side::Server.ipv4());
    let port = listener.local_addr().unwrap().port().to_string();
    let (mut client, mut server) = connect(&pair, &listener);
    // An answer that was larger than its request.
    server.write_all(&[1; 5000]).unwrap();
    client.read_exact(&mut [0; 5000]).unwrap();
    client.write_all(&[1; 100]).unwrap();
    pause(300);
    let wanted = [(Side::Client, TcpLimit::Peer), (Side::Server, TcpLimit::Reader)];
    let documents = at_once(&wanted, |(side, limit)| {
        (limit, whole(&pair, side, &["--port", &port, "--for", "1s"]))
    });
    for (limit, document) in documents {
        let [connection] = document.connections.as_slice() else { panic!("{document:?}") };
        let verdict = connection.verdict.as_ref().unwrap();
        assert_eq!(verdict.limit, limit, "{connection:?}");
        assert!(verdict.share > 0.95, "{connection:?}");
    }
}

#[test]
fn both_directions_through_bottlenecks() {
    if !nearpath_testing::require_lengthy() || !can_shape() {
        return;
    }
    let mut scene = Scene::new();
    if ![Side::Client, Side::Server].into_iter().all(|side| scene.shape(side, BOTTLENECK)) {
        return;
    }
    let port = scene.connection(send_all, read_all);
    let [client, server] = scene.ends();
    scene.again_and_again(client, read_all);
    scene.again_and_again(server, send_all);
    scene.assert_limited(port, &[(Side::Client, TcpLimit::Path), (Side::Server, TcpLimit::Path)]);
}

/// The window stops the sender all the time, but what it lets through waits in the queue of the bottleneck.
#[test]
fn a_small_window_that_fills_a_bottleneck_is_not_the_limit() {
    if !nearpath_testing::require_lengthy() || !can_shape() {
        return;
    }
    let mut scene = Scene::new();
    if !scene.shape(Side::Client, BOTTLENECK) {
        return;
    }
    let receive = |socket: &mut TcpStream| {
        set_socket_recv_buffer_size(&*socket, 32_768)?;
        read_all(socket)
    };
    let port = scene.connection(send_all, receive);
    scene.assert_limited(port, &[(Side::Client, TcpLimit::Path), (Side::Server, TcpLimit::Peer)]);
}

/// The same with a small send buffer.
#[test]
fn a_small_send_buffer_that_fills_a_bottleneck_is_not_the_limit() {
    if !nearpath_testing::require_lengthy() || !can_shape() {
        return;
    }
    let mut scene = Scene::new();
    if !scene.shape(Side::Client, BOTTLENECK) {
        return;
    }
    let send = |socket: &mut TcpStream| {
        set_socket_send_buffer_size(&*socket, 32_768)?;
        send_all(socket)
    };
    let port = scene.connection(send, read_all);
    scene.assert_limited(port, &[(Side::Client, TcpLimit::Path)]);
}

/// A reader that is stopped does not wait for a CPU; over IPv6.
#[test]
fn a_reader_that_is_stopped() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_run() || !nearpath_testing::require_program("ss") {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    let listener = listen_at(&pair, Side::Server.ipv6());
    let port = listener.local_addr().unwrap().port().to_string();
    let (client, server) = connect(&pair, &listener);
    let both = [client.try_clone().unwrap(), server.try_clone().unwrap()];
    let mut reader = Command::new("python3")
        .args(["-c", "import os\nwhile os.read(0, 65536): pass"])
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(server)))
        .spawn()
        .unwrap();
    let mut client = client;
    let sender = std::thread::spawn(move || while send_all(&mut client).is_ok() {});
    pause(500);
    let pid = rustix::process::Pid::from_child(&reader);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    // Until the sender has waited for half a second: a window that closes for a moment has opened by then.
    nearpath_testing::wait_for("a window that stays closed", || {
        let ss = |_| Command::new("ss").args(["-tinoH", "dport", &format!("= :{port}")]).output();
        let printed = String::from_utf8(pair.run(Side::Client, ss).unwrap().stdout).unwrap();
        let (_, sent) = printed.split_once(" lastsnd:")?;
        let ms = sent.split(' ').next()?.parse::<u32>().ok()?;
        (ms >= 500 && printed.contains("timer:(persist")).then_some(())
    });
    let seen = at_once(&[Side::Client, Side::Server], |side| {
        measured(&pair, side, &["--port", &port, "--for", "3s", "--interval", "250ms"])
    });
    reader.kill().unwrap();
    reader.wait().unwrap();
    both.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
    sender.join().unwrap();
    for documents in seen {
        assert!(documents.len() >= 10, "{}", documents.len());
        for document in documents {
            let [connection] = document.connections.as_slice() else { panic!("{document:?}") };
            let limit = connection.verdict.as_ref().map(|verdict| verdict.limit);
            assert_eq!(limit, Some(TcpLimit::Reader), "{connection:?}");
            assert!(connection.src.is_ipv6());
        }
    }
}

/// Its verdict is of the time until it ended.
#[test]
fn a_connection_that_ends_within_the_interval() {
    if !nearpath_testing::require_lengthy() {
        return;
    }
    if !can_shape() {
        return;
    }
    let pair = VethPair::new(1).unwrap();
    if !shape(&pair, Side::Client, BOTTLENECK) {
        return;
    }
    let listener = listen_at(&pair, Side::Server.ipv4());
    let port = listener.local_addr().unwrap().port().to_string();
    let (mut client, mut server) = connect(&pair, &listener);
    let reader = std::thread::spawn(move || while read_all(&mut server).is_ok() {});
    let child = begin(&pair, Side::Client, &["--port", &port]);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1200) {
        send_all(&mut client).unwrap();
    }
    // A reset, so that what is queued is not sent first.
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    drop(client);
    reader.join().unwrap();
    pause(2500);
    let document = ended(child);
    let [connection] = document.connections.as_slice() else { panic!("{document:?}") };
    let limit = |c: &TcpConnection| c.verdict.as_ref().map(|verdict| verdict.limit);
    assert_eq!(limit(connection), Some(TcpLimit::Path), "{connection:?}");
    assert!(connection.closed && (0.8..3.2).contains(&connection.observed_s), "{connection:?}");
}
