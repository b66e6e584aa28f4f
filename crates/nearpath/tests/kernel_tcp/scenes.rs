//! Connections whose limit is made: each interval must name it.

use crate::{can_run, connect, listen, measured};
use nearpath_model::tcp::{TcpLimit, TcpMeasurement};
use nearpath_testing::veth::{Side, VethPair};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads that run until this is dropped.
struct Scene {
    pair: VethPair,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    sockets: Vec<TcpStream>,
}

impl Scene {
    fn new() -> Self {
        let pair = VethPair::new(1).unwrap();
        Self { pair, over: Arc::default(), threads: Vec::new(), sockets: Vec::new() }
    }

    /// A client that calls `send`, and a server that calls `receive`, again and again, until one fails.
    fn connection(
        &mut self,
        mut send: impl FnMut(&mut TcpStream) -> std::io::Result<()> + Send + 'static,
        mut receive: impl FnMut(&mut TcpStream) -> std::io::Result<()> + Send + 'static,
    ) -> u16 {
        let listener = listen(&self.pair);
        let (client, server) = connect(&self.pair, &listener);
        let port = listener.local_addr().unwrap().port();
        for socket in [&client, &server] {
            self.sockets.push(socket.try_clone().unwrap());
        }
        let (over, ended) = (Arc::clone(&self.over), Arc::clone(&self.over));
        let (mut client, mut server) = (client, server);
        self.threads.push(std::thread::spawn(move || {
            while !over.load(SeqCst) && send(&mut client).is_ok() {}
        }));
        self.threads.push(std::thread::spawn(move || {
            while !ended.load(SeqCst) && receive(&mut server).is_ok() {}
        }));
        port
    }

    /// The verdicts of each interval, as seen from one side.
    fn verdicts(&self, side: Side, port: u16) -> Vec<Option<TcpLimit>> {
        let port = port.to_string();
        let args = ["--port", &port, "--for", "4s", "--interval", "400ms"];
        let mut documents = measured(&self.pair, side, &args);
        documents.pop();
        let limit = |document: &TcpMeasurement| {
            let [connection] = document.connections.as_slice() else { panic!("{document:?}") };
            connection.verdict.as_ref().map(|verdict| verdict.limit)
        };
        documents.iter().map(limit).collect()
    }

    fn assert_limited(&self, side: Side, port: u16, by: TcpLimit) {
        let verdicts = self.verdicts(side, port);
        let right = verdicts.iter().filter(|limit| **limit == Some(by)).count();
        assert!(verdicts.len() >= 9 && right * 20 >= verdicts.len() * 19, "{by:?}: {verdicts:?}");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.over.store(true, SeqCst);
        for socket in &self.sockets {
            // It may have ended already.
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn send_all(socket: &mut TcpStream) -> std::io::Result<()> {
    socket.write_all(&[1; 65_536])
}

fn read_all(socket: &mut TcpStream) -> std::io::Result<()> {
    match socket.read(&mut [0; 65_536])? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

#[test]
fn an_application_that_pauses() {
    if !can_run() {
        return;
    }
    let mut scene = Scene::new();
    let paused = |socket: &mut TcpStream| {
        std::thread::sleep(Duration::from_millis(20));
        socket.write_all(&[1; 4096])
    };
    let port = scene.connection(paused, read_all);
    scene.assert_limited(Side::Client, port, TcpLimit::Application);
    scene.assert_limited(Side::Server, port, TcpLimit::Peer);
}

#[test]
fn an_application_that_reads_slowly() {
    if !can_run() {
        return;
    }
    let mut scene = Scene::new();
    let slow = |socket: &mut TcpStream| {
        std::thread::sleep(Duration::from_millis(10));
        socket.read_exact(&mut [0; 2048])
    };
    let port = scene.connection(send_all, slow);
    scene.assert_limited(Side::Client, port, TcpLimit::Reader);
    scene.assert_limited(Side::Server, port, TcpLimit::Reader);
}

#[test]
fn a_path_with_a_rate() {
    if !can_run() || !nearpath_testing::require_program("tc") {
        return;
    }
    let mut scene = Scene::new();
    let shaper = "qdisc add dev np0 root tbf rate 20mbit burst 32kb latency 50ms";
    let run = |_| Ok(Command::new("tc").args(shaper.split(' ')).output()?.status.success());
    if !scene.pair.run(Side::Client, run).unwrap() {
        nearpath_testing::skip("this kernel has no qdisc tbf");
        return;
    }
    let port = scene.connection(send_all, read_all);
    scene.assert_limited(Side::Client, port, TcpLimit::Path);
    scene.assert_limited(Side::Server, port, TcpLimit::Peer);
}
